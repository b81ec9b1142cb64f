"""Several annotators' labels of the same pairs: how far they agree, who is right how often, and how
likely each answer is the better one.

[DS] Dawid and Skene, Maximum likelihood estimation of observer error-rates using the EM algorithm,
Applied Statistics 28, 1979. [KA] Krippendorff, Content analysis, 2004, chapter 11.

Which answer of a pair comes first means nothing. So both models treat the two alike.

Deviations
1. An annotator has one accuracy in place of the confusion matrix of [DS], the same whichever answer
   is better, and both answers are as likely to be better beforehand. A vote for neither says
   nothing of which is better, and does not count in an accuracy.
2. An accuracy has a prior, as if PRIOR_RIGHT of PRIOR_VOTES further votes had been right. Who never
   labelled what others did thus has 2/3, where the likelihood alone would make each of their labels
   certain.
3. Chance agreement in [KA] (nominal) takes votes for either answer to be equally frequent.
4. An annotator has one vote on an item, however many rows repeat it; one for neither answer where
   the rows differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PRIOR_RIGHT, PRIOR_VOTES = 2.0, 3.0
MAX_STEPS, CLOSE_ENOUGH = 500, 1e-8
VALUES = {"chosen": 1, "rejected": -1, "equal": 0}


@dataclass(frozen=True)
class Opinions:
    """V votes on I items by A annotators.

    An item is a prompt with two answers, whichever is labelled better, in however many rows.
    item, annotator: (V,) long, each item and annotator together once. vote: (V,) long, 1 for the
    answer that sorts first, -1 for the other, 0 for neither. names: of the annotators. item_of: by
    a row's id its item, and 1 where its chosen answer is the one that sorts first, else -1.
    """

    item: Tensor
    annotator: Tensor
    vote: Tensor
    names: list[str]
    item_of: dict[str, tuple[int, int]]
    num_items: int

    @property
    def is_shared(self) -> Tensor:
        """(I,) bool, whether several annotators voted on an item."""
        return torch.bincount(self.item, minlength=self.num_items) > 1


@dataclass(frozen=True)
class Consensus:
    """probability: (I,), that the answer that sorts first is the better one. accuracy: (A,)."""

    probability: Tensor
    accuracy: Tensor


def opinions_of(rows: Iterable[Mapping[str, Any]]) -> Opinions | None:
    """The opinions of rows with id, prompt, chosen, rejected and opinions; None where none has any.

    opinions: a list of {annotator, prefers: chosen | rejected | equal}, or None.
    """
    items: dict[tuple[str, str, str], int] = {}
    names: dict[str, int] = {}
    item_of: dict[str, tuple[int, int]] = {}
    votes: dict[tuple[int, int], int] = {}
    for row in rows:
        if not row.get("opinions"):
            continue
        first, second = sorted((row["chosen"], row["rejected"]))
        item = items.setdefault((row["prompt"], first, second), len(items))
        sign = 1 if row["chosen"] == first else -1
        item_of[row["id"]] = (item, sign)
        for opinion in row["opinions"]:
            annotator = names.setdefault(opinion["annotator"], len(names))
            vote = sign * VALUES[opinion["prefers"]]
            if votes.setdefault((item, annotator), vote) != vote:
                votes[item, annotator] = 0
    if not votes:
        return None
    keys, vote_on = torch.tensor(list(votes)), torch.tensor(list(votes.values()))
    return Opinions(keys[:, 0], keys[:, 1], vote_on, list(names), item_of, len(items))


def consensus(opinions: Opinions) -> Consensus:
    """Accuracies of the annotators and probabilities of the items, by EM [DS] from the majority.

    EM is over the items that several annotators decided. The only vote on an item is as likely to
    be right as its annotator, and so tells nothing of the accuracy; in EM it would confirm itself,
    and EM would converge ever more slowly the more of them there are.
    """
    is_cast = opinions.vote != 0
    is_compared = torch.bincount(opinions.item[is_cast], minlength=opinions.num_items) > 1
    is_used = is_cast & is_compared[opinions.item]
    item, annotator = opinions.item[is_used], opinions.annotator[is_used]
    vote = opinions.vote[is_used].double()
    number = torch.bincount(annotator, minlength=len(opinions.names)).double()

    probability = (_summed(vote, item, opinions.num_items).sign() + 1) / 2
    for _ in range(MAX_STEPS):
        right = torch.where(vote > 0, probability[item], 1 - probability[item])
        right = _summed(right, annotator, len(opinions.names))
        accuracy = (PRIOR_RIGHT + right) / (PRIOR_VOTES + number)
        weights = vote * accuracy.logit()[annotator]
        before, probability = probability, _summed(weights, item, opinions.num_items).sigmoid()
        if bool((probability - before).abs().max() < CLOSE_ENOUGH):
            break
    weights = opinions.vote * accuracy.logit()[opinions.annotator]
    return Consensus(_summed(weights, opinions.item, opinions.num_items).sigmoid(), accuracy)


def _summed(values: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64).index_add(0, index, values)


def krippendorff_alpha(opinions: Opinions) -> float | None:
    """Krippendorff's alpha of the votes [KA]: 1 where all agree, 0 where they do as by chance.

    None where no item has two votes, or all votes are for neither.
    """
    values = opinions.vote + 1
    counts = torch.bincount(3 * opinions.item + values, minlength=3 * opinions.num_items)
    counts = counts.view(-1, 3).double()
    counts = counts[counts.sum(1) > 1]
    if not len(counts):
        return None
    size = counts.sum(1, keepdim=True)
    observed = (counts * (size - counts) / (size - 1)).sum()
    total, number = counts.sum(0), counts.sum()
    total[[0, 2]] = total[[0, 2]].mean()
    expected = (total * (number - total)).sum() / (number - 1)
    return float(1 - observed / expected) if expected > 0 else None


def label_probabilities(opinions: Opinions, agreed: Consensus) -> dict[str, float]:
    """By a row's id how likely its label is right, where several annotators voted on its item."""
    shared, probability = opinions.is_shared.tolist(), agreed.probability.tolist()
    return {
        name: probability[item] if sign > 0 else 1 - probability[item]
        for name, (item, sign) in opinions.item_of.items()
        if shared[item]
    }
