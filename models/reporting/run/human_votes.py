"""Does strength follow people's own votes? Agreement by strength, as in [RM figure 3].

[RM] Secrets of RLHF Part II, arXiv 2401.06080, compares labels with those of GPT-4 on held-out
pairs, in groups of rising strength. Here several people voted on each pair. A pair's margin is
the share of its votes for the text labelled better minus the share for the other; undecided votes
count for neither.

Deviations
1. [RM] has one verdict of its reference a pair; here a pair agrees by the share of its votes.
2. Where the label is the votes' majority, all margins in the label's order are above 0: their rank
   correlation with strength asks how clearly a pair was won, not who won it. The correlation over
   both orders asks either: it first puts each pair into an order that does not know the label (a
   hash of its texts), turning strength and margin round where that order is the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.models.data.words import words_of
from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError, Row
from trimtab.models.reporting.run.labels import NUM_GROUPS, equal_groups, strengths
from trimtab.models.statistics.calibration import spearman_ceiling
from trimtab.models.statistics.estimates import (
    auroc_estimate,
    cluster_ids,
    fraction_estimate,
    share_estimate,
    spearman_estimate,
)
from trimtab.models.statistics.measured import Estimate

VOTED_SPLITS = ("train", "test")
FEW_GROUPS = 10
# Below this many pairs a group, a twentieth of the pairs is too few to show a share.
LEAST_PER_GROUP = 20


@dataclass(frozen=True)
class VoteGroup:
    """Some pairs: mean strength; share of a pair's votes for the text labelled better, averaged
    over pairs; share of pairs where all votes are."""

    strength: float
    share_for: Estimate
    share_unanimous: Estimate


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation with people's margin: of the strength, and of the difference in
    words for comparison (None where all are equal). ceiling: what a strength that orders all pairs
    perfectly would reach, as equal margins cannot be ranked."""

    strength: Estimate
    length: Estimate | None
    ceiling: float


@dataclass(frozen=True)
class VoteAgreement:
    """One strength against people's votes, over the pairs of one split that carry any.

    num_texts: different answers among the pairs; where it is below 2 * num_pairs answers recur,
    and intervals, which resample pairs, are too narrow. in_label_order, in_both_orders: see
    deviation 2; the latter is None where voting members were trained on the pairs, and so told who
    won. auroc_not_unanimous, auroc_opposed: of minus the strength, for finding pairs with a vote
    not for the text labelled better, and pairs with a vote for the other text. None where nothing
    can be measured: all margins equal, or no pair of a kind. groups: by rising strength.
    """

    num_pairs: int
    num_texts: int
    overall: VoteGroup
    in_label_order: RankCorrelation | None
    in_both_orders: RankCorrelation | None
    auroc_not_unanimous: Estimate | None
    auroc_opposed: Estimate | None
    groups: list[VoteGroup]


def human_votes(
    artifacts: Artifacts, roles: dict[str, str], seed: int
) -> dict[str, dict[str, VoteAgreement]]:
    """By way of the ensemble's voting, or baseline (roles: its name to its role), then by split.

    Empty where no pair carries people's votes.
    """
    agreements: dict[str, dict[str, VoteAgreement]] = {}
    for mode, role in roles.items():
        for split in VOTED_SPLITS:
            is_unseen = split == "test" or mode != "in_sample"
            if rows := voted_rows(artifacts, role, split):
                agreement = vote_agreement(rows, seed, is_unseen=is_unseen)
                agreements.setdefault(mode, {})[split] = agreement
    return agreements


def voted_rows(artifacts: Artifacts, role: str, split: str) -> list[Row]:
    """The split's pairs that carry votes, each with its `strength_mean`."""
    strength = {row["id"]: row["strength_mean"] for row in strengths(artifacts, role)}
    voted = [row for row in artifacts.pairs(split) if any((row.get("votes") or {}).values())]
    missing = [row["id"] for row in voted if row["id"] not in strength]
    if missing:
        raise ReportInputError(
            f"{role} holds other pairs than `preferences`: {len(missing)} pairs of {split} have no "
            f"strength, the first {missing[0]!r}; pass the strength of these pairs"
        )
    return [{**row, "strength_mean": strength[row["id"]]} for row in voted]


def vote_agreement(rows: Sequence[Row], seed: int, *, is_unseen: bool) -> VoteAgreement:
    """Measure one strength; is_unseen: no voting member was trained on any of the pairs."""
    # (3, N): strength, margin and difference in words, each towards the text labelled better.
    columns = torch.tensor(
        [
            [row["strength_mean"] for row in rows],
            [_margin(row["votes"]) for row in rows],
            [len(words_of(row["chosen"])) - len(words_of(row["rejected"])) for row in rows],
        ],
        dtype=torch.float64,
    )
    order = torch.tensor([_label_free_order(row) for row in rows], dtype=torch.float64)
    doubt = -columns[0]
    opposed = torch.tensor([row["votes"]["rejected"] > 0 for row in rows])
    number = NUM_GROUPS if len(rows) >= NUM_GROUPS * LEAST_PER_GROUP else FEW_GROUPS
    return VoteAgreement(
        num_pairs=len(rows),
        num_texts=len({row[side] for row in rows for side in ("chosen", "rejected")}),
        overall=_group(rows, seed),
        in_label_order=_rank_correlation(columns, seed),
        in_both_orders=_rank_correlation(columns * order, seed) if is_unseen else None,
        auroc_not_unanimous=auroc_estimate(doubt, ~_unanimous(rows), seed),
        auroc_opposed=auroc_estimate(doubt, opposed, seed),
        groups=[_group(part, seed) for part in equal_groups(rows, number)],
    )


def _rank_correlation(columns: Tensor, seed: int) -> RankCorrelation | None:
    """columns: (3, N), strength, margin, difference in words."""
    strength, margin, length = columns
    by_strength = spearman_estimate(strength, margin, seed)
    if by_strength is None:
        return None
    by_length = spearman_estimate(length, margin, seed)
    return RankCorrelation(by_strength, by_length, float(spearman_ceiling(margin)))


def _group(rows: Sequence[Row], seed: int) -> VoteGroup:
    shares = [row["votes"]["chosen"] / sum(row["votes"].values()) for row in rows]
    clusters = cluster_ids(row["prompt"] for row in rows)
    unanimous = share_estimate(_unanimous(rows), clusters)
    assert unanimous is not None
    return VoteGroup(
        sum(row["strength_mean"] for row in rows) / len(rows),
        fraction_estimate(torch.tensor(shares, dtype=torch.float64), clusters, seed),
        unanimous,
    )


def _unanimous(rows: Sequence[Row]) -> Tensor:
    """(N,) bool: every vote is for the text labelled better."""
    return torch.tensor(
        [row["votes"]["chosen"] == sum(row["votes"].values()) for row in rows], dtype=torch.bool
    )


def _margin(votes: dict[str, int]) -> float:
    """In [-1, 1]. One division: subtracting shares would round equal margins apart."""
    return (votes["chosen"] - votes["rejected"]) / sum(votes.values())


def _label_free_order(row: Row) -> float:
    """1 where a hash of the two texts, in whichever roles, puts chosen first, else -1."""
    texts = sorted((row["chosen"], row["rejected"]))
    odd = hashlib.sha256("\0".join(texts).encode("utf-8")).digest()[0] % 2
    return 1.0 if row["chosen"] == texts[odd] else -1.0
