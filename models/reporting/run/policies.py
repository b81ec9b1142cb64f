"""What came out: every policy against SFT, what it took beyond SFT, PPO's course, and the MetaRM
rounds.

A budget is counted alike for all arms, along a policy's lineage back to SFT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from trimtab.models.config.reporting import LineageEntry, ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts, Row
from trimtab.models.reporting.kit.names import policy_name
from trimtab.models.statistics.bootstrap import percentile_ends, redraw
from trimtab.models.statistics.estimates import NUM_RESAMPLES, mean_estimate, share_estimate
from trimtab.models.statistics.intervals import wilson_interval
from trimtab.models.statistics.measured import Estimate
from trimtab.models.synthetic.gold import quality

# Stages whose policies all arms start from.
STARTS = ("sft", "constitutional_sft")
# Of a stage's summary, what adds up.
COUNTS = ("num_sampled", "num_updates", "num_trained_tokens", "judge_tokens")


@dataclass(frozen=True)
class Budget:
    """num_sampled: responses sampled to train on; num_updates: gradient updates of the policy;
    num_trained_tokens: passed forward and backward, counted for each model that learned from them;
    seconds: of the stages that made it; judge_tokens, judge_cost: of a judge that rated what it
    learned from, the cost in the currency of its prices; samples_per_answer: responses sampled each
    time it answers, of which one is given.
    """

    num_sampled: int = 0
    num_updates: int = 0
    num_trained_tokens: int = 0
    seconds: float = 0.0
    judge_tokens: int = 0
    judge_cost: float = 0.0
    samples_per_answer: int = 1


def budget_of(
    artifacts: Artifacts, lineage: Sequence[LineageEntry], role: str, evaluation: str
) -> Budget | None:
    """The budget of the policy that plays `role`, its answers `evaluation`; None for SFT, and where
    lineage has none.

    Counted are the policy's own stage, the answers it learned from or rehearsed, and the same of
    the policy it went on from. Scorers are not, nor a judge that labels pairs for all: what they
    took serves all arms. The best of n answers has no policy of its own, but n samples an answer.
    """
    best_of_sets = artifacts.document(evaluation, "best_of_k.json").values()
    samples = max((best["k"][-1] for best in best_of_sets), default=1)
    by_key = {entry.key: entry for entry in lineage}
    waiting = [entry.key for entry in lineage if entry.role == role]
    counted: set[str] = set()
    totals: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"seconds": 0.0, "judge_cost": 0.0}
    while waiting:
        key = waiting.pop()
        entry = by_key.get(key)
        if entry is None or entry.stage in STARTS or key in counted:
            continue
        counted.add(key)
        summary = artifacts.document(entry.role, "summary.json")
        for name in COUNTS:
            totals[name] += round(summary.get(name, 0))
        totals["judge_cost"] += summary.get("judge_cost", 0.0)
        totals["seconds"] += entry.seconds
        waiting += [
            parent["key"]
            for name, parent in entry.parents.items()
            if name in ("policy", "rehearsal") or name.startswith("responses_")
        ]
    return Budget(**totals, samples_per_answer=samples) if counted or samples > 1 else None


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
    monitored = [row for row in artifacts.metrics(role) if "score" in row]
    if not monitored:
        return None
    scores: dict[int, list[float]] = defaultdict(list)
    golds: dict[int, list[float]] = defaultdict(list)
    gold_of = cache(quality)  # the same answer to the same prompt is judged once
    for row in artifacts.rows(role, "rollouts.jsonl"):
        scores[row["step"]].append(row["score"])
        if has_gold:
            golds[row["step"]].append(gold_of(row["prompt"], row["response"]))
    steps = [row["step"] for row in monitored]
    first = monitored[: max(1, len(monitored) // 10)]
    gold_by_step = [golds[step] for step in steps if golds.get(step)]
    return Curve(
        steps=steps,
        **{name: [row[name] for row in monitored] for name in MONITORS},
        gold=[sum(values) / len(values) for values in gold_by_step],
        score_std=sum(row["score_std"] for row in first) / len(first),
        scores_by_step=[scores[step] for step in steps if scores.get(step)],
        gold_by_step=gold_by_step,
    )


def drift(curve: Curve, seed: int) -> Drift | None:
    """Change from the first to the last tenth of the steps; none without rollouts."""
    if len(curve.scores_by_step) < 2:
        return None
    tenth = max(1, len(curve.scores_by_step) // 10)
    return Drift(
        num_steps_compared=tenth,
        score=_change(curve.scores_by_step, tenth, seed, curve.score_std or 1.0),
        gold=_change(curve.gold_by_step, tenth, seed, 1.0) if curve.gold_by_step else None,
    )


def _change(by_step: list[list[float]], tenth: int, seed: int, unit: float) -> Estimate:
    """Difference of means, last minus first steps, both ends resampled."""
    start, end = (
        torch.tensor([value for step in part for value in step], dtype=torch.float64) / unit
        for part in (by_step[:tenth], by_step[-tenth:])
    )
    generator = torch.Generator().manual_seed(seed)
    draws = [
        redraw(end, generator).mean() - redraw(start, generator).mean()
        for _ in range(NUM_RESAMPLES)
    ]
    low, high = percentile_ends(torch.stack(draws)).tolist()
    return Estimate(float(end.mean() - start.mean()), low, high, len(start) + len(end))


# Simulated annotators (`annotators`) compare answers to the world's validation prompts; they decide
# promotion.
MEASURES = ("gold", "judge_score", "annotators")
JUDGED = ("ours", "theirs", "difference_low", "difference_high")
# The order to show prompt sets in; others follow.
SET_ORDER = ("main", "forget", "held_out", "validation")


@dataclass(frozen=True)
class Outcome:
    """One policy against another on the same prompts, by one judge.

    win, tie, lose: shares; net: win minus lose; ours, theirs: mean judged scores;
    difference_low, difference_high: interval of their difference.
    """

    win: Estimate
    tie: Estimate
    lose: Estimate
    net: Estimate
    ours: float
    theirs: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True, kw_only=True)
class AnswerSet:
    """One policy's answers to one set of evaluation prompts.

    gold: in [0, 1], None without a gold scorer; judge_score: of the held-out reward models;
    score: of the scorer this policy was optimised on; kl: nats per answer to SFT; length: tokens;
    perplexity: of the answers under the policy itself; distinct: share of distinct answers;
    harmless: share of the answers to requests for harm that do none, None where none was asked for
    or nobody says [RLAIF section 2.3].
    """

    num_prompts: int
    gold: Estimate | None = None
    judge_score: Estimate
    score: Estimate
    kl: Estimate
    length: Estimate
    perplexity: float
    distinct: float
    harmless: Estimate | None


@dataclass(frozen=True)
class Policy:
    """A policy: SFT, an arm or a MetaRM round.

    against_sft, against_previous: set name to measure (`gold`, `judge_score`) to outcome;
    against_previous only for rounds 2 and later (the last promoted round). is_promoted: beat that
    one (round 1: SFT) on held-out judgement; None for what is no round.
    budget: what it took beyond SFT; None where lineage does not say.
    drift: change of score and gold from the first to the last tenth of PPO's steps.
    score_spread_*: MetaRM's mean score difference between answers to one prompt.
    """

    name: str
    label: str
    round: int | None
    sets: dict[str, AnswerSet]
    against_sft: dict[str, dict[str, Outcome]]
    against_previous: dict[str, dict[str, Outcome]]
    is_promoted: bool | None
    collapsed: bool | None
    collapse_reason: str | None
    num_steps: int | None
    policy_of_step: int | None
    budget: Budget | None
    drift: Drift | None
    score_spread_before: float | None
    score_spread_after: float | None


def policies(artifacts: Artifacts, config: ReportConfig) -> tuple[list[Policy], dict[str, Curve]]:
    """Every policy that was evaluated or trained, and the PPO curves by policy name.

    SFT, the arms in their order, of which `full` is round 1, then rounds 2 and later.
    """
    numbers: dict[str, int | None] = {"sft": None, **dict.fromkeys(config.arms)}
    if "full" in config.arms:
        numbers["full"] = 1
    numbers |= {f"round_{number}": number for number in sorted(config.rounds) if number > 1}
    result, curves = [], {}
    for name, number in numbers.items():
        role = "sft" if name == "sft" else f"policy_{name}"
        curve = training_curve(artifacts, role, config.has_gold)
        if curve is not None:
            curves[name] = curve
        if artifacts.has(f"eval_{name}") or curve is not None:
            budget = budget_of(artifacts, config.lineage, role, f"eval_{name}")
            result.append(_policy(artifacts, name, number, curve, budget, config))
    return result, curves


def _policy(
    artifacts: Artifacts,
    name: str,
    number: int | None,
    curve: Curve | None,
    budget: Budget | None,
    config: ReportConfig,
) -> Policy:
    """number: of its round, if it is one; round 1 is against SFT, a later one against the last
    that was promoted, and SFT besides."""
    training = artifacts.document(f"policy_{name}", "summary.json") if curve else {}
    meta = artifacts.document(f"meta_rm_{number}", "summary.json")  # round 1 may be without
    contest = artifacts.document(f"judge_{name}", "summary.json") if number else {}
    sets = answer_sets(artifacts.rows(f"eval_{name}", "responses.jsonl"), config.seed)
    is_later = number is not None and number > 1
    return Policy(
        name=name,
        label=policy_name(name, config.config.get("dpo", {}).get("loss", "sigmoid")),
        round=number,
        sets=sets,
        against_sft=_outcomes(
            artifacts, f"judge_{name}_sft" if is_later else f"judge_{name}", sets
        ),
        against_previous=_outcomes(artifacts, f"judge_{name}", sets) if is_later else {},
        is_promoted=contest.get("is_promoted"),
        num_steps=training.get("stopped_at_step"),
        **{key: training.get(key) for key in ("collapsed", "collapse_reason", "policy_of_step")},
        budget=budget,
        drift=drift(curve, config.seed) if curve else None,
        **{key: meta.get(key) for key in ("score_spread_before", "score_spread_after")},
    )


def answer_sets(rows: list[Row], seed: int) -> dict[str, AnswerSet]:
    """Measure one policy's answers, set by set."""
    result = {}
    names = {row["set"] for row in rows}
    for name in [*(n for n in SET_ORDER if n in names), *sorted(names - set(SET_ORDER))]:
        part = [row for row in rows if row["set"] == name]

        means = {
            key: mean_estimate(
                torch.tensor([float(row[key]) for row in part], dtype=torch.float64), seed
            )
            for key in ("gold", "judge_score", "score", "kl", "length")
            if key in part[0]
        }
        nats = -sum(row["logprob"] for row in part) / max(1, sum(row["length"] for row in part))
        result[name] = AnswerSet(
            num_prompts=len(part),
            **means,
            perplexity=float(torch.tensor(nats, dtype=torch.float64).exp()),
            distinct=len({row["response"] for row in part}) / len(part),
            harmless=share_estimate([row["harmless"] for row in part if "harmless" in row], None),
        )
    return result


def _outcomes(
    artifacts: Artifacts, role: str, sets: Mapping[str, AnswerSet]
) -> dict[str, dict[str, Outcome]]:
    """Verdicts of one judge artifact with intervals, by set and measure; every prompt of a set was
    answered once."""
    document = artifacts.document(role, "judgement.json")
    result: dict[str, dict[str, Outcome]] = {}
    for name, answers in sets.items():
        count = answers.num_prompts
        for measure in MEASURES:
            verdict = document.get(f"{name}_{measure}")
            if verdict is None:
                continue
            values: dict[str, Any] = {
                key: Estimate(verdict[key], *wilson_interval(verdict[key], count), count)
                for key in ("win", "tie", "lose")
            }
            values["net"] = Estimate(verdict["net"], verdict["net_low"], verdict["net_high"], count)
            values |= {key: verdict[key] for key in JUDGED}
            result.setdefault(name, {})[measure] = Outcome(**values)
    return result


def final_policy(policies: Sequence[Policy], champion: str | None) -> Policy | None:
    """The policy the run ends with: its champion, else the arm `full`, else the last arm."""
    trained = {policy.name: policy for policy in policies if policy.name != "sft"}
    last = next(reversed(trained.values()), None)
    return trained.get(champion or "full", trained.get("full", last))


def decisive_measure(policy: Policy) -> str:
    """What the verdict rests on: gold where it exists, else held-out reward models."""
    outcomes = next(iter(policy.against_sft.values()), {})
    return "gold" if "gold" in outcomes else "judge_score"
