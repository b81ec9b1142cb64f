"""PPO's monitors by step, and the gold score of what it sampled on the way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts, Row
from trimtab.models.statistics.bootstrap import percentile_ends, redraw
from trimtab.models.statistics.estimates import NUM_RESAMPLES
from trimtab.models.statistics.measured import Estimate
from trimtab.models.synthetic.gold import quality

MONITORS = ("score", "kl", "perplexity", "response_length")


@dataclass(frozen=True)
class Curve:
    """Monitors of one PPO run, a value a step; `gold` is empty without a gold scorer.

    score: raw, in the scorer's unit; kl: nats per answer; perplexity: of answers under the policy;
    response_length: tokens; score_std: spread of the scores within the first steps' batches.
    """

    steps: list[int]
    score: list[float]
    kl: list[float]
    perplexity: list[float]
    response_length: list[float]
    gold: list[float]
    score_std: float
    scores_by_step: list[list[float]]
    gold_by_step: list[list[float]]


@dataclass(frozen=True)
class Drift:
    """Change from the first to the last tenth of PPO's steps: what the sampled answers score.

    score: by the scorer that was optimised, in units of its spread at the start; gold: None
    without a gold scorer.
    """

    num_steps_compared: int
    score: Estimate
    gold: Estimate | None


def training_curve(artifacts: Artifacts, role: str, has_gold: bool) -> Curve | None:
    """The curve of one PPO artifact; none where there is none."""
    lines = artifacts.rows(role, "metrics.jsonl")
    monitored = [row for row in lines if "score" in row.get("metrics", {})]
    if not monitored:
        return None
    scores: dict[int, list[float]] = defaultdict(list)
    golds: dict[int, list[float]] = defaultdict(list)
    known: dict[tuple[str, str], float] = {}
    for row in artifacts.rows(role, "rollouts.jsonl"):
        scores[row["step"]].append(row["score"])
        if has_gold:
            golds[row["step"]].append(_quality(row, known))
    steps = [row["step"] for row in monitored]
    first = monitored[: max(1, len(monitored) // 10)]
    return Curve(
        steps=steps,
        **{name: [row["metrics"][name] for row in monitored] for name in MONITORS},
        gold=[sum(golds[step]) / len(golds[step]) for step in steps if golds.get(step)],
        score_std=sum(row["metrics"]["score_std"] for row in first) / len(first),
        scores_by_step=[scores[step] for step in steps if scores.get(step)],
        gold_by_step=[golds[step] for step in steps if golds.get(step)],
    )


def _quality(row: Row, known: dict[tuple[str, str], float]) -> float:
    """The gold score; the same answer to the same prompt is judged once."""
    pair = (row["prompt"], row["response"])
    if pair not in known:
        known[pair] = quality(*pair)
    return known[pair]


def drift(curve: Curve, seed: int) -> Drift | None:
    """Change from the first to the last tenth of the steps; none without rollouts."""
    if len(curve.scores_by_step) < 2:
        return None
    tenth = max(1, len(curve.scores_by_step) // 10)
    unit = curve.score_std or 1.0
    return Drift(
        num_steps_compared=tenth,
        score=_change(curve.scores_by_step, tenth, seed, unit),
        gold=_change(curve.gold_by_step, tenth, seed, 1.0) if curve.gold_by_step else None,
    )


def _change(by_step: list[list[float]], tenth: int, seed: int, unit: float) -> Estimate:
    """Difference of means, last minus first steps, both ends resampled."""
    start, end = (
        torch.tensor([value for step in part for value in step], dtype=torch.float64) / unit
        for part in (by_step[:tenth], by_step[-tenth:])
    )
    generator = torch.Generator().manual_seed(seed)
    resampled = torch.stack(
        [
            redraw(end, generator).mean() - redraw(start, generator).mean()
            for _ in range(NUM_RESAMPLES)
        ]
    )
    low, high = percentile_ends(resampled).tolist()
    return Estimate(float(end.mean() - start.mean()), low, high, len(start) + len(end))
