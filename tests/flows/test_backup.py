"""A stack that is lost and made anew from a backup that was taken during a run."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.flows.conftest import FOUND
from tests.flows.running_stack import Deployed, Running, new_stack, of_stack, stack_up

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CHAMPION = """
import mlflow, pathlib, sys
mlflow.artifacts.download_artifacts("models:/trimtab-policy-smoke@champion", dst_path={to!r})
"""


def _champion(running: Running, to: Path) -> dict[str, bytes]:
    """The files of the champion, as MLflow gives them."""
    running.python(CHAMPION.format(to=str(to)))
    return {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*.safetensors")}


def test_a_lost_stack_is_there_again_and_its_run_goes_on(
    deployed: Deployed, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    with new_stack(deployed) as (stack, environment):
        with stack_up(stack, environment) as running:
            done = running.start("rlhf", {"recipe": "smoke", "changes": FOUND}).json()
            assert running.end_of(done)["type"] == "COMPLETED"
            champion = _champion(running, tmp_path / "before")
            metrics = running.mlflow_runs("attributes.status = 'FINISHED'")
            manifests = running.manifests()
            under_way = running.start_and_train(seed=7)
            slots = running.prefect("GET", "v2/concurrency_limits/trimtab-gpu").json()
            command = of_stack(stack, "backup", "--to", str(backups))
            subprocess.run(command, env=environment, check=True)
        assert champion and slots["active_slots"] > 0
        for path in stack.folder.iterdir():
            shutil.rmtree(path)
        (backup,) = backups.iterdir()
        command = of_stack(stack, "restore", "--from", str(backup))
        subprocess.run(command, env=environment, check=True)
        with stack_up(stack, environment) as running:
            assert running.state_of(done)["type"] == "COMPLETED"
            assert _champion(running, tmp_path / "after") == champion
            found = running.mlflow_runs("attributes.status = 'FINISHED'")
            by_id = {run["info"]["run_id"]: run["data"] for run in found}
            assert {run["info"]["run_id"]: run["data"] for run in metrics}.items() <= by_id.items()
            assert manifests.items() <= running.manifests().items()
            ended = running.end_of(under_way, revived=True)
            assert ended["type"] == "COMPLETED", ended
            deadline = time.monotonic() + 120
            while left := running.left_running(under_way):
                assert time.monotonic() < deadline, left
                time.sleep(1)
