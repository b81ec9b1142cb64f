"""A flow run that is started again: what it closes, and when it gives up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tasks import restarts


@pytest.mark.parametrize(
    ("starts", "closes", "gives_up"),
    [(0, 0, False), (1, 0, False), (2, 2, False), (20, 2, False), (21, 2, True)],
)
def test_earlier_starts_are_closed_and_there_is_an_end_to_them(
    monkeypatch: pytest.MonkeyPatch, starts: int, closes: int, gives_up: bool
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(restarts, "flow_run", SimpleNamespace(run_count=starts, id="a"))
    monkeypatch.setattr(restarts, "_end_task_runs", lambda: closed.append("Prefect"))
    monkeypatch.setattr(restarts, "_end_mlflow_runs", lambda _: closed.append("MLflow"))
    monkeypatch.setattr(restarts, "_cancel_if_asked_to", lambda: None)  # test_dispatch has it
    monkeypatch.setattr(restarts, "base_context", lambda: SimpleNamespace(tracking=None))
    if gives_up:
        with pytest.raises(restarts.TooManyStartsError, match="started 20 times"):
            restarts.take_over()
    else:
        restarts.take_over()
    assert len(closed) == closes
