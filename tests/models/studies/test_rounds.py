"""MetaRM's rounds by hand: each claim shown, and its contrary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, score, truth
from tests.models.studies.policies_by_hand import judged, policy
from trimtab.models.studies.rounds import (
    SPREAD,
    figure_15,
    figure_16,
    figure_17,
    meta_updates,
    table_2,
    table_3,
)
from trimtab.models.studies.variants import META_UPDATES, ROUND_ARMS


def test_figure_17_holds_rounds_against_ppo_on_the_reward_model_as_it_is(run: Run) -> None:
    roles: dict[str, Any] = {}
    for number in (1, 2):
        roles |= policy(f"plain_{number}", 0.1 * number, [0.0, 5.0 * number])
        roles |= policy(f"meta_{number}", 0.2, [0.0, 2.0 * number])
        kl, coefs = [0.0, 2.0 * number], [0.2, 0.1 * number]
        roles |= policy(f"dynamic_meta_{number}", 0.3, kl, kl_coef=coefs)
    # Lowered alone, or back at .2, the coefficient held nothing.
    assert list(figure_17(run(roles)).checks.values()) == [True, True, None]
    roles |= policy("dynamic_meta_2", 0.3, [0.0, 4.0], kl_coef=[0.2, 0.3])
    reading = figure_17(run(roles))
    assert all(reading.checks.values())
    row = reading.table["MetaRM, dynamic KL penalty, round 2"]
    assert (row["KL target, nats"], row["last KL coefficient"]) == (0.2, 0.3)
    assert reading.table["MetaRM, dynamic KL penalty, round 2"]["net"] == pytest.approx(0.3)
    line = reading.plots[-1].series["reward model as it is"]
    assert line == ([5.0, 10.0], pytest.approx([0.1, 0.2]))
    fallen = policy("meta_2", 0.3, [0.0, 16.0], score=[1.0, 0.0])
    for number in (1, 2):
        fallen |= policy(f"dynamic_meta_{number}", 0.0, [0.0, 2.0 * number], kl_coef=[0.2, 0.3])
    assert set(figure_17(run({**roles, **fallen})).checks.values()) == {False}


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


def test_updates_are_compared_with_as_much_training_without_them(run: Run) -> None:
    def trained(after: float, *gaps: float) -> dict[str, Any]:
        rows = [{"set": "held_out", "before": 2.0, "after": after}]
        scores = [score(f"p{number}", gap) for number, gap in enumerate(gaps)]
        return {"spreads.jsonl": rows, "scores.jsonl": scores}

    names = ("p0", "p1")
    roles: dict[str, Any] = {
        "preferences": {
            "test.jsonl": [pair(name) for name in names],
            "truth.jsonl": [truth(name, is_wrong=False) for name in names],
        }
    }
    roles |= {f"meta_rm_{name}": trained(3.0, 1.0, 1.0) for name in META_UPDATES}
    same = meta_updates(run(roles))
    assert list(same.checks.values()) == [False, True] * 3  # as far apart is not further
    assert same.table["eta 0"][SPREAD] == 1.5
    roles["meta_rm_descend"] = trained(4.0, 1.0, -1.0)
    spread = meta_updates(run(roles))
    assert list(spread.checks.values()) == [True, False, False, True, False, True]
