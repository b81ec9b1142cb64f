"""Tasks: run a stage of models at a location of infra."""
