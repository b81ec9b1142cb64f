"""Adapters of Prefect's server."""
