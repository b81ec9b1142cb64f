"""Waiting: what a Retry-After says, doubling waits, a gate that all wait at."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from trimtab.models.judge.client import AbandonedError, Gate, backoff, is_retried, retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", None),
        ("0", None),
        ("nan", None),
        ("soon", None),
        ("Sun, 01 Mar 2026 12:01:30 GMT", 90.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", None),
        ("Sun, 01 Mar 99999999999 11:00:00 GMT", None),
        (format_datetime(NOW + timedelta(hours=1)), 3600.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


def test_waits_double_up_to_the_longest_and_half_of_each_is_chance() -> None:
    for attempt, whole in enumerate([0.5, 1.0, 2.0, 4.0, 5.0, 5.0], start=1):
        waits = [backoff(attempt, 0.5, 5.0) for _ in range(300)]
        assert whole / 2 <= min(waits) < 0.6 * whole < 0.9 * whole < max(waits) <= whole
    assert backoff(100_000, 0.5, 5.0) <= 5.0


def test_which_statuses_may_pass() -> None:
    assert [status for status in range(300, 600) if is_retried(status)] == [
        *(408, 409, 429),
        *range(500, 600),
    ]


def test_a_gate_that_two_close_at_once_stays_closed_for_the_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is told to wait 5 s, another, while the first looks at the clock, 10,000."""
    gate = Gate()

    def clock() -> float:
        monkeypatch.undo()
        gate.close_for(10_000)
        return time.monotonic()

    monkeypatch.setattr("trimtab.models.judge.client.time.monotonic", clock)
    gate.close_for(5)
    assert gate._opens_at > time.monotonic() + 5000


def test_a_closed_gate_lets_nobody_through_before_the_caller_goes() -> None:
    gate = Gate()
    gate.check()
    gate.close_for(10_000)
    gate.close_for(0)  # does not open it again
    passed: list[bool] = []

    def wait() -> None:
        with pytest.raises(AbandonedError):
            gate.check()
        gate.pause(10_000)
        passed.append(False)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and not passed
    gate.abandon()
    thread.join(20)
    assert passed == [False]
