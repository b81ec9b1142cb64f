"""The function: methods, networks and trainers; no Prefect, MLflow or object storage."""
