"""Who says which answer is better, people who labelled the pairs and judges that vote on them: what
each says, how far they agree, and of people who is right how often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor, float64, tensor

from trimtab.models.functional.verdicts import debiased_preference, is_understood, order_verdicts
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.kit.artifacts import Row
from trimtab.models.statistics import annotators
from trimtab.models.statistics.annotators import Opinions, krippendorff_alpha
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate, flatten


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

    def numbers(self) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        return flatten(
            num_annotators=len(self.people),
            num_annotated_pairs=self.num_pairs,
            num_pairs_of_several_annotators=self.num_shared,
            krippendorff_alpha=self.alpha,
            lowest_annotator_accuracy=self.people[0].accuracy if self.num_shared else None,
        )


def annotators_of(pairs: Sequence[AuditedPair]) -> Annotators | None:
    """What the pairs' opinions tell of those who gave them; None where no pair has any."""
    opinions = _opinions_on(pairs, [pair.opinions for pair in pairs])
    if opinions is None:
        return None
    is_shared = opinions.is_shared.tolist()
    votes: dict[str, list[tuple[AuditedPair, int]]] = {name: [] for name in opinions.names}
    for pair in pairs:
        for opinion in pair.opinions:
            sign = annotators.VALUES[opinion["prefers"]]
            votes[opinion["annotator"]].append((pair, sign))
    accuracies = annotators.consensus(opinions).accuracy.tolist()
    people = [
        Annotator(
            name,
            num_votes=len(votes[name]),
            num_shared=sum(is_shared[opinions.item_of[pair.id][0]] for pair, _ in votes[name]),
            accuracy=accuracy,
            num_decided=sum(sign != 0 for _, sign in votes[name]),
            num_contradicted=sum(pair.strength_mean * sign < 0 for pair, sign in votes[name]),
        )
        for name, accuracy in zip(opinions.names, accuracies, strict=True)
    ]
    people.sort(key=lambda person: (not person.num_shared, person.accuracy, person.name))
    return Annotators(people, krippendorff_alpha(opinions), opinions.num_items, sum(is_shared))


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

    def numbers(self) -> dict[str, float | str]:
        """Flat, as summary.json holds them."""
        numbers = flatten(num_judges=len(self.judges))
        for judge in self.judges:
            numbers |= flatten(
                f"judge_{judge.name}",
                num_judged=judge.num_judged,
                num_votes=judge.num_votes,
                for_label=judge.for_label,
                same_in_both_orders=judge.same_in_both_orders,
                position_bias=judge.position_bias,
            )
        for two in self.agreements:
            numbers |= flatten(f"judges_{two.first}_and_{two.second}", agree=two.share)
        return numbers | flatten(judges_krippendorff_alpha=self.alpha)


def panel_of(
    pairs: Sequence[AuditedPair], names: Sequence[str], judged: Sequence[Sequence[Row]]
) -> Panel | None:
    """The judges, which are the last that vote on `pairs`; None where there are none.

    judged: of each the pairs that it was asked about, rows of judgements.jsonl.
    """
    if not names:
        return None
    clusters = cluster_ids(pair.prompt for pair in pairs)
    cluster_of = {pair.id: int(which) for pair, which in zip(pairs, clusters, strict=True)}
    # Of each judge (N,): 1 for the answer labelled better, -1 for the other, 0 for no vote.
    votes = {
        name: tensor([pair.differences[place] or 0.0 for pair in pairs]).sign().long()
        for place, name in enumerate(names, start=-len(names))
    }
    agreements = []
    for first, second in combinations(names, 2):
        both = (votes[first] != 0) & (votes[second] != 0)
        is_equal = votes[first] == votes[second]
        agreements.append(Agreement(first, second, share_estimate(is_equal[both], clusters[both])))
    return Panel(
        [
            _judge(name, rows, votes[name], clusters, cluster_of)
            for name, rows in zip(names, judged, strict=True)
        ],
        sorted(agreements, key=lambda two: 2.0 if two.share is None else two.share.value),
        _alpha(pairs, votes) if len(names) > 1 else None,
    )


def _judge(
    name: str, rows: Sequence[Row], votes: Tensor, clusters: Tensor, cluster_of: dict[str, int]
) -> Judge:
    columns = {
        column: tensor([float(row[column]) for row in rows], dtype=float64)
        for column in ("shown_first", "shown_second", "num_unparsed")
    }
    known, is_cast = is_understood(**columns), votes != 0
    first, second = (columns[column][known] for column in ("shown_first", "shown_second"))
    same = position_bias = None
    if len(first):
        prompts = tensor([cluster_of[row["id"]] for row in rows])[known]
        same = share_estimate(order_verdicts(first, second) != 0, prompts)
        position_bias = float(debiased_preference(first, second)[1]["position_bias"])
    return Judge(
        name=name,
        num_judged=len(rows),
        num_votes=int(is_cast.sum()),
        for_label=share_estimate((votes > 0)[is_cast], clusters[is_cast]),
        same_in_both_orders=same,
        position_bias=position_bias,
    )


def _alpha(pairs: Sequence[AuditedPair], votes: dict[str, Tensor]) -> float | None:
    columns = {name: signs.tolist() for name, signs in votes.items()}
    sides = {1: "chosen", -1: "rejected"}
    opinions = _opinions_on(
        pairs,
        [
            [
                {"annotator": name, "prefers": sides[signs[index]]}
                for name, signs in columns.items()
                if signs[index]
            ]
            for index in range(len(pairs))
        ],
    )
    return None if opinions is None else krippendorff_alpha(opinions)


def _opinions_on(
    pairs: Sequence[AuditedPair], opinions: Iterable[Sequence[Row]]
) -> Opinions | None:
    """The opinions on each pair, as `annotators.opinions_of` takes them."""
    return annotators.opinions_of(
        {name: getattr(pair, name) for name in ("id", "prompt", "chosen", "rejected")}
        | {"opinions": on_pair}
        for pair, on_pair in zip(pairs, opinions, strict=True)
    )
