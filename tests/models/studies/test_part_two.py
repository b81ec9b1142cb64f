"""Part II's figures of policies and features, by hand: each claim shown, and its contrary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, score, truth
from tests.models.studies.policies_by_hand import answered, judged, policy
from trimtab.models.studies.part_two import (
    DENOISED,
    denoised_policies,
    figure_9,
    figure_10,
    figure_11,
    figure_12,
    figure_13,
)
from trimtab.models.studies.variants import (
    KL_COEFS,
    SIMCSE_STRENGTHS,
    TREATMENTS,
    WITH_DROPOUT,
    Variant,
)

STEADY, JUMPY = [0.0, 1.0, 2.0, 3.0], [0.0, 4.0, 1.0, 6.0]


def test_figure_9_compares_denoised_with_noisy_labels(run: Run) -> None:
    def roles(kl_of_clean: list[float], kl_of_noisy: list[float]) -> dict[str, Any]:
        """A policy's perplexity is as far from 2 as its KL from 0."""
        found: dict[str, Any] = {}
        for name in TREATMENTS:
            kl = kl_of_clean if name in DENOISED else kl_of_noisy
            found |= policy(f"free_{name}", 0.0, kl, perplexity=[2 + value for value in kl])
        return found

    reading = figure_9(run(roles(STEADY, JUMPY)))
    assert all(reading.checks.values())
    # The second half of 2, 3, 4, 5 is 4 and 5: half a unit from their mean.
    row = reading.table["flip"]
    assert row["spread of perplexity"] == pytest.approx(0.5)
    assert row["unevenness of KL"] == pytest.approx(0.0, abs=1e-12)
    assert not any(figure_9(run(roles(JUMPY, STEADY))).checks.values())


def _against(names: dict[str, Variant], nets: dict[str, float]) -> dict[str, Any]:
    roles: dict[str, Any] = {f"judge_free_{name}": judged(0.2) for name in names}
    return roles | {f"versus_free_{name}": judged(net) for name, net in nets.items()}


def test_figure_10_wants_all_four_to_win(run: Run) -> None:
    nets = dict.fromkeys((name for name in TREATMENTS if name != "baseline"), 0.1)
    reading = figure_10(run(_against(TREATMENTS, nets)))
    assert all(reading.checks.values())
    assert reading.table["flip"]["net, against the baseline"] == pytest.approx(0.1)
    assert reading.table["baseline"]["tie, against the baseline"] == 1.0
    assert not any(figure_10(run(_against(TREATMENTS, nets | {"flip": 0.0}))).checks.values())


def test_figure_13_wants_most_to_win_and_simcse_on_pairs_to_be_first(run: Run) -> None:
    nets = {"simcse_pairs": 0.3, "simcse_differences": 0.1, "swav_pairs": 0.2}
    nets["swav_differences"] = -0.1
    assert all(figure_13(run(_against(WITH_DROPOUT, nets))).checks.values())
    nets |= {"simcse_differences": -0.1, "swav_pairs": 0.4}
    assert not any(figure_13(run(_against(WITH_DROPOUT, nets))).checks.values())


@pytest.mark.parametrize(
    ("ours", "theirs", "held"), [(STEADY, JUMPY, True), (JUMPY, STEADY, False)]
)
def test_figure_12_compares_how_evenly_scores_grow(
    run: Run, ours: list[float], theirs: list[float], held: bool
) -> None:
    roles: dict[str, Any] = {}
    for name in WITH_DROPOUT:
        score = theirs if name == "dropout" else ours
        roles |= policy(f"free_{name}", 0.0, [0.0] * 4, score=score)
    reading = figure_12(run(roles))
    assert list(reading.checks.values()) == [held]
    steady = "SimCSE, pairs" if held else "dropout alone"
    assert reading.table[steady]["unevenness of the score"] == pytest.approx(0.0, abs=1e-12)


def test_figure_11_holds_cosines_between_labels_against_those_within(run: Run) -> None:
    def features(mixing: float, between: float, within: float) -> dict[str, Any]:
        found = {"mixing": mixing, "pair": 0.5, "between": between, "within": within}
        rows = [{"is_chosen": flag, "x": 0.0, "y": y} for flag, y in ((True, 2.0), (False, 1.0))]
        given = dict.fromkeys(found, 0.0)
        return {"overlap.json": {"given": given, "right": found}, "features.jsonl": rows}

    def roles(strongest: dict[str, Any]) -> dict[str, Any]:
        found = {f"features_scorer_{name}": features(0.9, 0.9, 0.9) for name in SIMCSE_STRENGTHS}
        pairs = {"preferences": {"test.jsonl": [pair("p")], "truth.jsonl": [truth("p", False)]}}
        scored = {
            f"scorer_{name}": {"scores.jsonl": [score("p", 1.0)]} for name in SIMCSE_STRENGTHS
        }
        return found | pairs | scored | {"features_scorer_simcse_1": strongest}

    reading = figure_11(run(roles(features(0.4, 0.2, 0.6))))
    assert all(reading.checks.values())
    row = reading.table["SimCSE, beta 1"]
    assert (row["overlap of neighbours"], row["accuracy, right labels"]) == (0.4, 1.0)
    assert reading.plots[1].series == {"chosen": ([0.0], [2.0]), "rejected": ([0.0], [1.0])}
    # A wider cone, in which labels lie no further apart for the spread of one: (.2 - .2) / .8.
    wider = figure_11(run(roles(features(0.95, 0.2, 0.2)))).checks
    assert list(wider.values()) == [False, False, True]


def test_denoised_policies_are_read_at_equal_kl(run: Run) -> None:
    def roles(nets: dict[str, float], right: dict[str, bool]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "preferences": {"test.jsonl": [pair("p")], "truth.jsonl": [truth("p", False)]}
        }
        for name, net in nets.items():
            gap = 1.0 if right[name] else -1.0
            found[f"scorer_{name}"] = {"scores.jsonl": [score("p", gap)]}
            for coef in KL_COEFS:
                found[f"eval_{name}_{coef:g}"] = answered(2 - 5 * coef)
                found[f"judge_{name}_{coef:g}"] = judged(net)
        return found

    better = {"given": 0.1, "flipped": 0.2, "flipped_smoothed": 0.3, "posterior": 0.4}
    reading = denoised_policies(
        run(roles(better, {"given": False, **dict.fromkeys(list(better)[1:], True)}))
    )
    assert all(reading.checks.values())
    assert reading.table["flip, KL coefficient 0.1"]["net"] == pytest.approx(0.2)
    worse = {"given": 0.1, "flipped": 0.0, "flipped_smoothed": 0.1, "posterior": 0.1}
    none = denoised_policies(run(roles(worse, dict.fromkeys(worse, True))))
    assert not any(none.checks.values())
