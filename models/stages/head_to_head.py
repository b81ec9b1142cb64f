"""Stage `head_to_head`: win, tie or lose between two evaluated policies, with intervals.

Prompts of the forget set are few task families of many prompts each, and a policy loses a family as
a whole: its intervals are over families. The outcome by the gold scorer is only reported. Promotion
is decided on the validation prompts: in the synthetic world by annotators as noisy as those who
labelled the pairs (what a team would pay people for), elsewhere by reward models that no policy was
optimised against. Reward models of the same data share its errors, and so the policy's exploits: on
the synthetic world they promoted policies that the gold scorer finds no better.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.statistics.bootstrap import bootstrap_interval
from trimtab.models.statistics.estimates import family_ids, means_of
from trimtab.models.statistics.intervals import effective_count, net_interval
from trimtab.models.statistics.win_rates import win_tie_lose
from trimtab.models.synthetic.annotators import annotator_prefers_first
from trimtab.models.synthetic.gold import raw_score
from trimtab.models.training.stage import Row, Stage

PROMOTION_SET = "validation"
FORGET_SET = "forget"


def run(config: EvaluateConfig, stage: Stage) -> None:
    """Inputs: `ours`, `theirs` (evaluate artifacts). Output: judgement.json."""
    ours, theirs = (stage.rows(name, "responses.jsonl") for name in ("ours", "theirs"))
    if [row["prompt"] for row in ours] != [row["prompt"] for row in theirs]:
        raise ValueError("the two policies answered different prompts and cannot be compared")
    outcomes: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["set"] for row in ours):
        for measure in ("gold", "judge_score"):
            if measure not in ours[0]:
                continue
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a["set"] == name]
            outcomes[f"{name}_{measure}"] = _outcome(
                torch.tensor([a[measure] for a, _ in pairs], dtype=torch.float64),
                torch.tensor([b[measure] for _, b in pairs], dtype=torch.float64),
                config,
                families=[a.get("category") for a, _ in pairs] if name == FORGET_SET else None,
            )
    decisive = f"{PROMOTION_SET}_judge_score"
    if config.has_gold:
        decisive = f"{PROMOTION_SET}_annotators"
        outcomes[decisive] = _annotate(config, ours, theirs)
    stage.write_json("judgement.json", outcomes)
    flat = {
        f"{name}_{value}": outcome[value]
        for name, outcome in outcomes.items()
        for value in ("win", "tie", "lose", "net", "net_low", "net_high")
    }
    stage.write_summary({**flat, "is_promoted": outcomes[decisive]["net_low"] > 0})


def _annotate(config: EvaluateConfig, ours: list[Row], theirs: list[Row]) -> dict[str, Any]:
    """Each validation prompt's answers compared by one simulated annotator, blind to the policy."""
    rng = random.Random(f"judge/{config.seed}")
    results = []
    for a, b in zip(ours, theirs, strict=True):
        if a["set"] != PROMOTION_SET:
            continue
        gap = raw_score(a["prompt"], a["response"]) - raw_score(b["prompt"], b["response"])
        is_win = annotator_prefers_first(
            gap, config.annotator_sharpness, config.annotator_flip_share, rng
        )
        results.append(0.0 if a["response"] == b["response"] else 1.0 if is_win else -1.0)
    values = torch.tensor(results, dtype=torch.float64)
    return _outcome(values, torch.zeros_like(values), config)


def _outcome(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    config: EvaluateConfig,
    families: Sequence[str | None] | None = None,
) -> dict[str, Any]:
    """Shares of win, tie and lose, the mean outcome (win 1, tie 0, lose -1) and its interval.

    families: of each prompt, where the intervals are over families and not over prompts.
    """
    difference = ours - theirs
    outcome = torch.where(difference.abs() <= config.tie_margin, 0.0, difference.sign())
    shares = win_tie_lose(ours, theirs, config.tie_margin)
    clusters = None if families is None else family_ids(families)
    count = effective_count(outcome, clusters)
    low, high = net_interval(shares["win"], shares["lose"], count)
    units = difference if clusters is None else means_of(difference, clusters)
    low_difference, high_difference = bootstrap_interval(
        units, num_resamples=config.num_resamples, seed=config.seed
    )
    return {
        **shares,
        "net": float(outcome.mean()),
        "net_low": low,
        "net_high": high,
        "ours": float(ours.mean()),
        "theirs": float(theirs.mean()),
        "difference_low": low_difference,
        "difference_high": high_difference,
    }
