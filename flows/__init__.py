"""The wiring: Prefect flows, run configuration and recipes."""
