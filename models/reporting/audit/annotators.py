"""The people who labelled the pairs: how far they agree, and who is right how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.statistics.annotators import consensus, krippendorff_alpha, opinions_of


@dataclass(frozen=True)
class Annotator:
    """num_votes: on all pairs, repeated ones too. num_shared: on those that others voted on, too.
    accuracy: by Dawid-Skene; the prior's, which tells nothing, of who shares no pair. num_decided:
    votes for either answer; num_contradicted: of these the ones that the audit's vote
    contradicts."""

    name: str
    num_votes: int
    num_shared: int
    accuracy: float
    num_decided: int
    num_contradicted: int


@dataclass(frozen=True)
class Annotators:
    """people: those of lowest accuracy first, last those who share no pair. alpha: Krippendorff's,
    None where nobody's votes can be compared. num_pairs: different ones with votes; num_shared:
    that several people voted on."""

    people: list[Annotator]
    alpha: float | None
    num_pairs: int
    num_shared: int

    def numbers(self) -> dict[str, float]:
        """Flat, as summary.json holds them."""
        found: dict[str, float] = {
            "num_annotators": len(self.people),
            "num_annotated_pairs": self.num_pairs,
            "num_pairs_of_several_annotators": self.num_shared,
        }
        if self.alpha is not None:
            found["krippendorff_alpha"] = self.alpha
        if self.num_shared:
            found["lowest_annotator_accuracy"] = self.people[0].accuracy
        return found


def annotators_of(pairs: Sequence[AuditedPair]) -> Annotators | None:
    """What the pairs' opinions tell of those who gave them; None where no pair has any."""
    with_votes = [pair for pair in pairs if pair.opinions]
    opinions = opinions_of(
        {name: getattr(pair, name) for name in ("id", "prompt", "chosen", "rejected", "opinions")}
        for pair in with_votes
    )
    if opinions is None:
        return None
    votes, shared, decided, contradicted = ([0] * len(opinions.names) for _ in range(4))
    number = {name: index for index, name in enumerate(opinions.names)}
    is_shared = opinions.is_shared.tolist()
    for pair in with_votes:
        for said in pair.opinions:
            who, prefers = number[said["annotator"]], said["prefers"]
            votes[who] += 1
            shared[who] += is_shared[opinions.item_of[pair.id][0]]
            if prefers != "equal":
                decided[who] += 1
                contradicted[who] += pair.strength_mean * (1 if prefers == "chosen" else -1) < 0
    accuracy = consensus(opinions).accuracy.tolist()
    columns = zip(opinions.names, votes, shared, accuracy, decided, contradicted, strict=True)
    people = sorted(
        (Annotator(*each) for each in columns),
        key=lambda one: (not one.num_shared, one.accuracy, one.name),
    )
    alpha = krippendorff_alpha(opinions)
    return Annotators(people, alpha, opinions.num_items, sum(is_shared))
