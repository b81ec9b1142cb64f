"""What a step launches on a GPU, and what the host waits for, stay within a budget.

Launches are those of two layers without the attention kernel's own; a library that fuses operations
may only lower them. Nothing is waited for inside a micro batch: it is built on the host, goes to
the device in one copy, and what is measured of it stays there until the step has been computed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# Of each step: the most launches, copies that nobody waits for and reads that the host waits for,
# in this order.
BUDGET: dict[str, tuple[int, list[str]]] = {
    "reward model, 2 pairs": (347, ["copy"]),
    "reward model, 40 pairs": (347, ["copy"]),
    "reward model, dropout": (359, ["copy"]),
    "reward model, bfloat16": (403, ["copy"]),
    "reward model, all terms": (875, ["copy"]),
    "sft": (315, ["copy"]),
    "dpo": (360, ["copy"]),
    # The second copy is of the rows' order.
    "log-probabilities": (124, ["copy", "copy"]),
    "scores": (95, ["copy", "copy", "wait: _to_copy"]),
    # Micro batches of the critic, the policy and the rehearsal term.
    "ppo update": (1057, ["copy", "copy", "copy"]),
    # The next step's first micro batch is there before a step's metrics are read.
    "three steps": (
        1095,
        ["copy", "copy", "wait: _to_copy", "copy", "wait: _to_copy", "wait: _to_copy"],
    ),
    # The gradient's norm, which the length of the ascent is divided by.
    "meta_rm ascent": (416, ["copy", "wait: _local_scalar_dense"]),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """In a process of its own, whose torch knows the device that is none."""
    command = [sys.executable, "-m", "tests.models.launches"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counted: dict[str, Any] = json.loads(run.stdout)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("step", BUDGET)
def test_a_step_keeps_to_its_budget(found: dict[str, Any], step: str) -> None:
    launches, events = BUDGET[step]
    assert found[step]["events"] == events
    assert sum(found[step]["launches"].values()) <= launches, found[step]["launches"]


@pytest.mark.slow
def test_launches_do_not_grow_with_rows(found: dict[str, Any]) -> None:
    few, many = (found[f"reward model, {count} pairs"]["launches"] for count in (2, 40))
    assert few == many


@pytest.mark.slow
def test_no_gradient_is_added_up_by_sorting_its_indices(found: dict[str, Any]) -> None:
    """As that of an index by a tensor is on CUDA, at 2 to 30 times the cost of `index_select`'s."""
    for step, counted in found.items():
        assert not [name for name in counted["launches"] if "index_put" in name], step
