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
    figure_15,
    figure_16,
    figure_17,
    table_2,
    table_3,
)
from trimtab.models.studies.variants import (
    KL_COEFS,
    ROUND_ARMS,
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


def test_figure_17_holds_rounds_against_ppo_on_the_reward_model_as_it_is(run: Run) -> None:
    roles: dict[str, Any] = {}
    for number in (1, 2):
        roles |= policy(f"plain_{number}", 0.0, [0.0, 5.0])
        roles |= policy(f"meta_{number}", 0.3, [0.0, float(number)])
    assert all(figure_17(run(roles)).checks.values())
    fallen = policy("meta_2", 0.3, [0.0, 6.0], score=[1.0, 0.0])
    assert not any(figure_17(run({**roles, **fallen})).checks.values())


def _nets(**by_arm: list[float]) -> dict[str, Any]:
    return {
        f"judge_{arm}_{number}": judged(net)
        for arm, nets in by_arm.items()
        for number, net in enumerate(nets, start=1)
    }


def test_table_2_holds_rounds_against_as_many_without_metarm(run: Run) -> None:
    flat = {name: [0.1, 0.2, 0.2] for name in ROUND_ARMS}
    reading = table_2(run(_nets(**{**flat, "meta": [0.2, 0.4, 0.3]})))
    assert all(reading.checks.values())
    assert reading.table["MetaRM, round 2"]["net"] == pytest.approx(0.4)
    assert reading.plots[0].series["eta 0"] == ([1.0, 2.0, 3.0], pytest.approx([0.1, 0.2, 0.2]))
    worse = table_2(run(_nets(**{**flat, "meta": [0.0, -0.1, 0.1]})))
    assert not any(worse.checks.values())


def test_table_3_and_figure_15_hold_against_ppo_of_as_many_steps(run: Run) -> None:
    roles = {
        f"judge_meta_{number}": {
            "judgement.json": {
                "main_gold": {"win": 0, "tie": 0, "lose": 0, "net": net},
                "validation_annotators": {"net": validated},
            }
        }
        for number, (net, validated) in enumerate([(0.4, 0.1), (0.3, 0.2)], start=1)
    }
    roles |= {"versus_plain_2": judged(0.1), "versus_eta_0_2": judged(-0.1)}
    best = table_3(run(roles))
    # The second is best on the validation prompts, whatever the main ones say.
    assert [row["net"] for row in best.table.values()] == pytest.approx([0.3, 0.1, -0.1])
    assert list(best.checks.values()) == [True, True, False]
    # The last round of two, on the held-out family's prompts.
    verdicts = {"judge_adapted_meta_1": 0.0, "judge_adapted_meta_2": 0.2}
    verdicts |= {"versus_adapted_plain_2": -0.1, "versus_adapted_eta_0_2": 0.1}
    adapted = {
        role: {"judgement.json": {"held_out_gold": {"win": 0, "tie": 0, "lose": 0, "net": net}}}
        for role, net in verdicts.items()
    }
    assert list(figure_15(run(roles | adapted)).checks.values()) == [True, False, True, True]


def test_figure_16_looks_outside_the_meta_set_and_at_training_without_the_ascent(run: Run) -> None:
    def spread(after: list[float]) -> dict[str, Any]:
        rows = [{"set": "held_out", "before": 1.0, "after": value} for value in after]
        return {"spreads.jsonl": [{"set": "meta", "before": 9.0, "after": 9.0}, *rows]}

    roles = {
        "meta_rm_eta_0_1": spread([2.0, 2.0]),
        "meta_rm_meta_1": spread([4.0, 2.0]),
        "meta_rm_meta_kept_1": spread([4.0, 4.0]),
    }
    reading = figure_16(run(roles))
    means = [row["mean difference / the largest"] for row in reading.table.values()]
    assert means == [0.25, 0.5, 0.75, 1.0]
    assert all(reading.checks.values())
    shares = reading.plots[0].series["after, MetaRM"][1]
    assert (shares[5], shares[9]) == (50, 50)
    no_more = figure_16(run(roles | {"meta_rm_eta_0_1": spread([3.0, 3.0])}))
    assert list(no_more.checks.values()) == [True, False]


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

    better = {"given": 0.1, "flipped": 0.2, "flipped_smoothed": 0.3}
    reading = denoised_policies(
        run(roles(better, {"given": False, "flipped": True, "flipped_smoothed": True}))
    )
    assert all(reading.checks.values())
    assert reading.table["flip, KL coefficient 0.1"]["net"] == pytest.approx(0.2)
    worse = {"given": 0.1, "flipped": 0.0, "flipped_smoothed": 0.1}
    none = denoised_policies(run(roles(worse, dict.fromkeys(worse, True))))
    assert not any(none.checks.values())
