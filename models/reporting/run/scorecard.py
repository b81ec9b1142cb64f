"""The scorecard: every number of the report, typed, as `scorecard.json` holds it.

Numbers with sampling error are objects {value, low, high, count}: 95 % intervals over `count`
examples (see `trimtab.models.statistics.estimates`). What was not run, or cannot be known without
truth, is null or absent; nothing is filled in.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.models.config.reporting import LineageEntry, ReportConfig
from trimtab.models.data.row_account import RowAccount
from trimtab.models.reporting.kit.artifacts import SPLITS, Artifacts
from trimtab.models.reporting.kit.names import EMBEDDING_MODELS, STRENGTH_NAMES
from trimtab.models.reporting.run import labels
from trimtab.models.reporting.run.claims import Claim, Verdict, claims, verdict
from trimtab.models.reporting.run.human_votes import VoteAgreement, human_votes
from trimtab.models.reporting.run.labels import AILabeler, LabelNoise, Relabelling
from trimtab.models.reporting.run.policies import Curve, Policy, policies
from trimtab.models.reporting.run.revisions import Revisions, revisions
from trimtab.models.reporting.run.scorers import (
    NAMES,
    LengthBaseline,
    Scorer,
    length_baseline,
    measure,
)
from trimtab.models.statistics.measured import Estimate, flatten


@dataclass(frozen=True)
class DataCounts:
    """What came in. planted: shares of clear, flipped and ambiguous pairs in all splits, and
    `wrong`, labels wrong by gold (empty for real data). summaries: the stages' own counts. rows:
    where every row that was read went; None where pairs were not read but made."""

    num_pairs: int
    num_train: int
    num_validation: int
    num_test: int
    pairs_by_category: dict[str, int]
    planted: dict[str, float]
    summaries: dict[str, dict[str, Any]]
    rows: RowAccount | None


@dataclass(frozen=True)
class StageCost:
    """Seconds of one artifact's making; role: the first it plays; is_cached: taken from the store
    in this run."""

    role: str
    stage: str
    seconds: float
    is_cached: bool


@dataclass(frozen=True)
class Scorecard:
    """All numbers of one run.

    ai_labeler: the judge model that was asked about the pairs. label_noise: by way of voting,
    in_sample or cross_fitted; vote_used: which of them relabelling used. audit_baselines: the same
    by name, of the embedding models and of length. human_votes: by way of voting or embedding
    model, then by split; empty where no pair carries people's votes. audit: numbers of the audit's
    page; empty without one. scorers: baseline (raw labels, the ensemble's first member),
    relabelled, advantage_model, external_reward, states_linear, embedding_linear and
    embedding_nearest (preference models on vectors of the answers). revisions: None without a
    constitution. policies: sft, the arms, then MetaRM rounds. seeds: every seed of the
    configuration, by dotted path. warnings: sentences, what to look at before the rest is believed.
    """

    title: str
    recipe: str
    seed: int
    has_truth: bool
    has_gold: bool
    verdict: Verdict
    warnings: list[str]
    claims: list[Claim]
    data: DataCounts
    ai_labeler: AILabeler | None
    vote_used: str | None
    label_noise: dict[str, LabelNoise]
    audit_baselines: dict[str, LabelNoise]
    relabelling: Relabelling | None
    human_votes: dict[str, dict[str, VoteAgreement]]
    audit: dict[str, float]
    scorers: dict[str, Scorer]
    length_baseline: LengthBaseline | None
    revisions: Revisions | None
    policies: list[Policy]
    stages: list[StageCost]
    seconds_per_stage: dict[str, float]
    total_seconds: float
    seeds: dict[str, int]
    lineage: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Plain values that `json.dumps` takes."""
        return dataclasses.asdict(self)


def assemble(artifacts: Artifacts, config: ReportConfig) -> tuple[Scorecard, dict[str, Curve]]:
    """Compute the scorecard; also returns the PPO curves, which only the plots need."""
    seed = config.seed
    roles = labels.strength_roles(artifacts)
    vote_used = next(iter(roles)) if artifacts.has("strength") else None
    noise = {mode: labels.label_noise(artifacts, role, mode, seed) for mode, role in roles.items()}
    evaluated, curves = policies(artifacts, config)
    strengths = roles | {name: name for name in labels.embedding_models(artifacts)}
    relabelled = labels.relabelling(artifacts)
    scorers = {
        name: measure(artifacts, role, seed)
        for name, role in NAMES.items()
        if artifacts.has(role) and artifacts.pairs("test")
    }
    by_length = length_baseline(artifacts)
    data = data_counts(artifacts)
    audit = artifacts.document("audit", "summary.json")
    checked = claims(artifacts, list(noise.values()), evaluated, seed)
    used = noise.get(vote_used or "")
    seconds: dict[str, float] = {}
    costs = stage_costs(config.lineage)
    for cost in costs:
        seconds[cost.stage] = seconds.get(cost.stage, 0) + cost.seconds
    scorecard = Scorecard(
        title=config.title,
        recipe=config.recipe,
        seed=seed,
        has_truth=bool(artifacts.truth),
        has_gold=config.has_gold,
        verdict=verdict(evaluated, checked, used, config.champion, audit, config.recipe),
        warnings=[*warnings_of(data.rows, relabelled), *scorer_warnings(scorers, by_length)],
        claims=checked,
        data=data,
        ai_labeler=labels.ai_labeler(artifacts),
        vote_used=vote_used,
        label_noise=noise,
        audit_baselines=labels.audit_baselines(artifacts, seed) if noise else {},
        relabelling=relabelled,
        human_votes=human_votes(artifacts, strengths, seed),
        audit=audit,
        scorers=scorers,
        length_baseline=by_length,
        revisions=revisions(artifacts, config.has_gold, seed),
        policies=evaluated,
        stages=costs,
        seconds_per_stage=seconds,
        total_seconds=sum(cost.seconds for cost in costs),
        seeds=dict(_seeds(config.config)) | {"run": seed},
        lineage=[entry.model_dump() for entry in config.lineage],
    )
    return scorecard, curves


def warnings_of(rows: RowAccount | None, relabelled: Relabelling | None) -> list[str]:
    """What a reader should know before the rest is believed."""
    warnings = rows.warnings() if rows else []
    if relabelled is not None and relabelled.num_unsupported_flips:
        warnings.append(
            f"No ensemble member supports {relabelled.num_unsupported_flips:,} of "
            f"{relabelled.num_flipped:,} flips: none prefers the answer labelled worse. Set "
            "relabel.flip_below=0 to flip only labels that the ensemble contradicts."
        )
    return warnings


def scorer_warnings(scorers: Mapping[str, Scorer], by_length: LengthBaseline | None) -> list[str]:
    """Where the reward model is surely worse than what costs next to nothing, or than chance."""
    scorer = scorers.get("relabelled") or scorers.get("baseline")
    if scorer is None or (accuracy := scorer.label_accuracy) is None:
        return []
    others = {
        STRENGTH_NAMES[role]: scorers[role].label_accuracy
        for role in EMBEDDING_MODELS
        if role in scorers
    }
    if by_length:
        others[STRENGTH_NAMES[labels.BY_LENGTH]] = by_length.label_accuracy
    better = {name: share for name, share in others.items() if share and share.low > accuracy.high}
    warnings = []
    if better:
        best = max(better, key=lambda name: better[name].value)
        warnings.append(
            f"The reward model agrees with {100 * accuracy.value:.1f} % of the test labels, a "
            f"baseline for which no network is trained ({best}) with "
            f"{100 * better[best].value:.1f} %: the reward model has not learned what the pairs "
            "tell. Look at its accuracy by category."
        )
    wrong = [
        name for name, of in scorer.categories.items() if of.accuracy and of.accuracy.high < 0.5
    ]
    if wrong:
        warnings.append(
            f"In pairs of {', '.join(wrong)} the reward model prefers the answer labelled worse "
            "more often than not: what is better there may be worse in other categories. Train "
            "one for each (reward_model.categories)."
        )
    return warnings


def data_counts(artifacts: Artifacts) -> DataCounts:
    """Count pairs, categories and planted noise."""
    splits = {split: artifacts.pairs(split) for split in SPLITS}
    everything = [row for rows in splits.values() for row in rows]
    categories = Counter(str(row.get("category") or "(none)") for row in everything)
    truths = list(artifacts.truth.values())
    planted = {
        kind: sum(truth["kind"] == kind for truth in truths) / len(truths)
        for kind in ("clear", "flipped", "ambiguous")
        if truths
    }
    if truths:
        planted["wrong"] = sum(bool(truth["is_wrong"]) for truth in truths) / len(truths)
    return DataCounts(
        num_pairs=len(everything),
        **{f"num_{split}": len(rows) for split, rows in splits.items()},
        pairs_by_category=dict(sorted(categories.items())),
        planted=planted,
        summaries={
            role: artifacts.document(role, "summary.json")
            for role in ("data", "pairs_as_given", "preferences", "rehearsal")
            if artifacts.has(role)
        },
        rows=artifacts.row_account,
    )


def stage_costs(lineage: Sequence[LineageEntry]) -> list[StageCost]:
    """The cost of each artifact, once under the first role it plays."""
    first: dict[str, LineageEntry] = {}
    for entry in lineage:
        first.setdefault(entry.key, entry)
    return [StageCost(e.role, e.stage, e.seconds, e.cached) for e in first.values()]


def _seeds(value: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Every `seed` in a configuration, by dotted path."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        dotted = f"{path}.{key}" if path else str(key)
        if key == "seed" and isinstance(child, int):
            yield dotted, child
        elif isinstance(child, (dict, list, tuple)):
            yield from _seeds(child, dotted)


def summary_of(scorecard: Scorecard) -> dict[str, float | str]:
    """The key numbers, flat: what a table of runs shows."""
    flat: dict[str, float | str] = {
        "verdict": scorecard.verdict.answer,
        "num_pairs": scorecard.data.num_pairs,
        "total_seconds": scorecard.total_seconds,
        **_rows_of(scorecard.data.rows),
        **{f"claim_{claim.name}": claim.status for claim in scorecard.claims},
    }
    for mode, noise in (scorecard.label_noise | scorecard.audit_baselines).items():
        flat |= _estimates(noise, mode, "auroc_flipped", "auroc_flipped_clear", "auroc_wrong")
    flat |= _estimates(scorecard.ai_labeler, "ai_labeler", "alignment", "truth_alignment")
    flat |= _estimates(scorecard.relabelling, "", "flip_precision", "flip_recall", "right_after")
    if scorecard.relabelling is not None:
        flat["num_flipped"] = scorecard.relabelling.num_flipped
        flat["num_unsupported_flips"] = scorecard.relabelling.num_unsupported_flips or 0
    agreements = [
        (f"votes_{mode}_{split}", votes)
        for mode, by_split in scorecard.human_votes.items()
        for split, votes in by_split.items()
    ]
    for prefix, votes in agreements:
        flat |= _estimates(votes, prefix, "auroc_not_unanimous", "auroc_opposed")
        for order in ("in_label_order", "in_both_orders"):
            ranks = getattr(votes, order)
            flat |= _estimates(ranks, f"{prefix}_{order}", "strength", "length")
    for name, scorer in scorecard.scorers.items():
        flat |= _estimates(scorer, name, *(field.name for field in dataclasses.fields(scorer)))
    for step in scorecard.revisions.steps if scorecard.revisions else []:
        flat |= _estimates(step, f"revision_{step.number}", "gold", "share_harmless")
    for policy in scorecard.policies:
        for place, answers in policy.sets.items():
            prefix = f"{policy.name}_{place}"
            flat |= _estimates(answers, prefix, "gold", "judge_score", "kl", "length", "harmless")
            for judge, outcome in policy.against_sft.get(place, {}).items():
                flat |= _estimates(outcome, f"{prefix}_{judge}", "win", "tie", "lose", "net")
    return {k: v for k, v in flat.items() if isinstance(v, str) or math.isfinite(v)}


def _rows_of(account: RowAccount | None) -> dict[str, float]:
    if account is None:
        return {}
    return {
        **{f"rows_{name}": count for name, count in dataclasses.asdict(account.rows).items()},
        "pairs_repeated": account.repeated,
        "pairs_contradicting": account.contradicting,
        "pairs_against_votes": account.against_votes,
        "pairs_against_scores": account.against_scores,
    }


def _estimates(record: object, prefix: str, *names: str) -> dict[str, float | str]:
    """Those of a record's fields that are estimates; none of None."""
    values = {name: getattr(record, name, None) for name in names}
    return flatten(prefix, **{n: v for n, v in values.items() if isinstance(v, Estimate)})
