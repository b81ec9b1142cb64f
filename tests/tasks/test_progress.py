"""The progress of a stage on Prefect's page."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from trimtab.tasks import context
from trimtab.tasks.execution import StageProgress

ARTIFACT = UUID(int=7)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Percent and description, each time the card changes."""
    found: list[tuple[float, str]] = []

    def create(progress: float, description: str) -> UUID:
        found.append((progress, description))
        return ARTIFACT

    def update(artifact_id: UUID, progress: float, description: str | None = None) -> None:
        assert artifact_id == ARTIFACT and description is not None
        found.append((progress, description))

    monkeypatch.setattr(context, "create_progress_artifact", create)
    monkeypatch.setattr(context, "update_progress_artifact", update)
    return found


def _reported(*done: int) -> context._ProgressArtifact:
    card = context._ProgressArtifact("PPO vanilla", "place")
    for each in done:
        card(StageProgress(each, 6))
    return card


def test_a_card_is_current_to_the_end(shown: list[tuple[float, str]]) -> None:
    card = _reported(1, 3, 6)
    assert [said for _, said in shown] == ["PPO vanilla: 1 of 6", "PPO vanilla: 6 of 6"]
    card.end("done in 2.0 s")
    assert shown[-1] == (100.0, "PPO vanilla: 6 of 6, done in 2.0 s")


def test_what_follows_training_is_counted_by_itself(
    shown: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from the start again, and each step is heard of as one that was made."""
    heard: list[None] = []
    monkeypatch.setattr(context, "advanced", lambda: heard.append(None))
    progress, card = StageProgress(), context._ProgressArtifact("member 0", "place")
    for part, done in (("", 300), ("", 308), ("scoring test pairs", 8), ("scoring probes", 2)):
        progress.update([json.dumps({"progress": [done, 308]} | ({"part": part} if part else {}))])
        card(progress)
    assert len(heard) == 4
    card.end("stopped", is_done=False)
    assert shown[-1][1] == "member 0, scoring probes: 2 of 308, stopped"


def test_a_card_of_a_stage_that_stopped_early_says_so(shown: list[tuple[float, str]]) -> None:
    """The last report came too soon after another to be shown."""
    _reported(1, 3).end("stopped", is_done=False)
    assert shown[-1] == (50.0, "PPO vanilla: 3 of 6, stopped")
    _reported(1, 3).end("done in 2.0 s")
    assert shown[-1] == (100.0, "PPO vanilla: 3 of 6, done in 2.0 s")


def test_no_card_for_what_was_found_and_no_error_without_a_server(
    shown: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _reported().end("found in the store")
    assert shown == []

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError

    card = _reported(1)
    monkeypatch.setattr(context, "update_progress_artifact", unreachable)
    card.end("stopped", is_done=False)
