"""Slots: never more taken than there are, by whoever takes one or many."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from infra.locks import some_of


def test_holders_of_one_and_of_many_never_exceed_the_slots(tmp_path: Path) -> None:
    slots = [tmp_path / f"slot-{index}" for index in range(3)]
    taken, most, ended = 0, 0, []
    guard = threading.Lock()

    def hold(count: int) -> None:
        nonlocal taken, most
        for _ in range(3):
            with some_of(slots, count):
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
