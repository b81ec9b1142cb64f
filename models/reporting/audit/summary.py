"""The first screen's numbers: how many pairs look wrong, where, and how far to believe that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.payload import category_of
from trimtab.models.reporting.kit.artifacts import SPLITS
from trimtab.models.statistics.estimates import Estimate, cluster_ids, share_estimate


@dataclass(frozen=True)
class Group:
    """Some of the pairs.

    num_wrong: those that look wrong. num_disputed: those over which the members disagree.
    num_flipped, num_reviewed: by relabelling; num_unsupported: of the flipped, those of which no
    member prefers the answer labelled worse. precision: share of the pairs that look wrong whose
    label is wrong; recall: share of the wrong labels that look wrong. None where nobody knows the
    right labels, or there is no such pair.
    """

    name: str
    num_pairs: int
    num_wrong: int
    num_disputed: int
    num_flipped: int
    num_unsupported: int
    num_reviewed: int
    precision: Estimate | None
    recall: Estimate | None


@dataclass(frozen=True)
class Summary:
    """All pairs, then by split, then by category (most of all that look wrong first).

    has_truth: whether the right labels of all pairs are known. is_in_sample: whether members vote
    on pairs they were trained on.
    """

    whole: Group
    by_split: list[Group]
    by_category: list[Group]
    num_members: int
    has_truth: bool
    is_in_sample: bool

    def numbers(self) -> dict[str, float]:
        """Flat, as summary.json holds them."""
        found: dict[str, float] = {
            "num_pairs": self.whole.num_pairs,
            "num_looks_wrong": self.whole.num_wrong,
            "num_disputed": self.whole.num_disputed,
            "num_flipped": self.whole.num_flipped,
            "num_unsupported_flips": self.whole.num_unsupported,
            "num_reviewed": self.whole.num_reviewed,
        }
        for name, estimate in (("precision", self.whole.precision), ("recall", self.whole.recall)):
            if estimate is not None:
                found[name] = estimate.value
        return found


def summarise(pairs: Sequence[AuditedPair]) -> Summary:
    """Count `pairs`."""
    by_category: dict[str, list[AuditedPair]] = {}
    for pair in pairs:
        by_category.setdefault(category_of(pair), []).append(pair)
    categories = [_group(name, part) for name, part in by_category.items()]
    splits = [[pair for pair in pairs if pair.split == split] for split in SPLITS]
    return Summary(
        whole=_group("all pairs", pairs),
        by_split=[_group(s, part) for s, part in zip(SPLITS, splits, strict=True) if part],
        by_category=sorted(categories, key=lambda g: (-g.num_wrong / g.num_pairs, g.name)),
        num_members=len(pairs[0].differences),
        has_truth=all(pair.truth is not None for pair in pairs),
        is_in_sample=all(None not in pair.differences for pair in pairs),
    )


def _group(name: str, pairs: Sequence[AuditedPair]) -> Group:
    looks_wrong = [pair for pair in pairs if pair.looks_wrong]
    precision = recall = None
    if all(pair.truth is not None for pair in pairs):
        wrong = [pair for pair in pairs if _is_wrong(pair)]
        precision = _share([_is_wrong(pair) for pair in looks_wrong], looks_wrong)
        recall = _share([pair.looks_wrong for pair in wrong], wrong)
    return Group(
        name=name,
        num_pairs=len(pairs),
        num_wrong=len(looks_wrong),
        num_disputed=sum(pair.is_disputed for pair in pairs),
        num_flipped=sum(pair.is_flipped for pair in pairs),
        num_unsupported=sum(pair.is_flip_unsupported for pair in pairs),
        num_reviewed=sum(pair.review is not None for pair in pairs),
        precision=precision,
        recall=recall,
    )


def _share(hits: Sequence[bool], pairs: Sequence[AuditedPair]) -> Estimate | None:
    return share_estimate(hits, cluster_ids(pair.prompt for pair in pairs))


def _is_wrong(pair: AuditedPair) -> bool:
    return pair.truth is not None and bool(pair.truth["is_wrong"])
