"""Part II's figures of policies and features, by hand: each claim shown, and its contrary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run
from tests.models.studies.policies_by_hand import judged, policy
from trimtab.models.studies.part_two import (
    DENOISED,
    WITH_BASELINE,
    figure_9,
    figure_10,
    figure_11,
    figure_12,
    figure_13,
    figure_17,
)
from trimtab.models.studies.variants import TREATMENTS, Variant

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
    assert all(figure_13(run(_against(WITH_BASELINE, nets))).checks.values())
    nets |= {"simcse_differences": -0.1, "swav_pairs": 0.4}
    assert not any(figure_13(run(_against(WITH_BASELINE, nets))).checks.values())


@pytest.mark.parametrize(
    ("ours", "theirs", "held"), [(STEADY, JUMPY, True), (JUMPY, STEADY, False)]
)
def test_figure_12_compares_how_evenly_scores_grow(
    run: Run, ours: list[float], theirs: list[float], held: bool
) -> None:
    roles: dict[str, Any] = {}
    for name in WITH_BASELINE:
        score = theirs if name == "baseline" else ours
        roles |= policy(f"free_{name}", 0.0, [0.0] * 4, score=score)
    reading = figure_12(run(roles))
    assert list(reading.checks.values()) == [held]
    steady = "SimCSE, pairs" if held else "baseline"
    assert reading.table[steady]["unevenness of the score"] == pytest.approx(0.0, abs=1e-12)


def test_figure_11_measures_how_answers_mix(run: Run) -> None:
    def features(mixed: float, scores: tuple[float, float]) -> dict[str, Any]:
        rows = [
            {"is_chosen": flag, "score": score, "mixed": mixed, "x": 0.0, "y": score}
            for flag, score in zip((True, False), scores, strict=True)
        ]
        return {"features.jsonl": rows}

    apart = {
        "features_scorer_baseline": features(0.9, (1.0, 2.0)),
        "features_scorer_simcse_pairs": features(0.4, (2.0, 1.0)),
    }
    reading = figure_11(run(apart))
    assert all(reading.checks.values())
    assert list(reading.table["baseline"].values()) == [0.9, 0.0]
    assert list(reading.table["with SimCSE"].values()) == [0.4, 1.0]
    assert reading.plots[1].series == {"chosen": ([0.0], [2.0]), "rejected": ([0.0], [1.0])}
    together = apart | {"features_scorer_simcse_pairs": features(0.95, (2.0, 1.0))}
    assert not any(figure_11(run(together)).checks.values())


def test_figure_17_holds_rounds_against_vanilla_ppo(run: Run) -> None:
    vanilla = policy("vanilla", 0.0, [0.0, 5.0])
    first, second = policy("full", 0.3, [0.0, 1.0]), policy("round_2", 0.3, [0.0, 2.0])
    roles = {**vanilla, **first, **second, "judge_round_2_sft": judged(0.3)}
    assert all(figure_17(run(roles)).checks.values())
    fallen = policy("round_2", 0.3, [0.0, 6.0], score=[1.0, 0.0])
    assert not any(figure_17(run({**roles, **fallen})).checks.values())
