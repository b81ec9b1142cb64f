"""Files of the current folder stand in for no module of the processes that are started there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.flows.deploy import ENGINE, _prefect
from trimtab.infra.stack.supervisor import Service, Supervisor

ROOT = Path(__file__).parents[2]
NAMES = (
    "trimtab",
    "infra",
    "models",
    "tasks",
    "flows",
    "prefect",
    "torch",
    "uvicorn",
    "deepspeed",
    "data",
)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that end whoever imports them."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", sorted((ROOT / "infra").rglob("*.py")), ids=lambda p: p.stem)
def test_infra_starts_pythons_with_a_safe_path(path: Path) -> None:
    _assert_safe(path)


@pytest.mark.parametrize("package", ["flows", "tasks", "models"])
def test_pythons_are_started_with_a_safe_path(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        _assert_safe(path)


def _assert_safe(path: Path) -> None:
    """Wherever a list or tuple has `sys.executable` and then "-m", "-P" stands between."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.List | ast.Tuple):
            items = [ast.unparse(each) for each in node.elts]
            if "sys.executable" in items and "'-m'" in items:
                after = items[items.index("sys.executable") + 1]
                assert after == "'-P'", f"{path}:{node.lineno}"


@pytest.mark.slow
def test_prefect_s_commands_and_the_flow_runs_of_workers_have_one(elsewhere: Path) -> None:
    _prefect("--version")
    command = [sys.executable, *ENGINE.split()[1:-1], "trimtab.flows.config.config"]
    subprocess.run(command, check=True)


def test_what_a_server_of_the_stack_starts_has_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    service = Service("x", ["sh", "-c", "echo safe $PYTHONSAFEPATH"], is_ready=lambda: True)
    assert Supervisor([service], tmp_path / "logs")._start(service).wait() == 0
    assert (tmp_path / "logs" / "x.log").read_text() == "safe 1\n"


@pytest.mark.slow
def test_a_flow_s_module_starts_nothing_by_itself(tmp_path: Path) -> None:
    """It would run without what the command prepares: Prefect's files below the user's home."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
    environment |= {"HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    command = [sys.executable, "-P", "-m", "trimtab.flows.rlhf"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
