"""What the trainers share: loop, learner, batching, checkpoints, ranks, sampling, scoring."""
