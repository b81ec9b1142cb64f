"""The self-test's numbers: how many of the labels turned round on purpose, in a copy, are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.models.data.words import words_of
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import Row
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate

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
