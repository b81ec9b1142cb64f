"""Sweeps on validation data written down by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.models.studies.conftest import Run, score
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.advantage_model import figure_6
from trimtab.models.studies.constants import NLL, SPREAD, read_sweep


def _scorer(*gaps: float) -> dict[str, Any]:
    rows = [score(f"v{n}", gap, "validation") for n, gap in enumerate(gaps)]
    return {"scores.jsonl": [*rows, score("e0", -9.0)]}


def test_scorers_are_compared_by_likelihood_on_validation_pairs(run: Run) -> None:
    roles = {
        "scorer_smoothing_0": _scorer(0.0, 0.0),
        "scorer_smoothing_0.2_recipe": _scorer(1.0, -1.0),
        "scorer_margin_clip_1_recipe": _scorer(5.0),
    }
    reading = read_sweep("smoothing", run(roles))
    # -log sigmoid(0) = log 2; the mean for 1 and -1 is .5 + log(1 + 1/e) = .8133.
    found = {row: columns[NLL] for row, columns in reading.table.items()}
    assert found == {
        "0": pytest.approx(math.log(2)),
        "0.2 (recipe)": pytest.approx(0.5 + math.log(1 + math.exp(-1))),
    }
    assert list(reading.checks.values()) == [False]


def test_meta_rm_is_measured_by_what_it_spreads_apart_too(run: Run) -> None:
    def trained(after: float) -> dict[str, Any]:
        spreads = [{"before": 1.0, "after": 0.0}, {"before": 3.0, "after": after}]
        return {**_scorer(0.0), "spreads.jsonl": spreads}

    roles = {"scorer_meta_step_0": trained(4.0), "scorer_meta_step_0.5_recipe": trained(8.0)}
    table = read_sweep("meta-step", run(roles)).table
    assert [row[SPREAD] for row in table.values()] == [1.0, 2.0]


def _judged(net: float) -> dict[str, Any]:
    verdict = {"win": net, "tie": 1 - net, "lose": 0.0, "net": net}
    names = ("validation_annotators", "main_gold", "forget_gold")
    return {"judgement.json": dict.fromkeys(names, verdict)}


def _policies(*nets: float) -> dict[str, dict[str, Any]]:
    roles: dict[str, dict[str, Any]] = {}
    for value, net in zip((5, 10, 20), nets, strict=True):
        name = f"num_clusters_{value}{'_recipe' * (value == 10)}"
        rows = [{"set": place, "kl": 1.0, "length": 3} for place in ("validation", "main")]
        roles |= {
            f"policy_{name}": {},
            f"eval_{name}": {"responses.jsonl": rows},
            f"judge_{name}": _judged(net),
        }
    return roles


def test_policies_are_compared_by_annotators(run: Run) -> None:
    reading = read_sweep("num-clusters", run(_policies(0.1, 0.3, 0.32)))
    assert list(reading.table) == ["5", "10 (recipe)", "20"]
    assert list(reading.checks.values()) == [True]  # .02 less than the best


def test_figure_6_says_how_far_apart_they_are(run: Run) -> None:
    assert not all(figure_6(run(_policies(0.1, 0.3, 0.32))).checks.values())


def test_values_are_sorted_as_numbers(run: Run) -> None:
    roles = {f"scorer_meta_step_{name}": {} for name in ("0.0005", "5e-06_recipe", "0")}
    assert list(run(roles).swept("scorer_meta_step_")) == [0.0, 5e-6, 5e-4]


def test_one_value_must_be_the_recipes(run: Run) -> None:
    with pytest.raises(ReportInputError, match="must be the recipe's"):
        read_sweep("smoothing", run({"scorer_smoothing_0": _scorer(0.0)}))
