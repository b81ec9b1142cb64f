"""Who says which answer is better, people who labelled the pairs and judges that vote on them: what
each says, how far they agree, and of people who is right how often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor, float64, tensor

from trimtab.models.functional.verdicts import (
    debiased_preference,
    is_understood,
    order_verdicts,
)
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import Row
from trimtab.models.statistics.annotators import (
    Opinions,
    consensus,
    krippendorff_alpha,
    opinions_of,
)
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate


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
    opinions = _opinions_on(with_votes, [pair.opinions for pair in with_votes])
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


@dataclass(frozen=True)
class Judge:
    """num_judged: pairs that it was asked about; num_votes: those that it prefers an answer of.
    for_label: share of its votes for the answer labelled better. same_in_both_orders: of the pairs
    that it was understood on in both orders, the share of which it prefers one answer in both.
    position_bias: of these the mean probability of the answer shown first, less 1/2. None where
    there are no such pairs."""

    name: str
    num_judged: int
    num_votes: int
    for_label: Estimate | None
    same_in_both_orders: Estimate | None
    position_bias: float | None


@dataclass(frozen=True)
class Agreement:
    """share: of the pairs that two judges both vote on, those of which they prefer the same answer;
    None where there are none."""

    first: str
    second: str
    share: Estimate | None


@dataclass(frozen=True)
class Panel:
    """judges: in their order. agreements: of every two, the lowest first. alpha: Krippendorff's of
    the votes; None of a panel of one, and where no two judges vote on the same pair."""

    judges: list[Judge]
    agreements: list[Agreement]
    alpha: float | None

    def numbers(self) -> dict[str, float]:
        """Flat, as summary.json holds them."""
        found: dict[str, float] = {"num_judges": len(self.judges)}
        for one in self.judges:
            found |= {
                f"judge_{one.name}_num_judged": one.num_judged,
                f"judge_{one.name}_num_votes": one.num_votes,
            }
            shares = {
                "for_label": one.for_label,
                "same_in_both_orders": one.same_in_both_orders,
            }
            found |= {f"judge_{one.name}_{k}": v.value for k, v in shares.items() if v is not None}
            if one.position_bias is not None:
                found[f"judge_{one.name}_position_bias"] = one.position_bias
        for two in self.agreements:
            if two.share is not None:
                found[f"judges_{two.first}_and_{two.second}_agree"] = two.share.value
        if self.alpha is not None:
            found["judges_krippendorff_alpha"] = self.alpha
        return found


def panel_of(
    pairs: Sequence[AuditedPair], names: Sequence[str], judged: Sequence[Sequence[Row]]
) -> Panel | None:
    """The judges, which are the last that vote on `pairs`; None where there are none.

    judged: of each what it was asked, rows of judgements.jsonl.
    """
    if not names:
        return None
    clusters = cluster_ids(pair.prompt for pair in pairs)
    cluster_of = {pair.id: int(which) for pair, which in zip(pairs, clusters, strict=True)}
    votes = {name: _votes(pairs, index - len(names)) for index, name in enumerate(names)}
    judges = [
        _judge(name, rows, votes[name], clusters, cluster_of)
        for name, rows in zip(names, judged, strict=True)
    ]
    agreements = [
        Agreement(first, second, _share(votes[first] == votes[second], both, clusters))
        for first, second in combinations(names, 2)
        for both in [(votes[first] != 0) & (votes[second] != 0)]
    ]
    agreements.sort(key=lambda two: 2.0 if two.share is None else two.share.value)
    return Panel(judges, agreements, _alpha(pairs, votes) if len(names) > 1 else None)


def _votes(pairs: Sequence[AuditedPair], place: int) -> Tensor:
    """(N,) long: 1 for the answer labelled better, -1 for the other, 0 for no vote."""
    return tensor([pair.differences[place] or 0.0 for pair in pairs]).sign().long()


def _judge(
    name: str, rows: Sequence[Row], votes: Tensor, clusters: Tensor, cluster_of: dict[str, int]
) -> Judge:
    columns = {
        column: tensor([float(row[column]) for row in rows], dtype=float64)
        for column in ("shown_first", "shown_second", "num_unparsed")
    }
    known = is_understood(**columns)
    first, second = (columns[column][known] for column in ("shown_first", "shown_second"))
    same = position_bias = None
    if len(first):
        whose = tensor([cluster_of[row["id"]] for row in rows])[known]
        same = share_estimate(order_verdicts(first, second) != 0, whose)
        position_bias = float(debiased_preference(first, second)[1]["position_bias"])
    return Judge(
        name=name,
        num_judged=len(rows),
        num_votes=int((votes != 0).sum()),
        for_label=_share(votes > 0, votes != 0, clusters),
        same_in_both_orders=same,
        position_bias=position_bias,
    )


def _share(hits: Tensor, counted: Tensor, clusters: Tensor) -> Estimate | None:
    return share_estimate(hits[counted], clusters[counted])


def _alpha(pairs: Sequence[AuditedPair], votes: dict[str, Tensor]) -> float | None:
    columns = {name: own.tolist() for name, own in votes.items()}
    opinions = _opinions_on(
        pairs,
        [
            [
                {"annotator": name, "prefers": "chosen" if own[index] > 0 else "rejected"}
                for name, own in columns.items()
                if own[index]
            ]
            for index in range(len(pairs))
        ],
    )
    return None if opinions is None else krippendorff_alpha(opinions)


def _opinions_on(pairs: Sequence[AuditedPair], said: Iterable[Sequence[Row]]) -> Opinions | None:
    """Of each pair what was said of it, as `opinions_of` takes it."""
    return opinions_of(
        {name: getattr(pair, name) for name in ("id", "prompt", "chosen", "rejected")}
        | {"opinions": opinions}
        for pair, opinions in zip(pairs, said, strict=True)
    )
