"""A stage cut short: continued from its newest whole checkpoint, wherever that lies."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.toy_stage import count, started_from
from trimtab.infra.processes.environment import child_env
from trimtab.infra.processes.launch import TrainerError, TrainerStoppedError
from trimtab.infra.processes.locks import file_lock, hold_slots
from trimtab.tasks.execution import StageContext


@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_trainer_continues_from_its_newest_checkpoint(
    context: StageContext, plan: Any, elsewhere: bool
) -> None:
    plan(die_at=2)
    with pytest.raises(TrainerError, match="SIGKILL"):
        count(context, total=4)
    (workdir,) = context.settings.work.glob("counter-*")
    if elsewhere:  # another machine has the store, but not this work folder
        shutil.rmtree(workdir)
    plan()
    result = count(context, total=4)
    assert started_from(context, result) == 2
    assert result.summary["count"] == 4
    assert not workdir.exists()
    assert context.store.objects.list("checkpoints") == {}


def test_a_stage_that_waits_for_a_core_or_for_another_run_stops_when_asked_to(
    context: StageContext, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.infra.processes.launch._drain.requested", True)
    plan()
    locks = context.settings.work / ".locks"
    slots = [locks / f"slot-{index}.lock" for index in range(context.settings.max_parallel)]
    with hold_slots(slots, len(slots)), pytest.raises(TrainerStoppedError, match="was not started"):
        count(context, total=4)
    (of_stage,) = locks.glob("counter-*.lock")
    with file_lock(of_stage), pytest.raises(TrainerStoppedError, match="was not started"):
        count(context, total=4)
    monkeypatch.undo()
    assert count(context, total=4).summary["count"] == 4


_ORCHESTRATOR = """
import sys
from pathlib import Path
from tests.tasks.toy_stage import count, make_context
count(make_context(Path(sys.argv[1]), Path(sys.argv[2])), total=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_orchestrator_continues_when_started_again(
    context: StageContext, trainers: Path, tmp_path: Path, plan: Any, number: int
) -> None:
    plan(wait_at=2)
    command = [sys.executable, "-c", _ORCHESTRATOR, str(trainers), str(tmp_path)]
    process = subprocess.Popen(command, env=child_env({}))
    while not list(context.settings.work.glob("counter-*/checkpoints/2")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(10) == -number
    plan()
    result = count(context, total=4)
    assert started_from(context, result) == 2
    assert result.summary["count"] == 4


@pytest.mark.slow
def test_corrupt_checkpoint_is_passed_over(
    context: StageContext, plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan(die_at=3, sleep=0.7)  # slow enough that steps 1 and 2 reach the store too
    with pytest.raises(TrainerError):
        count(context, total=4)
    (workdir,) = context.settings.work.glob("counter-*")
    shutil.rmtree(workdir)
    store_root = Path(context.settings.store_url)
    (newest,) = store_root.glob("checkpoints/*/3/*/count")
    newest.chmod(0o644)
    newest.write_text("9")
    plan()
    with caplog.at_level(logging.WARNING):
        result = count(context, total=4)
    assert started_from(context, result) in (1, 2)
    assert any("skipping the checkpoint" in record.message for record in caplog.records)


@pytest.mark.slow
def test_store_that_refuses_checkpoints_does_not_stop_training(
    context: StageContext, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    plan(sleep=0.4)
    monkeypatch.setattr(context.store, "save_checkpoint", refuse)
    with caplog.at_level(logging.WARNING):
        assert not count(context).cached
    assert len([r for r in caplog.records if "not in the store yet" in r.message]) == 1
