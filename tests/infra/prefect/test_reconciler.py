"""What becomes of a flow run by what the server knows of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import State, StateType

from trimtab.infra.prefect.reconciler import (
    MAX_CRASHES,
    SETTLED,
    SILENCE,
    STARTED,
    Seen,
    crashes_in_a_row,
    decide,
)

LONG = 3600.0


@pytest.mark.parametrize(
    ("seen", "to"),
    [
        (Seen("RUNNING", LONG, silent=SILENCE + 1), "CRASHED"),
        (Seen("RUNNING", LONG, silent=SILENCE), None),
        (Seen("RUNNING", LONG), None),
        (Seen("PENDING", STARTED + 1, is_of_processes=True, is_abandoned=True), "CRASHED"),
        (Seen("PENDING", STARTED, is_of_processes=True, is_abandoned=True), None),
        (Seen("PENDING", LONG, is_of_processes=True), None),  # slow, but its worker is alive
        (Seen("PENDING", LONG + 1, is_of_processes=True), "CRASHED"),
        (Seen("PENDING", 24 * LONG, is_abandoned=True), None),  # a pod
        (Seen("CRASHED", SETTLED, crashes=1), None),
        (Seen("CRASHED", SETTLED + 1, crashes=1), "SCHEDULED"),
        (Seen("CRASHED", 5 * 24 * LONG, crashes=MAX_CRASHES - 1), "SCHEDULED"),
        (Seen("CRASHED", LONG, crashes=MAX_CRASHES), "FAILED"),
        (Seen("CRASHED", SETTLED, crashes=MAX_CRASHES), None),
        (Seen("CRASHED", LONG, crashes=1, was_being_cancelled=True), "CANCELLED"),
        (Seen("CRASHED", LONG, crashes=MAX_CRASHES, was_being_cancelled=True), "CANCELLED"),
        *((Seen(state, 24 * LONG, True, LONG, True, 1), None) for state in
          ("SCHEDULED", "PAUSED", "CANCELLING", "CANCELLED", "FAILED", "COMPLETED")),
    ],
)  # fmt: skip
def test_what_becomes_of_a_run(seen: Seen, to: str | None) -> None:
    state = decide(seen)
    assert (state and (state.type.value, bool(state.message))) == (to and (to, True))


@pytest.mark.parametrize(
    ("crashes", "seconds"), [(1, 0), (2, 20), (3, 40), (4, 80), (5, 120), (19, 120)]
)
def test_a_run_that_keeps_crashing_waits_longer(crashes: int, seconds: float) -> None:
    state = decide(Seen("CRASHED", LONG, crashes=crashes))
    assert state is not None and state.name == "AwaitingRetry"
    at = state.state_details.scheduled_time
    assert at is not None
    assert abs(at - datetime.now(UTC) - timedelta(seconds=seconds)) < timedelta(seconds=10)


def test_a_run_that_is_given_up_says_why() -> None:
    seen = Seen("CRASHED", LONG, crashes=MAX_CRASHES, message="exit code 1 {run} {0}")
    state = decide(seen)
    assert state is not None and state.message is not None
    assert "20 times in a row" in state.message and seen.message in state.message


@pytest.mark.parametrize(
    ("states", "crashes"),
    [
        ("PENDING RUNNING CRASHED", 1),
        ("PENDING RUNNING CRASHED CRASHED", 1),  # its process and its worker say so
        ("PENDING CRASHED SCHEDULED PENDING CRASHED", 2),
        ("RUNNING CRASHED SCHEDULED PAUSED SCHEDULED RUNNING CRASHED", 2),
        ("CRASHED SCHEDULED CRASHED FAILED SCHEDULED RUNNING CRASHED", 1),  # a person's Retry
        ("RUNNING CRASHED SCHEDULED RUNNING=3601 CRASHED SCHEDULED RUNNING CRASHED", 2),
        ("RUNNING CRASHED SCHEDULED=9999 RUNNING CRASHED", 2),  # that it waited does not count
    ],
)
def test_crashes_are_counted_since_the_run_ended_otherwise_or_got_on(
    states: str, crashes: int
) -> None:
    made, at = [], datetime.now(UTC)
    for each in states.split():
        kind, _, seconds = each.partition("=")
        made.append(State[None](type=StateType(kind), timestamp=at))  # type: ignore[arg-type]
        at += timedelta(seconds=float(seconds or 1))
    assert crashes_in_a_row(made) == crashes
