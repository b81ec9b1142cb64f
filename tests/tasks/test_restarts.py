"""A flow run that is started again: what it closes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.infra.settings import Settings
from trimtab.infra.tracking.runs import Tracking
from trimtab.tasks import restarts
from trimtab.tasks.context import FLOW_RUN


@pytest.mark.parametrize(("starts", "closes"), [(0, 0), (1, 0), (2, 2), (20, 2)])
def test_earlier_starts_are_closed(
    monkeypatch: pytest.MonkeyPatch, starts: int, closes: int
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(restarts, "flow_run", SimpleNamespace(run_count=starts, id="a"))
    monkeypatch.setattr(restarts, "_end_task_runs", lambda: closed.append("Prefect"))
    monkeypatch.setattr(restarts, "_end_mlflow_runs", lambda _: closed.append("MLflow"))
    tracking = Tracking("", "")
    monkeypatch.setattr(restarts, "base_context", lambda: SimpleNamespace(tracking=tracking))
    restarts.close_earlier_starts()
    assert len(closed) == closes


@pytest.mark.slow
def test_what_is_left_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs of earlier starts, and one that MLflow made though its answer was lost."""
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path)})
    tracking = Tracking.from_settings(settings, "toy")
    earlier, of_another, current = (
        tracking.start_run(name, tags={FLOW_RUN: flow})
        for name, flow in (("earlier", "a"), ("another", "b"), ("current", "a"))
    )
    stage = tracking.start_run("stage", parent=earlier)
    made_twice = tracking.start_run("made twice", parent=current)
    monkeypatch.setattr(restarts, "flow_run", SimpleNamespace(run_count=1, id="a"))
    current.end()
    restarts.close_leftovers(current)
    assert tracking.running({}) == [of_another.run_id]
    left = (earlier, stage, made_twice)
    statuses = [tracking._client.get_run(run.run_id).info.status for run in (current, *left)]
    assert statuses == ["FINISHED", "KILLED", "KILLED", "KILLED"]
