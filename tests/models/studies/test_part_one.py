"""Part I's figures on a few steps written down by hand: each claim shown, and its contrary."""

from __future__ import annotations

import pytest

from tests.models.studies.conftest import Run
from tests.models.studies.policies_by_hand import policy
from trimtab.models.studies.part_one import figure_4, figure_6, figure_7
from trimtab.models.studies.part_one import figure_8 as starts
from trimtab.models.studies.variants import CONSTRAINTS, SCORES, STARTS

NET = "net"


def test_figure_4_sees_over_optimisation(run: Run) -> None:
    collapsed = policy("vanilla", 0.0, [0.0, 1.0, 3.0], perplexity=[4.0, 3.0, 2.0])
    reading = figure_4(run(collapsed))
    assert all(reading.checks.values())
    # The score goes from 0 to 2, and its spread is 2.
    row = reading.table["vanilla PPO"]
    assert (row["score gained, spreads"], row["KL, nats"], row["perplexity"]) == (1.0, 3.0, 2.0)
    healthy = policy("vanilla", 0.3, [0.0, 0.5, 1.0], score=[2.0, 1.0, 0.0])
    assert not any(figure_4(run(healthy)).checks.values())


def _by_kl(kl: dict[str, float], nets: dict[str, float]) -> dict[str, dict[str, object]]:
    return {
        role: files
        for name, last in kl.items()
        for role, files in policy(name, nets.get(name, 0.0), [0.0, last]).items()
    }


def test_figure_6_compares_where_runs_end(run: Run) -> None:
    kl = dict.fromkeys(SCORES, 1.0) | {"vanilla": 5.0, "normalised_clip_30": 0.5}
    reading = figure_6(run(_by_kl(kl, {})))
    assert list(reading.checks.values()) == [True, True, True]
    assert reading.table["raw scores"]["KL, nats"] == 5.0
    assert reading.table["the same, clipped at .3"]["KL, nats"] == 0.5
    kl |= {"normalised_clip_80": 6.0, "advantage_clip_12": 5.0, "normalised_clip_30": 7.0}
    assert list(figure_6(run(_by_kl(kl, {}))).checks.values()) == [False, False, False]


def test_figure_7_wants_less_kl_the_more_it_costs(run: Run) -> None:
    kl = {"vanilla": 5.0, "kl_05": 3.0, "kl_10": 2.0, "kl_20": 1.0}
    kl |= {"importance": 4.0, "importance_kl_05": 2.5, "entropy": 6.0}
    nets = {"kl_05": 0.1, "kl_10": 0.2, "kl_20": 0.3, "entropy": 0.3}
    reading = figure_7(run(_by_kl(kl, nets)))
    assert list(reading.table) == [each.label for each in CONSTRAINTS.values()]
    assert all(reading.checks.values())
    assert reading.table["entropy bonus"][NET] == pytest.approx(0.3)
    kl |= {"kl_20": 2.5, "importance_kl_05": 4.5}
    nets |= {"kl_05": -0.1, "entropy": 0.4}
    assert not any(figure_7(run(_by_kl(kl, nets))).checks.values())


def test_figure_8_compares_starts(run: Run) -> None:
    kl = dict.fromkeys(STARTS, 1.0)
    alike = {"ppo_max_rm": 0.3, "critic_scorer": 0.25, "critic_policy": 0.21, "without_sft": -0.5}
    assert all(starts(run(_by_kl(kl, alike))).checks.values())
    apart = alike | {"critic_policy": 0.1, "without_sft": 0.1}
    assert not any(starts(run(_by_kl(kl, apart))).checks.values())
