"""Exhibits of labels by how often they are wrong, on scores written down by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, score, truth
from trimtab.models.studies.label_noise import (
    CLEAR,
    ERROR,
    LOSS,
    OURS,
    SCORERS,
    WRONG,
    label_noise,
    label_noise_by_difficulty,
)
from trimtab.models.studies.measures import RIGHT
from trimtab.models.studies.variants import NOISE_TREATMENTS

# Four test pairs of right labels.
TESTS = {"test.jsonl": [pair(f"e{n}") for n in range(4)]}


def _roles(best: set[str], low: float = 0.1) -> dict[str, Any]:
    """Every scorer orders one pair wrongly, at gaps of 2, but the best, which are right at 1.

    Of five training pairs one is a near-tie; of the clear ones a quarter is wrong.
    """
    truths = [truth(f"t{n}", n in (0, 4), "ambiguous" if n == 4 else "clear") for n in range(5)]
    truths += [truth(f"e{n}", False) for n in range(4)]
    roles: dict[str, Any] = {"preferences": {**TESTS, "truth.jsonl": truths}}
    summary = {"share_wrong": 0.2, "share_wrong_low": low, "share_wrong_high": 0.3}
    for name in NOISE_TREATMENTS:
        rows = [{"id": f"t{n}", "label": 1.25} for n in range(5)]
        roles[f"pairs_{name}"] = {"train.jsonl": rows, "summary.json": summary}
        for role in SCORERS:
            gaps = [3.0] * 4 if name in best else [-2.0, 2.0, 2.0, 2.0]
            roles[f"{role}_{name}"] = {
                "scores.jsonl": [score(f"e{n}", gap) for n, gap in enumerate(gaps)]
            }
    return roles


def test_ours_are_held_against_the_recipe(run: Run) -> None:
    reading = label_noise(run(_roles({*OURS})))
    assert len(reading.checks) == 1 + 2 * 9 and all(reading.checks.values())
    labels = reading.table["labels"]
    assert labels[WRONG] == 0.4 and labels[CLEAR] == 0.25
    row = reading.table["Advantage Model, flip, all smoothed, by the recipe's vote"]
    assert row[RIGHT] == 0.75 and row["mean label"] == 1.25
    # Confidence .881 at accuracy .75; losses of gaps 2, thrice, and -2.
    sure = 1 / (1 + math.exp(-2))
    assert row[ERROR] == pytest.approx(sure - 0.75)
    assert row[LOSS] == pytest.approx(-(3 * math.log(sure) + math.log(1 - sure)) / 4)
    best = reading.table["reward model, posterior labels"]
    assert best[RIGHT] == 1.0 and best[ERROR] == pytest.approx(1 / (1 + math.exp(3)))
    assert len(reading.plots) == 2


def test_what_is_no_better_is_not_said_to_be(run: Run) -> None:
    checks = label_noise(run(_roles({"recipe"}, low=0.26))).checks
    assert not any(checks.values())


def test_a_rate_by_pair_is_held_against_one_rate(run: Run) -> None:
    first = label_noise(run(_roles({"unbiased_by_pair"}))).checks
    checks = label_noise_by_difficulty(run(_roles({"unbiased_by_pair"}))).checks
    further = {words: checks[words] for words in checks.keys() - first.keys()}
    assert len(further) == 4 and all(further.values())
    assert not any(
        shown
        for words, shown in label_noise_by_difficulty(
            run(_roles({"unbiased_given"}))
        ).checks.items()
        if words in further
    )
