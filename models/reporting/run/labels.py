"""What was wrong with the labels: planted noise found, flips made, a judge model's labels, the
pairs to look at.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267, section 2.3 (AI labeler alignment).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from trimtab.models.data.words import words_of
from trimtab.models.functional.verdicts import alignment
from trimtab.models.reporting.kit.artifacts import SPLITS, Artifacts, ReportInputError, Row
from trimtab.models.reporting.kit.names import EMBEDDING_MODELS
from trimtab.models.statistics.estimates import auroc_estimate, cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate

NUM_GROUPS = 20
NUM_DOUBTED = 25
VOTES = ("in_sample", "cross_fitted")
BY_LENGTH = "length"
ONE_VOTE = {"strength_std": 0.0, "num_members": 1}  # of a baseline


@dataclass(frozen=True)
class LabelNoise:
    """How well one way of voting, or a baseline, finds wrong labels, over the training pairs.

    mode: in_sample, cross_fitted or calibrated; of a baseline, its name. share_negative: pairs of
    strength below 0. auroc_*: of minus the strength; planted flips among all pairs, planted flips
    among pairs that are no near-ties, labels wrong by gold among all pairs. negative_precision:
    share of the pairs below 0 whose label is wrong by gold; negative_recall: share of wrong labels
    below 0. None without truth.
    """

    mode: str
    num_pairs: int
    num_members: int
    share_negative: Estimate
    mean_strength: float
    mean_std: float
    auroc_flipped: Estimate | None = None
    auroc_flipped_clear: Estimate | None = None
    auroc_wrong: Estimate | None = None
    negative_precision: Estimate | None = None
    negative_recall: Estimate | None = None


@dataclass(frozen=True)
class Relabelling:
    """What relabelling did to the training labels; truth-based shares are None without truth.

    num_unsupported_flips: flipped pairs of which no member prefers the answer labelled worse, those
    aside that a person had flipped; None where no member's votes are known.
    flip_precision: share of the flipped pairs whose label was wrong by gold; flip_recall: share of
    the wrong labels that were flipped; share_smoothed: of labels made softer than they came;
    right_before, right_after: of labels that agree with gold (pairs that gold holds equal left
    out).
    """

    num_pairs: int
    num_flipped: int
    num_unsupported_flips: int | None
    share_flipped: float
    share_smoothed: float
    mean_margin: float
    flip_precision: Estimate | None = None
    flip_recall: Estimate | None = None
    right_before: Estimate | None = None
    right_after: Estimate | None = None


def flip_word(artifacts: Artifacts) -> str:
    """What truth calls `flipped`: a planted flip, or one of the judge's labels."""
    return "judge's error" if artifacts.has("pairs_as_given") else "planted flip"


def strength_rows(artifacts: Artifacts, role: str) -> list[Row]:
    """Training pairs' strength, each with its truth (or None) under `truth`."""
    return [
        {**row, "truth": artifacts.truth.get(row["id"])}
        for row in strengths(artifacts, role)
        if row["split"] == "train"
    ]


def strengths(artifacts: Artifacts, role: str) -> list[Row]:
    """All pairs' strength: as the role has it, or the difference of a baseline's scores, where
    `length` is the difference in words."""
    if role not in (BY_LENGTH, *EMBEDDING_MODELS):
        return artifacts.rows(role, "strength.jsonl")
    if role == BY_LENGTH:
        differences = [
            (row["id"], split, len(words_of(row["chosen"])) - len(words_of(row["rejected"])))
            for split in SPLITS
            for row in artifacts.pairs(split)
        ]
    else:
        differences = [
            (row["id"], row["split"], row["chosen_score"] - row["rejected_score"])
            for row in artifacts.rows(role, "scores.jsonl")
        ]
    return [
        {"id": pair, "split": split, "strength_mean": float(difference), **ONE_VOTE}
        for pair, split, difference in differences
    ]


def voting_mode(artifacts: Artifacts, role: str) -> str:
    """calibrated where members were weighted; in_sample where every member voted on every training
    pair; else cross_fitted."""
    if "weight_0" in artifacts.document(role, "summary.json"):
        return "calibrated"
    rows = strength_rows(artifacts, role)
    most = max(row["num_members"] for row in artifacts.rows(role, "strength.jsonl"))
    num_members = max(most, len(artifacts.members))
    is_complete = all(row["num_members"] == num_members for row in rows)
    return "in_sample" if is_complete else "cross_fitted"


def strength_roles(artifacts: Artifacts) -> dict[str, str]:
    """Way of voting to strength artifact; first the one that relabelling used."""
    roles: dict[str, str] = {}
    if artifacts.has("strength"):
        roles[voting_mode(artifacts, "strength")] = "strength"
    for mode in VOTES:
        if artifacts.has(f"strength_{mode}"):
            roles.setdefault(mode, f"strength_{mode}")
    return roles


def embedding_models(artifacts: Artifacts) -> list[str]:
    """Roles of the embedding models that the run has."""
    return [role for role in EMBEDDING_MODELS if artifacts.has(role)]


def audit_baselines(artifacts: Artifacts, seed: int) -> dict[str, LabelNoise]:
    """What an audit by the ensemble should be better than, by name: embedding models and length."""
    names = (*embedding_models(artifacts), BY_LENGTH)
    return {name: label_noise(artifacts, name, name, seed) for name in names}


def label_noise(artifacts: Artifacts, role: str, mode: str, seed: int) -> LabelNoise:
    """Measure one strength artifact."""
    rows = strength_rows(artifacts, role)
    if not rows:
        raise ReportInputError(f"{role}: strength.jsonl holds no training pair; nothing to audit")
    mean = torch.tensor([row["strength_mean"] for row in rows], dtype=torch.float64)
    is_negative = mean < 0
    prompts = {pair["id"]: str(pair["prompt"]) for pair in artifacts.pairs("train")}
    clusters = cluster_ids(prompts.get(row["id"], str(row["id"])) for row in rows)
    share_negative = share_estimate(is_negative, clusters)
    assert share_negative is not None
    by_truth: dict[str, Estimate | None] = {}
    if all(row["truth"] for row in rows):
        kinds = [row["truth"]["kind"] for row in rows]
        flipped = torch.tensor([kind == "flipped" for kind in kinds])
        clear = torch.tensor([kind != "ambiguous" for kind in kinds])
        wrong = torch.tensor([bool(row["truth"]["is_wrong"]) for row in rows])
        by_truth = {
            "auroc_flipped": auroc_estimate(-mean, flipped, seed),
            "auroc_flipped_clear": auroc_estimate(-mean[clear], flipped[clear], seed),
            "auroc_wrong": auroc_estimate(-mean, wrong, seed),
            "negative_precision": share_estimate(wrong[is_negative], clusters[is_negative]),
            "negative_recall": share_estimate(is_negative[wrong], clusters[wrong]),
        }
    return LabelNoise(
        mode=mode,
        num_pairs=len(rows),
        num_members=max(row["num_members"] for row in rows),
        share_negative=share_negative,
        mean_strength=float(mean.mean()),
        mean_std=sum(row["strength_std"] for row in rows) / len(rows),
        **by_truth,
    )


def relabelling(artifacts: Artifacts) -> Relabelling | None:
    """Measure what relabelling did; none where it was not run."""
    rows = artifacts.rows("relabelled", "train.jsonl")
    if not rows:
        return None
    flipped = torch.tensor([bool(row["is_flipped"]) for row in rows])
    labels_before = {row["id"]: row.get("label", 1.0) for row in artifacts.pairs("train")}
    by_truth: dict[str, Estimate | None] = {}
    truths = [artifacts.truth[row["id"]] for row in rows if row["id"] in artifacts.truth]
    if len(truths) == len(rows):
        clusters = cluster_ids(row["prompt"] for row in rows)
        wrong = torch.tensor([bool(truth["is_wrong"]) for truth in truths])
        differ = torch.tensor([truth["gold_chosen"] != truth["gold_rejected"] for truth in truths])
        by_truth = {
            "flip_precision": share_estimate(wrong[flipped], clusters[flipped]),
            "flip_recall": share_estimate(flipped[wrong], clusters[wrong]),
            "right_before": share_estimate(~wrong[differ], clusters[differ]),
            "right_after": share_estimate((flipped == wrong)[differ], clusters[differ]),
        }
    num_unsupported = None
    if artifacts.members and artifacts.has("strength"):
        by_vote = [r["id"] for r in rows if r["is_flipped"] and r.get("review") != "flip"]
        votes = member_votes(artifacts, by_vote).values()
        num_unsupported = sum(all(vote >= 0 for vote in on_pair) for on_pair in votes)
    return Relabelling(
        num_pairs=len(rows),
        num_flipped=int(flipped.sum()),
        num_unsupported_flips=num_unsupported,
        share_flipped=float(flipped.double().mean()),
        share_smoothed=sum(row["label"] < labels_before[row["id"]] for row in rows) / len(rows),
        mean_margin=sum(row["margin"] for row in rows) / len(rows),
        **by_truth,
    )


def member_votes(artifacts: Artifacts, ids: Sequence[str]) -> dict[str, list[float]]:
    """By training pair the score differences of the members that vote on it: of a cross-fitted vote
    those that were not trained on it."""
    is_crossed = voting_mode(artifacts, "strength") == "cross_fitted"
    votes: dict[str, list[float]] = {name: [] for name in ids}
    for role in artifacts.members:
        scores = artifacts.scores(role, "train")
        for name in ids:
            score = scores.get(name)
            if score is None or score["chosen_score"] is None:
                continue
            if not (is_crossed and score["was_trained_on"]):
                votes[name].append(score["chosen_score"] - score["rejected_score"])
    return votes


def strength_groups(rows: Sequence[Row], num_groups: int = NUM_GROUPS) -> list[dict[str, Any]]:
    """Training pairs sorted by strength, cut into groups of equal size [RM figure 2].

    Each group: `mean` and `std`, the means of the pairs' strength mean and std; `count`;
    `share_wrong` by gold, or None.
    """
    groups = []
    for part in equal_groups(rows, num_groups):
        wrong = [bool(row["truth"]["is_wrong"]) for row in part if row["truth"]]
        means = {
            key: sum(r[f"strength_{key}"] for r in part) / len(part) for key in ("mean", "std")
        }
        share_wrong = sum(wrong) / len(wrong) if wrong else None
        groups.append(means | {"count": len(part), "share_wrong": share_wrong})
    return groups


def equal_groups(rows: Sequence[Row], num_groups: int) -> list[list[Row]]:
    """Rows sorted by strength, weakest first, cut into at most num_groups groups of equal size."""
    ordered = sorted(rows, key=lambda row: float(row["strength_mean"]))
    number = min(num_groups, len(ordered))
    cuts = [round(index * len(ordered) / number) for index in range(number + 1)]
    return [ordered[low:high] for low, high in pairwise(cuts)]


def most_doubted(artifacts: Artifacts, limit: int = NUM_DOUBTED) -> list[Row]:
    """The training pairs of lowest strength, with texts, `votes` of `member_votes`, those of people
    as `annotator_votes`, and what was done."""
    rows = sorted(strength_rows(artifacts, "strength"), key=lambda row: float(row["strength_mean"]))
    rows = rows[:limit]
    pairs = {row["id"]: row for row in artifacts.pairs("train")}
    relabelled = {row["id"]: row for row in artifacts.rows("relabelled", "train.jsonl")}
    votes = member_votes(artifacts, [row["id"] for row in rows]) if rows else {}
    return [
        pairs[row["id"]]
        | row
        | {
            "votes": votes[row["id"]],
            "num_against": sum(vote < 0 for vote in votes[row["id"]]),
            "annotator_votes": pairs[row["id"]].get("votes"),
            "relabelled": relabelled.get(row["id"]),
        }
        for row in rows
    ]


@dataclass(frozen=True)
class AILabeler:
    """The judge of `judge_preferences`, over all pairs that it was asked about.

    alignment: share of the labels as people gave them with which it agrees, a tie counting half;
    truth_alignment: the same of right labels by gold, over pairs that gold does not hold equal
    (None without truth). position_bias: mean probability of what is shown first, less 1/2.
    num_labelled: training pairs that carry its label in this run.
    """

    num_pairs: int
    num_labelled: int
    alignment: Estimate
    truth_alignment: Estimate | None
    position_bias: float
    share_tied: float
    num_unparsed: int
    cost: float


def ai_labeler(artifacts: Artifacts, role: str = "judged") -> AILabeler | None:
    """Measure a role that judge_preferences plays; none where nobody was asked."""
    rows = artifacts.rows(role, "judgements.jsonl")
    if not rows:
        return None
    summary = artifacts.document(role, "summary.json")
    is_learned = artifacts.has("pairs_as_given")
    labelled = artifacts.document("preferences", "summary.json").get("num_labelled", 0)
    truth_of = artifacts.rows("pairs_as_given" if is_learned else "preferences", "truth.jsonl")
    truths = {row["id"]: row for row in truth_of}
    # Pairs of which gold finds one answer better, with the judge's probability of that one.
    right = [
        (row["id"], 1 - row["preference"] if truth["is_wrong"] else row["preference"])
        for row in rows
        if (truth := truths.get(row["id"])) and truth["gold_chosen"] != truth["gold_rejected"]
    ]
    return AILabeler(
        num_pairs=len(rows),
        num_labelled=labelled if is_learned else 0,
        alignment=_alignment(artifacts, [(row["id"], row["preference"]) for row in rows]),
        truth_alignment=_alignment(artifacts, right) if right else None,
        **{name: summary[name] for name in ("position_bias", "share_tied", "num_unparsed", "cost")},
    )


def _alignment(artifacts: Artifacts, preferences: Sequence[tuple[str, float]]) -> Estimate:
    """preferences: of pairs by id, the judge's probability that the labelled answer is better."""
    prompts = {row["id"]: row["prompt"] for split in SPLITS for row in artifacts.pairs(split)}
    agrees = alignment(torch.tensor([p for _, p in preferences], dtype=torch.float64))
    share = share_estimate(agrees, cluster_ids(prompts[name] for name, _ in preferences))
    assert share is not None
    return share
