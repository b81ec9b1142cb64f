"""The first screen's numbers: how many pairs look wrong, where, and how far to believe that, by a
self-test: how many of the labels turned round on purpose, in a copy, the vote contradicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trimtab.models.data.external_votes import VERDICTS
from trimtab.models.data.words import UNKNOWN_TOKENS, words_of
from trimtab.models.reporting.audit.agreement import Annotators, Panel, annotators_of
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import SPLITS, Row
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.intervals import effective_count
from trimtab.models.statistics.measured import Estimate
from trimtab.models.statistics.wrong_labels import WrongLabels, wrong_labels

# A training pair with its row of the vote on the copy.
Voted = tuple[AuditedPair, Row]
# Labels turned round that each group of pairs must have, for groups by length to be shown: half the
# width of the interval is then at most .21.
FEWEST_OF_LENGTH = 20
# Which answer a label is for.
LONGER, SHORTER, EQUAL = "the longer answer", "the shorter answer", "one of two equally long"


@dataclass(frozen=True)
class Recall:
    """Of the labels turned round on purpose in some pairs, the share that the vote contradicts.

    others: of the labels of these pairs that were left alone; None where there are none.
    """

    name: str
    num_planted: int
    recall: Estimate
    others: Estimate | None

    def numbers(self, name: str) -> dict[str, float]:
        """As a summary holds them, by names that begin so."""
        found: dict[str, float] = {
            f"{name}_num_planted": self.num_planted,
            f"{name}_recall": self.recall.value,
            f"{name}_recall_low": self.recall.low,
            f"{name}_recall_high": self.recall.high,
        }
        if self.others is not None:
            found[f"{name}_others_flagged"] = self.others.value
        return found


@dataclass(frozen=True)
class SelfTest:
    """The vote on a copy of the pairs of which some labels were turned round on purpose.

    whole: of all of them; by_category: of each category's, largest first. by_label: of labels, as
    they stand in the copy, for the longer answer by words and for the shorter one: with the first a
    rule that longer is better agrees, the second it contradicts. by_difference: of thirds of the
    labels turned round, by how many words the answers differ. Both are empty where a group has too
    few. others_flagged: share of the labels left alone that the vote contradicts in this copy.
    precision_at_k: of the k weakest pairs, k labels being turned round, the share of these; others
    among them may be wrong, too.
    """

    whole: Recall
    by_category: list[Recall]
    by_label: list[Recall]
    by_difference: list[Recall]
    others_flagged: Estimate
    precision_at_k: Estimate

    @property
    def max_share_wrong(self) -> float | None:
        """The largest share of wrong labels that the test allows; None where it allows any.

        Let wrong labels be contradicted as often (r) as those turned round, right ones at rate a,
        and a share w be wrong. Then others_flagged = (1 - w) a + w r, and recall = (1 - w) r + w a,
        as a wrong label turned round is right: both add up to r + a. Where recall is the larger, w
        is largest at a = 0, others_flagged / (others_flagged + recall), here at the ends of both
        intervals that make it largest. Otherwise the vote does not tell wrong labels from right.
        """
        others, recall = self.others_flagged.high, self.whole.recall.low
        return others / (others + recall) if recall > others else None

    def numbers(self) -> dict[str, float]:
        """Flat, as summary.json holds them."""
        found = self.whole.numbers("self_test")
        found["self_test_precision_at_k"] = self.precision_at_k.value
        if (most := self.max_share_wrong) is not None:
            found["self_test_max_share_wrong"] = most
        keys = {LONGER: "for_longer", SHORTER: "for_shorter", EQUAL: "for_equal"}
        for group in self.by_label:
            found |= group.numbers(f"self_test_{keys[group.name]}")
        for number, group in enumerate(self.by_difference, 1):
            found |= group.numbers(f"self_test_difference_{number}")
        return found


def self_test_of(pairs: Sequence[AuditedPair], rows: Sequence[Row]) -> SelfTest | None:
    """What the vote finds of the labels turned round; None where none was. rows: strength.jsonl of
    the vote on the copy."""
    known = {row["id"]: row for row in rows if row.get("is_planted") is not None}
    voted = [(pair, known[pair.id]) for pair in pairs if pair.split == "train" and known]
    whole = _recall("all pairs", voted)
    if whole is None or whole.others is None:
        return None
    weakest = sorted(voted, key=lambda each: float(each[1]["strength_mean"]))[: whole.num_planted]
    precision = share_of_pairs([r["is_planted"] for _, r in weakest], [pair for pair, _ in weakest])
    assert precision is not None
    by_category = _grouped(voted, [pair.category_name for pair, _ in voted]).values()
    return SelfTest(
        whole=whole,
        by_category=sorted(by_category, key=lambda group: (-group.recall.value, group.name)),
        by_label=_recall_by_label(voted),
        by_difference=_recall_by_difference(voted),
        others_flagged=whole.others,
        precision_at_k=precision,
    )


def _recall(name: str, voted: Sequence[Voted]) -> Recall | None:
    """Of some pairs; None where no label was turned round."""
    planted = [each for each in voted if each[1]["is_planted"]]
    found = _share_contradicted(planted)
    others = _share_contradicted([each for each in voted if not each[1]["is_planted"]])
    return None if found is None else Recall(name, len(planted), found, others)


def _share_contradicted(voted: Sequence[Voted]) -> Estimate | None:
    pairs = [pair for pair, _ in voted]
    return share_of_pairs([row["strength_mean"] < 0 for _, row in voted], pairs)


def _grouped(voted: Sequence[Voted], names: Sequence[str]) -> dict[str, Recall]:
    """Of each group that has a label turned round, by the names of the pairs' groups."""
    groups: dict[str, list[Voted]] = {}
    for each, name in zip(voted, names, strict=True):
        groups.setdefault(name, []).append(each)
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
    found = _grouped(voted, names)
    found = {name: group for name, group in found.items() if group.num_planted >= FEWEST_OF_LENGTH}
    shown = [found[name] for name in (LONGER, SHORTER, EQUAL) if name in found]
    return shown if {LONGER, SHORTER} <= found.keys() else []


def _recall_by_difference(voted: Sequence[Voted]) -> list[Recall]:
    """By thirds of the difference in length; nothing where one of them has few labels turned round,
    as where most answers are equally long."""
    words = np.array([abs(_words_more(pair)) for pair, _ in voted])
    is_planted = np.array([row["is_planted"] for _, row in voted])
    low, high = np.quantile(words[is_planted], [1 / 3, 2 / 3], method="inverted_cdf").tolist()
    names = [f"up to {low}", f"{low + 1} to {high}", f"{high + 1} or more"]
    groups = _grouped(voted, [names[third] for third in np.searchsorted([low, high], words)])
    found = [groups[name] for name in names if name in groups]
    has_enough = all(group.num_planted >= FEWEST_OF_LENGTH for group in found)
    return found if len(found) == len(names) and has_enough else []


def share_of_pairs(hits: Sequence[bool], pairs: Sequence[AuditedPair]) -> Estimate | None:
    """A share of pairs with its interval; pairs of one prompt count as fewer."""
    return share_estimate(hits, cluster_ids(pair.prompt for pair in pairs))


STYLE = STRENGTH_NAMES["style"]
# A voter that prefers the answer labelled worse on so large a share of the pairs may have its signs
# reversed.
CHANCE, FROM_REVERSED = 0.5, 0.6


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
    whether no member is better than chance, so that every strength is 0. wrong: how many of the
    labels that look wrong are; None where the self-test cannot tell wrong labels from right, or
    there was none. verdicts: of a person, how
    many of each. num_dropped: pairs of weight 0; num_weighted: of a weight between 0 and 1;
    num_smoothed: with a label softer than it came.
    reversed: of the user's own voters those that prefer the answer labelled worse on most pairs, in
    words. unseen: of `unseen_by`.
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
    wrong: WrongLabels | None = None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    num_dropped: int = 0
    num_weighted: int = 0
    num_smoothed: int = 0
    reversed: tuple[str, ...] = ()
    unseen: Mapping[str, float | str] = field(default_factory=dict)
    annotators: Annotators | None = None
    panel: Panel | None = None

    def numbers(self) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        found: dict[str, float | str] = {
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
            found["can_be_believed"] = self.wrong is not None
            found |= self.unseen
        if self.reversed:
            found["reversed_voters"] = "; ".join(self.reversed)
        if STYLE in self.voters:
            found["num_by_style"] = self.num_by_style
        for those in (self.wrong, self.self_test, self.annotators, self.panel):
            found |= those.numbers() if those else {}
        return found


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
    return Summary(
        whole=_group("all pairs", pairs),
        by_split=[_group(s, part) for s, part in zip(SPLITS, splits, strict=True) if part],
        by_category=sorted(categories, key=lambda g: (-g.num_wrong / g.num_pairs, g.name)),
        num_members=len(pairs[0].differences),
        has_truth=all(pair.truth is not None for pair in pairs),
        is_in_sample=not voters and all(None not in pair.differences for pair in pairs),
        voters=tuple(STRENGTH_NAMES.get(each, each) for each in voters),
        num_by_style=_num_by_style(pairs, voters),
        self_test=test,
        is_uninformative=bool(voters) and all(pair.strength_mean == 0 for pair in pairs),
        wrong=_wrong(pairs) if test is not None and test.max_share_wrong is not None else None,
        verdicts={each: sum(pair.review == each for pair in pairs) for each in VERDICTS},
        num_dropped=sum(pair.weight == 0 for pair in pairs),
        num_weighted=sum(0 < pair.weight < 1 for pair in pairs),
        num_smoothed=sum(pair.is_smoothed for pair in pairs),
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
        f"{name}: {100 * (told['num_cut'] / told['num_answers']):.0f} % of the answers"
        for name, told in zip(voters, summaries, strict=False)
        if told.get("num_cut")
    ]
    unknown = max(told.get(UNKNOWN_TOKENS, 0.0) for told in summaries)
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


def _wrong(pairs: Sequence[AuditedPair]) -> WrongLabels | None:
    strength = np.array([pair.strength_mean for pair in pairs])
    against = torch.from_numpy(strength < 0).double()
    worth = effective_count(against, cluster_ids(pair.prompt for pair in pairs)) / len(pairs)
    return wrong_labels(strength, worth)


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
