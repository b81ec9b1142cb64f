"""An embedded MLflow for the tests of a module."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.infra.settings import Settings
from trimtab.infra.tracking.runs import Tracking


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One database for the module: making its tables takes seconds."""
    return Settings.from_env({"TRIMTAB_HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture
def tracking(settings: Settings) -> Tracking:
    return Tracking.from_settings(settings, "toy")


def client_of(settings: Settings) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=settings.mlflow_uri, registry_uri=settings.mlflow_uri)


def line_of(step: int, **metrics: float) -> str:
    """A line of a trainer's metrics.jsonl."""
    return json.dumps({"step": step, "time": 100.0 + step, "metrics": metrics}) + "\n"
