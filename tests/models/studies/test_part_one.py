"""Part I's figures on a few steps written down by hand: each claim shown, and its contrary."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.models.studies.conftest import Run, pair, score, truth
from tests.models.studies.policies_by_hand import answered, judged, policy
from trimtab.models.studies.part_one import (
    EARLY as EARLY_GAIN,
)
from trimtab.models.studies.part_one import (
    LATE as LATE_GAIN,
)
from trimtab.models.studies.part_one import (
    alignment_tax,
    figure_2,
    figure_3,
    figure_4,
    figure_6,
    figure_7,
    joint_clips,
    score_distributions,
)
from trimtab.models.studies.part_one import figure_8 as starts
from trimtab.models.studies.results import SeedResult, Verdict, combine_seeds
from trimtab.models.studies.variants import (
    CONSTRAINTS,
    EARLY,
    JOINT_CLIPS,
    PTX_KL_COEFS,
    SCORES,
    STARTS,
)

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


def test_figure_6_cannot_tell_where_seeds_differ_by_more_than_half_of_the_kl(run: Run) -> None:
    """Raw scores end at 5 nats: the least that is looked for is 2.5."""

    def read(clipped: float) -> SeedResult:
        kl = dict.fromkeys(SCORES, 1.0) | {"vanilla": 5.0, "normalised_clip_80": clipped}
        return figure_6(run(_by_kl(kl, {})))

    words, clips_do, _ = read(1.0).checks
    # Less by 4, 1 and -3 nats: .67 +- 8.7. Clipped advantages by 4 in every seed.
    wide = combine_seeds({seed: read(kl) for seed, kl in enumerate((1.0, 4.0, 8.0))})
    assert wide.checks[words] == [None] * 3 and wide.checks[clips_do] == [True] * 3
    # More by .3, .4 and .5 nats: nowhere near 2.5 less.
    close = combine_seeds({seed: read(kl) for seed, kl in enumerate((5.3, 5.4, 5.5))})
    assert close.checks[words] == [False] * 3


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


def _started(nets: dict[str, float], scores: dict[str, list[float]]) -> dict[str, object]:
    """Six steps each, before which the pre-trained critic of the first is trained alone for two."""
    roles: dict[str, object] = {}
    for name in STARTS:
        alone = 2 if name == "ppo_max_rm" else 0
        kl = [0.0] * (6 + alone)
        score = [99.0] * alone + scores[name]
        roles |= policy(name, nets[name], kl, score=score, critic_steps=alone)
    return roles


def test_figure_8_compares_starts_early_and_late(run: Run) -> None:
    alike = {"ppo_max_rm": 0.3, "critic_scorer": 0.25, "critic_policy": 0.21, "without_sft": -0.5}
    rising = {name: [0.0, 2.0, 4.0, 4.0, 6.0, 8.0] for name in STARTS}
    slow = rising | {"critic_policy": [0.0, 0.0, 2.0, 4.0, 6.0, 7.0]}
    reading = starts(run(_started(alike, slow)))
    assert all(reading.checks.values())
    # Thirds are of two steps, in spreads of 2: (0 + 1) / 2 and (3 + 4) / 2.
    row = reading.table["critic: reward model, pre-trained"]
    assert (row[EARLY_GAIN], row[LATE_GAIN]) == (0.5, 3.5)
    late = rising | {"critic_policy": [0.0, 2.0, 2.0, 2.0, 2.0, 2.0]}
    apart = alike | {"critic_policy": 0.1, "without_sft": 0.1}
    assert not any(starts(run(_started(apart, late))).checks.values())


def _early(run: Run, right: dict[str, int], nets: dict[str, float]) -> Mapping[str, Verdict]:
    """Of twenty test pairs so many ordered rightly by each reward model; their policies."""
    rows = [str(number) for number in range(20)]
    roles: dict[str, dict[str, object]] = {
        "preferences": {
            "test.jsonl": [pair(row) for row in rows],
            "truth.jsonl": [truth(row, False) for row in rows],
        }
    }
    for name in EARLY:
        gaps = [score(row, 1.0 if int(row) < right[name] else -1.0) for row in rows]
        roles |= {
            f"scorer_{name}": {"scores.jsonl": gaps},
            f"eval_{name}": answered(),
            f"judge_{name}": judged(nets[name]),
        }
    return figure_3(run(roles)).checks


def test_figure_3_compares_accuracy_and_what_ppo_makes_of_it(run: Run) -> None:
    right = dict.fromkeys(EARLY, 12) | {"pairs_800": 18, "raw": 18}
    assert all(_early(run, right, dict.fromkeys(EARLY, 0.1) | {"raw": 0.3}).values())
    right |= {"pairs_800": 17}
    nets = dict.fromkeys(EARLY, 0.1) | {"pairs_400": 0.3, "raw": 0.3}
    assert not any(_early(run, right, nets).values())


def test_scores_beyond_those_of_sft_are_counted(run: Run) -> None:
    def scored(values: list[float]) -> dict[str, object]:
        """Two categories, of which one has scores that are higher by a thousand."""
        rows = [
            {"set": "main", "score": value + above, "category": category}
            for value in values
            for category, above in (("easy", 1000.0), ("hard", 0.0))
        ]
        return {"responses.jsonl": rows}

    start = [float(n) for n in range(101)]  # the 99th percentile is 99, 49 beyond the mean
    roles = {"eval_sft": scored(start), "eval_ppo_max_rm": scored([*[80.0] * 19, 120.0])}
    reading = score_distributions(run(roles | {"eval_vanilla": scored([120.0] * 20)}))
    assert all(reading.checks.values())
    shares = [row["share beyond SFT's 99th percentile"] for row in reading.table.values()]
    assert shares == pytest.approx([1 / 101, 0.05, 1.0])
    assert all(sum(y) > 0 for _, y in reading.plots[0].series.values())
    roles |= {"eval_ppo_max_rm": scored([20.0] * 8 + [120.0] * 2)}
    calm = roles | {"eval_vanilla": scored([20.0])}
    assert not any(score_distributions(run(calm)).checks.values())


def test_differences_of_scores_are_read_by_domain(run: Run) -> None:
    gaps = [*[("count", 1.0)] * 30, *[("count", -1.0)] * 10, *[("sort", -2.0)] * 30, ("rare", -3.0)]
    rows = [pair(str(place), category) for place, (category, _) in enumerate(gaps)]
    scores = [score(str(place), gap) for place, (_, gap) in enumerate(gaps)]
    roles = {"preferences": {"test.jsonl": rows}, "scorer_raw": {"scores.jsonl": scores}}
    reading = figure_2(run(roles))
    assert list(reading.table) == ["count", "sort"]
    assert reading.table["count"]["mean difference"] == pytest.approx(0.5)
    assert reading.table["count"]["accuracy, given labels"] == 0.75
    assert list(reading.checks.values()) == [True, False]
    assert list(reading.plots[0].series) == ["mean difference", "standard deviation"]


def test_advantage_clips_are_compared_at_one_reward_clip(run: Run) -> None:
    def roles(kl: float, net: float) -> dict[str, dict[str, object]]:
        """Policies with an advantage clip; those without end at 1 nat and win .1 net."""
        names = {
            name: variant.changes["advantage_clip"] is None for name, variant in JOINT_CLIPS.items()
        }
        return _by_kl(
            {name: 1.0 if alone else kl for name, alone in names.items()},
            {name: 0.1 if alone else net for name, alone in names.items()},
        )

    near = joint_clips(run(roles(0.5, 0.14)))
    assert all(near.checks.values())
    assert next(iter(near.table)) == "reward clip 0.8, no advantage clip"
    assert not any(joint_clips(run(roles(1.5, 0.2))).checks.values())


def _taxed(
    run: Run, lost: dict[float, float], main: dict[float, float], step: float = 5.0
) -> Mapping[str, Verdict]:
    """By the weight of the pre-training loss: net on the forget set, and on the main prompts.

    Without it KL falls from 2 nats by 5 a KL coefficient, with it by `step`.
    """
    roles: dict[str, dict[str, object]] = {}
    for kl_coef in PTX_KL_COEFS:
        for coef in lost:
            name = f"ptx_{coef:g}_{kl_coef:g}"
            verdicts = judged(main[coef], forget=lost[coef])
            kl = 2 - 5 * kl_coef if coef == 0 else 2 - step * kl_coef
            roles |= {f"eval_{name}": answered(kl), f"judge_{name}": verdicts}
    return alignment_tax(run(roles)).checks


def test_the_tax_is_what_is_lost_without_the_pre_training_loss(run: Run) -> None:
    kept = _taxed(run, {0.0: -0.4, 0.1: -0.2, 1.0: 0.0}, dict.fromkeys((0.0, 0.1, 1.0), 0.3))
    assert all(kept.values()) and len(kept) == 7
    dear = {0.0: 0.3, 0.1: 0.2, 1.0: 0.1}
    assert set(_taxed(run, {0.0: 0.4, 0.1: 0.2, 1.0: 0.4}, dear).values()) == {False}


def test_a_tax_at_other_kl_is_not_told(run: Run) -> None:
    """With the loss all KL coefficients give 2 nats or hardly less."""
    taxed = _taxed(run, {0.0: -0.4, 0.1: -0.2, 1.0: 0.0}, dict.fromkeys((0.0, 0.1, 1.0), 0.3), 0.1)
    untold = [words for words, seen in taxed.items() if seen is None]
    assert untold == [f"weight {coef}: less is lost at equal KL" for coef in ("0.1", "1")]
