"""The first screen's numbers: how many pairs look wrong, where, and how far to believe that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.models.data.review import VERDICTS
from trimtab.models.reporting.audit.annotators import Annotators, annotators_of
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.panel import Panel
from trimtab.models.reporting.audit.payload import category_of
from trimtab.models.reporting.audit.self_test import SelfTest, self_test_of, share_of_pairs
from trimtab.models.reporting.kit.artifacts import SPLITS, Row
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.statistics.estimates import Estimate

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
class Summary:
    """All pairs, then by split, then by category (most of all that look wrong first).

    has_truth: whether the right labels of all pairs are known. is_in_sample: whether members vote
    on pairs they were trained on. voters: what the members are; none: reward models. num_by_style:
    pairs that look wrong though they do so only to the member that sees nothing but how an answer
    is written. self_test: None where there was none, or too few pairs for one. is_uninformative:
    whether no member is better than chance, so that every strength is 0. verdicts: of a person, how
    many of each. num_dropped: pairs of weight 0; num_weighted: of a weight between 0 and 1;
    num_smoothed: with a label softer than it came.
    annotators: None where nobody knows who labelled which pair. panel: None where no judge votes.
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
    is_uninformative: bool = False
    verdicts: Mapping[str, int] = field(default_factory=dict)
    num_dropped: int = 0
    num_weighted: int = 0
    num_smoothed: int = 0
    annotators: Annotators | None = None
    panel: Panel | None = None

    def numbers(self) -> dict[str, float]:
        """Flat, as summary.json holds them."""
        found: dict[str, float] = {
            "num_pairs": self.whole.num_pairs,
            "num_looks_wrong": self.whole.num_wrong,
            "num_disputed": self.whole.num_disputed,
            "num_flipped": self.whole.num_flipped,
            "num_unsupported_flips": self.whole.num_unsupported,
            "num_reviewed": self.whole.num_reviewed,
            "num_dropped": self.num_dropped,
            "num_weighted": self.num_weighted,
            "num_smoothed": self.num_smoothed,
        }
        if self.whole.num_reviewed:
            found |= {f"num_review_{verdict}": n for verdict, n in self.verdicts.items()}
        for name, estimate in (("precision", self.whole.precision), ("recall", self.whole.recall)):
            if estimate is not None:
                found[name] = estimate.value
        if self.voters:
            found["is_uninformative"] = self.is_uninformative
        if STYLE in self.voters:
            found["num_by_style"] = self.num_by_style
        for those in (self.self_test, self.annotators, self.panel):
            found |= those.numbers() if those else {}
        return found


def summarise(
    pairs: Sequence[AuditedPair],
    voters: Sequence[str] = (),
    self_test: Sequence[Row] = (),
    panel: Panel | None = None,
) -> Summary:
    """Count `pairs`. self_test: strength.jsonl of the vote on a copy with planted flips. panel: the
    judges among the voters."""
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
        self_test=self_test_of(pairs, self_test),
        is_uninformative=bool(voters) and all(pair.strength_mean == 0 for pair in pairs),
        verdicts={each: sum(pair.review == each for pair in pairs) for each in VERDICTS},
        num_dropped=sum(pair.weight == 0 for pair in pairs),
        num_weighted=sum(0 < pair.weight < 1 for pair in pairs),
        num_smoothed=sum(pair.is_smoothed for pair in pairs),
        annotators=annotators_of(pairs),
        panel=panel,
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


def _group(name: str, pairs: Sequence[AuditedPair]) -> Group:
    looks_wrong = [pair for pair in pairs if pair.looks_wrong]
    precision = recall = None
    if all(pair.truth is not None for pair in pairs):
        wrong = [pair for pair in pairs if _is_wrong(pair)]
        precision = share_of_pairs([_is_wrong(pair) for pair in looks_wrong], looks_wrong)
        recall = share_of_pairs([pair.looks_wrong for pair in wrong], wrong)
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


def _is_wrong(pair: AuditedPair) -> bool:
    return pair.truth is not None and bool(pair.truth["is_wrong"])
