"""What the chaos command and the command of malformed bodies take for a fault."""

from __future__ import annotations

import fcntl
import random
from pathlib import Path
from typing import cast

import pytest

from tests.flows.running_stack import Running
from tests.tools.chaos import CHECKS, LOCKS, VICTIMS, Batch, Chaos, _locked, _tables
from tests.tools.malformed_bodies import AROUND, TOGETHER, Answer, Body


def _chaos(seed: int = 0) -> Chaos:
    return Chaos(cast(Running, None), random.Random(seed), 10, Path())


def test_every_kind_of_victim_has_its_turn_in_the_order_of_the_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        chaos = _chaos(seed)
        turns = [chaos.next_kind() for _ in range(2 * len(VICTIMS))]
        assert {*turns[: len(VICTIMS)]} == {*turns[len(VICTIMS) :]} == VICTIMS.keys()
        orders.append(turns)
    assert orders[0] == orders[1] != orders[2]


def test_a_lock_that_is_held_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "worker-1" / "work" / ".locks"
    folder.mkdir(parents=True)
    (folder / "free.lock").touch()
    with (folder / "held.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        (found,) = _locked(tmp_path)
    assert "held.lock" in found
    assert list(_locked(tmp_path)) == []


def test_the_table_has_every_kill_and_every_fault() -> None:
    chaos = _chaos()
    chaos.batches = [Batch(0, seconds=60.0), Batch(1, seconds=61.0, num_faults=2)]
    chaos.batches[0].kills.update({"S3": 2, "worker": 1})
    chaos.batches[1].kills.update({"S3": 1})
    chaos.findings.add(LOCKS, ["a", "b"], 3)
    table = _tables(chaos)
    assert "| 0 | 1 worker, 2 S3 | 60 | 0 |" in table
    assert "| all | 4: 1 worker, 3 S3 | 121 | 2 |" in table
    assert f"| {LOCKS} | 3 | 2 |" in table
    assert all(check in table for check in CHECKS)


@pytest.mark.parametrize(
    ("kind", "answer", "outcome", "is_fault"),
    [
        (TOGETHER, (409, ""), "refused", False),
        (TOGETHER, (503, ""), "server's error", False),
        (TOGETHER, (201, "", "FAILED", 9.9, 0), "failed in time", False),
        (TOGETHER, (201, "", "FAILED", 10.1, 0), "failed late", True),
        (TOGETHER, (201, "", "FAILED", 9.9, 1), "failed late", True),
        (TOGETHER, (201, "", "RUNNING", 60.0, 3), "not refused", True),
        (TOGETHER, (201, "", "COMPLETED", 60.0, 3), "not refused", True),
        (AROUND, (201, "", "COMPLETED", 60.0, 3), "ran well", False),
        (AROUND, (201, "", "RUNNING", 900.0, 3), "not refused", True),
    ],
)
def test_what_becomes_of_a_body(
    kind: str, answer: tuple[int, str, str, float, int], outcome: str, is_fault: bool
) -> None:
    found = Answer(Body(kind, "rlhf", "", b""), *answer)
    assert (found.outcome, found.is_fault) == (outcome, is_fault)
