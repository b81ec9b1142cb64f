"""MLflow: runs, metrics, registry."""
