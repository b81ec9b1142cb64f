"""The first screen's numbers: how many pairs look wrong, where, and how far to believe that, by a
self-test: how many of the planted flips, in a copy, the vote contradicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.models.data.external_votes import VERDICTS
from trimtab.models.data.words import UNKNOWN_TOKENS, words_of
from trimtab.models.reporting.audit.agreement import Annotators, Panel, annotators_of
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import SPLITS, Row
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.statistics.estimates import (
    cluster_ids,
    share_estimate,
    wrong_labels_by_prompt,
)
from trimtab.models.statistics.measured import Estimate, flatten, with_ends
from trimtab.models.statistics.wrong_labels import WrongLabels

# A training pair with its row of the vote on the copy.
Voted = tuple[AuditedPair, Row]
# Planted flips that each group of pairs must have, for groups by length to be shown: half the
# width of the interval is then at most .21.
FEWEST_OF_LENGTH = 20
# Which answer a label is for.
LONGER, SHORTER, EQUAL = "the longer answer", "the shorter answer", "one of two equally long"
SIDES = {LONGER: "for_longer", SHORTER: "for_shorter", EQUAL: "for_equal"}


@dataclass(frozen=True)
class Recall:
    """Of the planted flips in some pairs, the share that the vote contradicts.

    others: of the labels of these pairs that were left alone; None where there are none.
    """

    name: str
    num_planted: int
    recall: Estimate
    others: Estimate | None

    def numbers(self, prefix: str) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        return {
            **flatten(prefix, num_planted=self.num_planted),
            **with_ends(f"{prefix}_recall", self.recall),
            **flatten(prefix, others_flagged=self.others),
        }


@dataclass(frozen=True)
class SelfTest:
    """The vote on a copy of the pairs with planted flips.

    overall: of all of them; by_category: of each category's, largest first. by_label: of labels, as
    they stand in the copy, for the longer answer by words and for the shorter one: with the first a
    rule that longer is better agrees, the second it contradicts. by_difference: of thirds of the
    planted flips, by how many words the answers differ. Both are empty where a group has too
    few. others_flagged: share of the labels left alone that the vote contradicts in this copy.
    precision_at_k: of the k weakest pairs, k being the planted flips, their share of these; others
    among them may be wrong, too.
    """

    overall: Recall
    by_category: list[Recall]
    by_label: list[Recall]
    by_difference: list[Recall]
    others_flagged: Estimate
    precision_at_k: Estimate

    @property
    def max_share_wrong(self) -> float | None:
        """The largest share of wrong labels that the test allows; None where it allows any.

        Let wrong labels be contradicted as often (r) as planted flips, right ones at rate a,
        and a share w be wrong. Then others_flagged = (1 - w) a + w r, and recall = (1 - w) r + w a,
        as a wrong label that is flipped is right: both add up to r + a. Where recall is the larger,
        w is largest at a = 0, others_flagged / (others_flagged + recall), here at the ends of both
        intervals that make it largest. Otherwise the vote does not tell wrong labels from right.
        """
        others, recall = self.others_flagged.high, self.overall.recall.low
        return others / (others + recall) if recall > others else None

    def numbers(self) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        numbers = self.overall.numbers("self_test") | flatten(
            "self_test", precision_at_k=self.precision_at_k, max_share_wrong=self.max_share_wrong
        )
        groups = {SIDES[group.name]: group for group in self.by_label}
        groups |= {f"difference_{n}": group for n, group in enumerate(self.by_difference, 1)}
        for name, group in groups.items():
            numbers |= group.numbers(f"self_test_{name}")
        return numbers


def self_test_of(pairs: Sequence[AuditedPair], rows: Sequence[Row]) -> SelfTest | None:
    """What the vote finds of the planted flips; None where there are none. rows: strength.jsonl of
    the vote on the copy."""
    planted = {row["id"]: row for row in rows if row.get("is_planted") is not None}
    voted = [(pair, planted[pair.id]) for pair in pairs if pair.split == "train" and planted]
    overall = _recall("all pairs", voted)
    if overall is None or overall.others is None:
        return None
    weakest = sorted(voted, key=lambda vote: float(vote[1]["strength_mean"]))[: overall.num_planted]
    precision = share_of_pairs([r["is_planted"] for _, r in weakest], [pair for pair, _ in weakest])
    assert precision is not None
    by_category = _grouped(voted, [pair.category_name for pair, _ in voted]).values()
    return SelfTest(
        overall=overall,
        by_category=sorted(by_category, key=lambda group: (-group.recall.value, group.name)),
        by_label=_recall_by_label(voted),
        by_difference=_recall_by_difference(voted),
        others_flagged=overall.others,
        precision_at_k=precision,
    )


def _recall(name: str, voted: Sequence[Voted]) -> Recall | None:
    """Of some pairs; None where there is no planted flip."""
    shares = []
    for is_planted in (True, False):
        group = [(pair, row) for pair, row in voted if row["is_planted"] == is_planted]
        is_against = [row["strength_mean"] < 0 for _, row in group]
        shares.append(share_of_pairs(is_against, [pair for pair, _ in group]))
    recall, others = shares
    return None if recall is None else Recall(name, recall.count, recall, others)


def _grouped(voted: Sequence[Voted], names: Sequence[str]) -> dict[str, Recall]:
    """Of each group that has a planted flip, by the names of the pairs' groups."""
    groups: dict[str, list[Voted]] = {}
    for vote, name in zip(voted, names, strict=True):
        groups.setdefault(name, []).append(vote)
    recalls = {name: _recall(name, group) for name, group in groups.items()}
    return {name: recall for name, recall in recalls.items() if recall is not None}


def _words_more(pair: AuditedPair) -> int:
    """How many words longer the answer is that came as the better one."""
    return len(words_of(pair.chosen)) - len(words_of(pair.rejected))


def _recall_by_label(voted: Sequence[Voted]) -> list[Recall]:
    """By which answer the label is for in the copy; nothing where few are for the longer one, or
    few for the shorter one."""
    names = []
    for pair, row in voted:
        more = -_words_more(pair) if row["is_planted"] else _words_more(pair)
        names.append(LONGER if more > 0 else SHORTER if more < 0 else EQUAL)
    groups = _grouped(voted, names)
    large = {name for name, group in groups.items() if group.num_planted >= FEWEST_OF_LENGTH}
    return [groups[name] for name in SIDES if name in large] if {LONGER, SHORTER} <= large else []


def _recall_by_difference(voted: Sequence[Voted]) -> list[Recall]:
    """By thirds of the difference in length; nothing where one of them has few planted flips,
    as where most answers are equally long."""
    words = np.array([abs(_words_more(pair)) for pair, _ in voted])
    is_planted = np.array([row["is_planted"] for _, row in voted])
    low, high = np.quantile(words[is_planted], [1 / 3, 2 / 3], method="inverted_cdf").tolist()
    names = [f"up to {low}", f"{low + 1} to {high}", f"{high + 1} or more"]
    groups = _grouped(voted, [names[third] for third in np.searchsorted([low, high], words)])
    thirds = [groups[name] for name in names if name in groups]
    has_enough = all(group.num_planted >= FEWEST_OF_LENGTH for group in thirds)
    return thirds if len(thirds) == len(names) and has_enough else []


def share_of_pairs(hits: Sequence[bool], pairs: Sequence[AuditedPair]) -> Estimate | None:
    """A share of pairs with its interval; pairs of one prompt count as fewer."""
    return share_estimate(hits, cluster_ids(pair.prompt for pair in pairs))


STYLE = STRENGTH_NAMES["style"]
# A voter that prefers the answer labelled worse on so large a share of the pairs may have its signs
# reversed.
CHANCE, FROM_REVERSED = 0.5, 0.6


@dataclass(frozen=True)
class Group:
    """Some of the pairs, counts by the names that they have in summary.json.

    num_looks_wrong: strength below 0. num_disputed: the members disagree. num_unsupported_flips: of
    the flipped those of which no member prefers the answer labelled worse. num_dropped: of weight
    0; num_weighted: of a weight between 0 and 1; num_smoothed: with a label softer than it came.
    precision: share of the pairs that look wrong whose label is wrong; recall: share of the wrong
    labels that look wrong. None where nobody knows the right labels, or there is no such pair.
    """

    name: str
    num_pairs: int
    num_looks_wrong: int
    num_disputed: int
    num_flipped: int
    num_unsupported_flips: int
    num_reviewed: int
    num_dropped: int
    num_weighted: int
    num_smoothed: int
    precision: Estimate | None
    recall: Estimate | None


@dataclass(frozen=True)
class Summary:
    """All pairs, then by split, then by category (most of all that look wrong first).

    has_truth: whether the right labels of all pairs are known. is_in_sample: whether members vote
    on pairs they were trained on. voters: what the members are; none: reward models. num_by_style:
    pairs that look wrong though they do so only to the member that sees nothing but how an answer
    is written. self_test: None where there was none, or too few pairs for one. is_uninformative:
    whether no member is better than chance, so that every strength is 0. wrong: how many of the
    labels that look wrong are; None where the self-test cannot tell wrong labels from right, or
    there was none. verdicts: of a person, how many of each. reversed: of the user's own voters
    those that prefer the answer labelled worse on most pairs, in words. unseen: of `unseen_by`.
    annotators: None where nobody knows who labelled which pair. panel: None where no judge votes.
    """

    overall: Group
    by_split: list[Group]
    by_category: list[Group]
    num_members: int
    has_truth: bool
    is_in_sample: bool
    voters: tuple[str, ...] = ()
    num_by_style: int = 0
    self_test: SelfTest | None = None
    is_uninformative: bool = False
    wrong: WrongLabels | None = None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    reversed: tuple[str, ...] = ()
    unseen: Mapping[str, float | str] = field(default_factory=dict)
    annotators: Annotators | None = None
    panel: Panel | None = None

    def numbers(self) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        overall, has_voters = self.overall, bool(self.voters)
        reviewed = self.verdicts if overall.num_reviewed else {}
        counts = {name: n for name, n in vars(overall).items() if name.startswith("num_")}
        numbers = flatten(
            **counts,
            **{f"num_review_{verdict}": number for verdict, number in reviewed.items()},
            precision=overall.precision,
            recall=overall.recall,
            is_uninformative=self.is_uninformative if has_voters else None,
            can_be_believed=self.wrong is not None if has_voters else None,
            **(self.unseen if has_voters else {}),
            reversed_voters="; ".join(self.reversed) or None,
            num_by_style=self.num_by_style if STYLE in self.voters else None,
        )
        for part in (self.wrong, self.self_test, self.annotators, self.panel):
            numbers |= part.numbers() if part else {}
        return numbers


def summarise(
    pairs: Sequence[AuditedPair],
    voters: Sequence[str] = (),
    self_test: Sequence[Row] = (),
    panel: Panel | None = None,
    num_external: int = 0,
    unseen: Mapping[str, float | str] | None = None,
) -> Summary:
    """Count `pairs`. self_test: strength.jsonl of the vote on a copy with planted flips. panel: the
    judges among the voters. num_external: how many of these, the last ones, are the user's own."""
    by_category: dict[str, list[AuditedPair]] = {}
    for pair in pairs:
        by_category.setdefault(pair.category_name, []).append(pair)
    categories = [_group(name, part) for name, part in by_category.items()]
    splits = [[pair for pair in pairs if pair.split == split] for split in SPLITS]
    test = self_test_of(pairs, self_test)
    can_tell = test is not None and test.max_share_wrong is not None
    strength = np.array([pair.strength_mean for pair in pairs])
    return Summary(
        overall=_group("all pairs", pairs),
        by_split=[_group(s, part) for s, part in zip(SPLITS, splits, strict=True) if part],
        by_category=sorted(categories, key=lambda g: (-g.num_looks_wrong / g.num_pairs, g.name)),
        num_members=len(pairs[0].differences),
        has_truth=all(pair.truth is not None for pair in pairs),
        is_in_sample=not voters and all(None not in pair.differences for pair in pairs),
        voters=tuple(STRENGTH_NAMES.get(voter, voter) for voter in voters),
        num_by_style=_num_by_style(pairs, voters),
        self_test=test,
        is_uninformative=bool(voters) and all(pair.strength_mean == 0 for pair in pairs),
        wrong=wrong_labels_by_prompt(strength, [pair.prompt for pair in pairs])
        if can_tell
        else None,
        verdicts={word: sum(pair.review == word for pair in pairs) for word in VERDICTS},
        reversed=tuple(_reversed(pairs, voters, num_external)),
        unseen=unseen or {},
        annotators=annotators_of(pairs),
        panel=panel,
    )


def unseen_by(
    voters: Sequence[str], summaries: Sequence[Mapping[str, Any]]
) -> dict[str, float | str]:
    """What voters cannot see, by their stages' summaries, as summary.json holds it: the share of
    the answers' tokens that the sentence encoder does not know, and of whom, if anybody, reads only
    a part of what is longer than it takes, the share of the answers."""
    cut = [
        f"{name}: {100 * (summary['num_cut'] / summary['num_answers']):.0f} % of the answers"
        for name, summary in zip(voters, summaries, strict=False)
        if summary.get("num_cut")
    ]
    unknown = max(summary.get(UNKNOWN_TOKENS, 0.0) for summary in summaries)
    return {UNKNOWN_TOKENS: unknown} | ({"voters_that_cut": "; ".join(cut)} if cut else {})


def _reversed(
    pairs: Sequence[AuditedPair], voters: Sequence[str], num_external: int
) -> Iterator[str]:
    """The last voters that contradict surely more than half of the labels, and by far."""
    for place in range(len(voters) - num_external, len(voters)):
        voted = [pair for pair in pairs if pair.differences[place]]
        against = [(pair.differences[place] or 0.0) < 0 for pair in voted]
        share = share_of_pairs(against, voted)
        if share is not None and share.low > CHANCE and share.value >= FROM_REVERSED:
            yield f"{voters[place]}: on {100 * share.value:.0f} % of {share.count:,} pairs"


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
    look_wrong = [pair for pair in pairs if pair.looks_wrong]
    precision = recall = None
    if all(pair.truth is not None for pair in pairs):
        wrong = [pair for pair in pairs if pair.is_wrong]
        precision = share_of_pairs([pair.is_wrong for pair in look_wrong], look_wrong)
        recall = share_of_pairs([pair.looks_wrong for pair in wrong], wrong)
    return Group(
        name=name,
        num_pairs=len(pairs),
        num_looks_wrong=len(look_wrong),
        num_disputed=sum(pair.is_disputed for pair in pairs),
        num_flipped=sum(pair.is_flipped for pair in pairs),
        num_unsupported_flips=sum(pair.is_flip_unsupported for pair in pairs),
        num_reviewed=sum(pair.review is not None for pair in pairs),
        num_dropped=sum(pair.weight == 0 for pair in pairs),
        num_weighted=sum(0 < pair.weight < 1 for pair in pairs),
        num_smoothed=sum(pair.is_smoothed for pair in pairs),
        precision=precision,
        recall=recall,
    )
