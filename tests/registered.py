"""What MLflow gives to somebody who asks it for a registered model."""

from __future__ import annotations

from pathlib import Path

import pytest


def downloaded(tracking_uri: str, address: str) -> Path:
    """The folder that MLflow has for an address such as `models:/<name>@champion`."""
    from mlflow.artifacts import download_artifacts

    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.setenv(name, tracking_uri)
        return Path(download_artifacts(address))
