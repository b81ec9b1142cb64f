"""Slots: never more taken than there are, by whoever takes one or many."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked import FORKED
from trimtab.infra.processes.locks import file_lock, hold_slots, pause


@pytest.mark.slow
def test_the_patient_wait_until_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PATIENCE_SECONDS", 0.1), ("_LAST_PATIENCE_SECONDS", 0.2)):
        monkeypatch.setattr(f"trimtab.infra.processes.locks.{name}", seconds)
    slots = [tmp_path / f"slot-{index}" for index in range(2)]
    order: list[str] = []

    def hold(name: str, count: int, is_patient: bool) -> None:
        with hold_slots(slots, count, is_patient=is_patient):
            order.append(name)
            time.sleep(0.2)

    with hold_slots(slots, 1):  # one slot is free, but two are asked for
        waiting = [("patient", 1, True), ("wide", 2, False), ("patient too", 1, True)]
        threads = [threading.Thread(target=hold, args=each) for each in waiting]
        threads[1].start()
        time.sleep(0.2)
        threads[0].start()
        threads[2].start()
        time.sleep(0.3)
        assert order == []
    for thread in threads:
        thread.join(timeout=60)
    assert order[0] == "wide" and sorted(order[1:]) == ["patient", "patient too"]


@pytest.mark.slow
@pytest.mark.parametrize("is_patient", [False, True])
def test_who_gives_up_waiting_leaves_everything_to_others(tmp_path: Path, is_patient: bool) -> None:
    slots = [tmp_path / f"slot-{index}" for index in range(3)]
    tries = 0

    def wait() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            raise InterruptedError

    with (
        hold_slots(slots, 2),
        pytest.raises(InterruptedError),
        hold_slots(slots, 2, is_patient=is_patient, wait=wait),
    ):
        raise AssertionError("two were to be held by another")
    assert tries == 3
    with hold_slots(slots, 2, is_patient=True) as held:  # nobody is taken to wait any more
        assert held == slots[1:]


@pytest.mark.slow
def test_the_patient_leave_no_slot_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last is taken after longer, and not while somebody waits."""
    for name, seconds in (("_PATIENCE_SECONDS", 0.2), ("_LAST_PATIENCE_SECONDS", 1.0)):
        monkeypatch.setattr(f"trimtab.infra.processes.locks.{name}", seconds)
    slots = [tmp_path / f"slot-{index}" for index in range(2)]
    held: list[tuple[str, Path]] = []
    may_end = threading.Event()

    def hold(name: str, count: int, is_patient: bool) -> None:
        with hold_slots(slots, count, is_patient=is_patient) as paths:
            held.extend((name, path) for path in paths)
            may_end.wait()

    def start(name: str, count: int, is_patient: bool) -> threading.Thread:
        thread = threading.Thread(target=hold, args=(name, count, is_patient))
        thread.start()
        return thread

    begun = time.monotonic()
    threads = [start("patient", 1, True) for _ in range(3)]
    while len(held) < 2 and time.monotonic() - begun < 30:
        time.sleep(0.02)
    assert sorted(held) == [("patient", slot) for slot in slots]
    assert time.monotonic() - begun >= 1.0
    threads.append(start("ready", 2, False))
    time.sleep(1.0)
    may_end.set()
    for thread in threads:
        thread.join(timeout=60)
    assert [name for name, _ in held[2:]] == ["ready", "ready", "patient"]


def test_holders_of_one_and_of_many_never_exceed_the_slots(tmp_path: Path) -> None:
    slots = [tmp_path / f"slot-{index}" for index in range(3)]
    taken, most, ended = 0, 0, []
    guard = threading.Lock()

    def hold(count: int) -> None:
        nonlocal taken, most
        for _ in range(3):
            with hold_slots(slots, count):
                with guard:
                    taken += count
                    most = max(most, taken)
                time.sleep(0.01)
                with guard:
                    taken -= count
        ended.append(count)

    threads = [threading.Thread(target=hold, args=(count,)) for count in (1, 1, 2, 2, 3, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(ended) == [1, 1, 2, 2, 3, 3]
    assert most == 3


@pytest.mark.slow
@pytest.mark.parametrize("is_patient", [False, True])
def test_who_waits_for_a_key_does_not_keep_its_holder_from_a_slot(
    tmp_path: Path, is_patient: bool
) -> None:
    has_key, is_waited_for = FORKED.Event(), FORKED.Event()
    processes = [
        FORKED.Process(target=each, args=(tmp_path, is_patient, has_key, is_waited_for))
        for each in (_first, _second)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0, 0]


def _first(folder: Path, is_patient: bool, has_key: Any, is_waited_for: Any) -> None:
    with file_lock(folder / "key.lock"):
        has_key.set()
        is_waited_for.wait()
        _take_a_slot(folder, is_patient)


def _second(folder: Path, is_patient: bool, has_key: Any, is_waited_for: Any) -> None:
    def wait() -> None:
        is_waited_for.set()
        pause()

    has_key.wait()
    with file_lock(folder / "key.lock", wait):
        _take_a_slot(folder, is_patient)


def _take_a_slot(folder: Path, is_patient: bool) -> None:
    with hold_slots([folder / f"slot-{index}" for index in range(2)], 1, is_patient=is_patient):
        pass
