"""Toy trainers, importable by the fork server, and a context to run them in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.toy_stage import make_context
from trimtab.infra.processes.launch import close_servers
from trimtab.tasks.execution import StageContext


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the toy trainers' package: a copy, as tests change it."""
    folder = tmp_path_factory.mktemp("copy") / "trainers"
    shutil.copytree(Path(__file__).parent / "trainers", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        close_servers()
        yield folder
        close_servers()


@pytest.fixture
def plan(trainers: Path) -> Iterator[Any]:
    """Tell the toy trainer how to misbehave; forgotten afterwards."""
    path = trainers / "plan.json"

    def write(**values: Any) -> None:
        path.write_text(json.dumps(values))

    yield write
    path.unlink(missing_ok=True)


@pytest.fixture
def context(trainers: Path, tmp_path: Path) -> StageContext:
    """A context without MLflow."""
    return make_context(trainers, tmp_path)
