"""What the log says once preferences are read, also where they were found in the store."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks import stages
from trimtab.tasks.execution import StageResult
from trimtab.tasks.resources import ONE_CORE


@pytest.mark.parametrize("warning", ["preferences.max_pairs=2 left out 3 of 5 good pairs.", None])
def test_rows_are_logged_and_what_is_missing_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, warning: str | None
) -> None:
    summary = {"account": "5 rows read = 2 used + 3 left out by max_pairs=2", "warnings": warning}
    found = StageResult(ArtifactRef("preferences", "k", "d"), summary, True, 0.0)
    monkeypatch.setattr(stages, "run_stage_task", lambda *_: found)
    with caplog.at_level(logging.INFO, logger="trimtab"):
        config = PreferencesConfig(sources=("a/b",))
        state: Any = stages.TASKS["preferences"].fn(
            config, label="mine", resources=ONE_CORE, ledger=None
        )
    assert (state.name, state.result()) == ("Cached", found)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    expected = [("INFO", "mine: 5 rows read = 2 used + 3 left out by max_pairs=2")]
    expected += [("WARNING", f"mine: {warning}")] if warning else []
    assert told == expected
