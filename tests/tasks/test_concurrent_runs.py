"""Many runs at once whose stages overlap: each is computed once, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.forked import FORKED
from tests.tasks.toy_stage import count, make_context
from trimtab.tasks.execution import StageContext

RUNS, STAGES, OF_ALL = 20, 4, 8
SECONDS = 120.0  # far beyond what they need


def _run(number: int, root: Path, folder: Path) -> None:
    """One run: some of the stages in an order of its own, every second time patiently."""
    os.environ["PYTHONPATH"] = str(root)  # where its trainers find the toy's package
    chance = random.Random(number)
    context = make_context(root, folder)
    found = []
    for total in chance.sample(range(1, OF_ALL + 1), STAGES):
        result = count(context, total=total, is_patient=chance.random() < 0.5)
        found.append((total, result.ref.digest, result.cached))
    (folder / f"run-{number}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_twenty_runs_of_overlapping_stages_compute_each_once(
    context: StageContext, trainers: Path, tmp_path: Path
) -> None:
    runs = [
        FORKED.Process(target=_run, args=(number, trainers, tmp_path)) for number in range(RUNS)
    ]
    for run in runs:
        run.start()
    deadline = time.monotonic() + SECONDS
    for run in runs:
        run.join(timeout=max(0.0, deadline - time.monotonic()))
    ended = [run.exitcode for run in runs]
    for run in runs:
        run.kill()
    assert ended == [0] * RUNS
    found = [each for path in tmp_path.glob("run-*.json") for each in json.loads(path.read_text())]
    computed = Counter(total for total, _, cached in found if not cached)
    assert computed == dict.fromkeys({total for total, _, _ in found}, 1)
    assert len({(total, digest) for total, digest, _ in found}) == len(computed)
