"""The judges that vote on the labels: what each says of them, and how far they agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from trimtab.models.statistics.annotators import krippendorff_alpha, opinions_of
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate


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
    opinions = opinions_of(_opinions(pairs, {name: own.tolist() for name, own in votes.items()}))
    return None if opinions is None else krippendorff_alpha(opinions)


def _opinions(pairs: Sequence[AuditedPair], votes: dict[str, list[int]]) -> Iterator[Row]:
    """The pairs with the judges' votes in place of people's."""
    for index, pair in enumerate(pairs):
        said = [
            {"annotator": name, "prefers": "chosen" if own[index] > 0 else "rejected"}
            for name, own in votes.items()
            if own[index]
        ]
        texts = {name: getattr(pair, name) for name in ("id", "prompt", "chosen", "rejected")}
        yield {**texts, "opinions": said}
