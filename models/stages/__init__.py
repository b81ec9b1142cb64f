"""Trainers and inference: one file a stage, each with `run(config, stage)`."""
