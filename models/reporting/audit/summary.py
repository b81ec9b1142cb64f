"""The first screen's numbers: how many pairs look wrong, where, and how far to believe that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.payload import category_of
from trimtab.models.reporting.kit.artifacts import SPLITS, Row
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.statistics.estimates import Estimate, cluster_ids, share_estimate

STYLE = STRENGTH_NAMES["style"]


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
class Found:
    """Of labels turned round on purpose, the share that the vote contradicts."""

    name: str
    num_planted: int
    found: Estimate


@dataclass(frozen=True)
class SelfTest:
    """The vote on a copy of the pairs of which some labels were turned round on purpose.

    whole: all of them; by_category: of each category, most found first. others: share of the
    labels left alone that the vote contradicts in this copy. weakest: of as many weakest pairs as
    labels were turned round, the share of these; others among them may be wrong, too.
    """

    whole: Found
    by_category: list[Found]
    others: Estimate
    weakest: Estimate

    @property
    def most_wrong(self) -> float | None:
        """The largest share of wrong labels that the test allows; None where it allows any.

        If wrong labels are contradicted as often (r) as those turned round, and right ones at rate
        a, of which a share w is wrong: others = (1 - w) a + w r and found = (1 - w) r + w a, as a
        wrong label turned round is right. Both add up to r + a. Where found is above others w is
        largest where a is 0, others / (others + found): taken at the ends of the two intervals that
        make it largest. Otherwise the vote does not tell wrong labels from right ones.
        """
        others, found = self.others.high, self.whole.found.low
        return others / (others + found) if found > others else None


@dataclass(frozen=True)
class Summary:
    """All pairs, then by split, then by category (most of all that look wrong first).

    has_truth: whether the right labels of all pairs are known. is_in_sample: whether members vote
    on pairs they were trained on. voters: what the members are; none: reward models. num_by_style:
    pairs that look wrong though they do so only to the member that sees nothing but how an answer
    is written. self_test: None where there was none, or too few pairs for one. tells_nothing:
    whether no member is better than chance, so that every strength is 0.
    """

    whole: Group
    by_split: list[Group]
    by_category: list[Group]
    num_members: int
    has_truth: bool
    is_in_sample: bool
    voters: tuple[str, ...] = ()
    num_by_style: int = 0
    self_test: SelfTest | None = None
    tells_nothing: bool = False

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
        if self.voters:
            found["tells_nothing"] = self.tells_nothing
        if STYLE in self.voters:
            found["num_by_style"] = self.num_by_style
        if test := self.self_test:
            found |= {
                "self_test_num_planted": test.whole.num_planted,
                "self_test_found": test.whole.found.value,
                "self_test_found_low": test.whole.found.low,
                "self_test_found_high": test.whole.found.high,
                "self_test_weakest": test.weakest.value,
                "self_test_others": test.others.value,
            }
            if (most := test.most_wrong) is not None:
                found["self_test_most_wrong"] = most
        return found


def summarise(
    pairs: Sequence[AuditedPair],
    voters: Sequence[str] = (),
    self_test: Sequence[Row] = (),
) -> Summary:
    """Count `pairs`. self_test: strength.jsonl of the vote on a copy with planted flips."""
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
        is_in_sample=not voters and all(None not in pair.differences for pair in pairs),
        voters=tuple(STRENGTH_NAMES.get(each, each) for each in voters),
        num_by_style=_num_by_style(pairs, voters),
        self_test=_self_test(pairs, self_test),
        tells_nothing=bool(voters) and all(pair.strength_mean == 0 for pair in pairs),
    )


def _num_by_style(pairs: Sequence[AuditedPair], voters: Sequence[str]) -> int:
    """Pairs that look wrong, but not to any member that reads what the answers say."""
    others = [index for index, name in enumerate(voters) if name != "style"]
    if len(others) == len(voters):
        return 0
    return sum(
        pair.looks_wrong and all((pair.differences[index] or 0) >= 0 for index in others)
        for pair in pairs
    )


def _self_test(pairs: Sequence[AuditedPair], rows: Sequence[Row]) -> SelfTest | None:
    """What the vote finds of the planted flips; None where nothing was planted."""
    strength = {row["id"]: row for row in rows if row["split"] == "train"}
    own = [pair for pair in pairs if pair.id in strength]
    clusters = cluster_ids(pair.prompt for pair in own)
    negative = torch.tensor([strength[pair.id]["strength_mean"] < 0 for pair in own])
    planted = torch.tensor([bool(strength[pair.id].get("is_planted")) for pair in own])
    if not bool(planted.any()):
        return None
    order = torch.argsort(
        torch.tensor([strength[pair.id]["strength_mean"] for pair in own]), stable=True
    )[: int(planted.sum())]

    def found_of(name: str, chosen: torch.Tensor) -> Found | None:
        share = share_estimate(negative[chosen], clusters[chosen])
        return None if share is None else Found(name, int(chosen.sum()), share)

    names = [category_of(pair) for pair in own]
    by_category = [
        found_of(name, planted & torch.tensor([each == name for each in names]))
        for name in sorted(set(names))
    ]
    whole, others = (
        found_of("all pairs", planted),
        share_estimate(negative[~planted], clusters[~planted]),
    )
    weakest = share_estimate(planted[order], clusters[order])
    assert whole is not None and others is not None and weakest is not None
    return SelfTest(
        whole,
        sorted((each for each in by_category if each), key=lambda each: -each.found.value),
        others,
        weakest,
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
