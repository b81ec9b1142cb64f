"""The one-server stack: PostgreSQL, SeaweedFS, MLflow, Prefect and a worker, without Docker."""
