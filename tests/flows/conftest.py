"""A finished run, a Prefect server and a running stack, for tests of whole commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from filelock import FileLock

from tests.flows.command import TABLES, give_tables, one_process, trimtab
from tests.flows.running_stack import (
    Deployed,
    Running,
    deployed_stack,
    running_stack,
)
from trimtab.infra.prefect.server import (
    API_URL_VARIABLE,
    EMBEDDED_VARIABLE,
    local_prefect_server,
)

FINISHED = ("run", "smoke", "ppo.num_steps=12")
FOUND = {"ppo": {"num_steps": 12}}  # changes with which a run on a stack finds these stages
NAME = "smoke-seed0-ppo.num_steps=12"


MAKE_TABLES = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """A command that a test calls here sets variables, such as PREFECT_HOME, for its process."""
    with patch.dict(os.environ):
        yield


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Made by the first process of pytest that asks for it; the others wait."""
    folder = _shared(tmp_path_factory)
    home, done = folder / "tables", folder / "tables.done"
    with FileLock(folder / "tables.lock"):
        if not done.exists():
            environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
            command = [sys.executable, "-c", MAKE_TABLES]
            subprocess.run(command, env={**environment, "PREFECT_HOME": str(home)}, check=True)
            done.touch()
    TABLES[:] = [home / "prefect.db"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tables: None) -> Path:
    """Made by the first process of pytest that asks for it; the others wait."""
    folder = _shared(tmp_path_factory)
    home, done = folder / "finished", folder / "finished.done"
    with FileLock(folder / "finished.lock"), pytest.MonkeyPatch.context() as patch:
        if not done.exists():
            patch.delenv("PREFECT_API_URL", raising=False)
            shutil.rmtree(home, ignore_errors=True)
            trimtab(home, *FINISHED)
            done.touch()
    return home


@pytest.fixture(scope="module")
def home(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the home of a run of FINISHED that was left alone."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("undisturbed") / "home")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, tables: None) -> Iterator[dict[str, str]]:
    """A server of Prefect and a process that runs commands, one of each for all modules that ask.

    Gives the variables by which the server is found; other modules do not see them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(API_URL_VARIABLE, raising=False)
        folder = tmp_path_factory.mktemp("prefect")
        give_tables(folder)
        patch.setenv("PREFECT_HOME", str(folder))
        with local_prefect_server() as wait_until_ready:
            wait_until_ready()
            names = ("PREFECT_HOME", API_URL_VARIABLE, EMBEDDED_VARIABLE)
            variables = {name: os.environ[name] for name in names}
            with one_process(), pytest.MonkeyPatch.context() as hidden:
                for name in names:
                    hidden.delenv(name)
                yield variables


@pytest.fixture(scope="module")
def prefect(served: dict[str, str]) -> Iterator[None]:
    """Commands share a server and a process, which saves time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in served.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Deployed:
    """Made by the first process of pytest that asks for it; the others wait.

    Its store has the stages of a run of FINISHED: what a test does not wait for is found.
    """
    folder = _shared(tmp_path_factory) / "deployed"
    about = folder / "secrets.json"
    with FileLock(folder.with_suffix(".lock")):
        if not about.exists():
            folder.mkdir(mode=0o755)
            stack = deployed_stack(folder, lambda: request.getfixturevalue("finished"))
            about.touch(mode=0o600)
            about.write_text(json.dumps(dict(stack.secrets)))
    return Deployed(folder, json.loads(about.read_text()))


@pytest.fixture(scope="module")
def running(deployed: Deployed) -> Iterator[Running]:
    """A stack of the module's own, with the flows deployed."""
    with running_stack(deployed) as running:
        yield running
