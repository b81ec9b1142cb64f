"""Pairs as the examples of a scorer, and its loss over them.

An example is one pair, or (k-wise, [InstructGPT] arXiv 2203.02155) all pairs of a prompt: every
distinct response goes through the trunk once, and the prompt counts once.

Implementation details that matter:
1. All terms read the same hidden states: a pass of the trunk, and of the contrastive term two.
2. The ranking loss is the mean over both passes, "all original samples and their augmentations"
   [RM section 3.1]; so is the imitation term.
3. In-batch negatives, and the samples that prototypes are shared out among, are those of one
   forward pass: a rank's micro batch (`micro_batch_tokens`), not the whole batch. Theirs is the one
   loss that depends on how a batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import ContrastiveConfig
from trimtab.models.functional.contrastive import preference_differences, simcse_loss, swav_loss
from trimtab.models.functional.reward import imitation_loss, ranking_loss, weight_per_prompt
from trimtab.models.nets.packing import (
    Candidates,
    PackedBatch,
    ResponseTokens,
    merged_candidates,
    tokens_of_responses,
)
from trimtab.models.nets.scoring import read_logprobs, read_rewards
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training.data import Pairs
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows

MAX_RESPONSES = 9


class ComparedPairs(NamedTuple):
    """The P pairs of a packed batch, (P,) each.

    number: of all pairs. better, worse: which of the batch's responses they compare. label, margin,
    weight: as in `ranking_loss`. preferred: tokens of the m different preferred responses, if they
    are imitated; of_pair: which of the m is a pair's.
    """

    number: Tensor
    better: Tensor
    worse: Tensor
    label: Tensor
    margin: Tensor
    weight: Tensor
    preferred: ResponseTokens | None = None
    of_pair: Tensor | None = None


@dataclass(frozen=True)
class PairBatches:
    """Pairs put into N examples.

    rows: N candidates. weight: (N,), what each counts in the mean loss. places: for each row its
    pairs as (number of the pair, place of its preferred response in the row, place of the other).
    pair_weight: (P,) of all pairs. imitates: whether preferred responses are imitated.
    """

    rows: list[Candidates]
    weight: Tensor
    places: list[list[tuple[int, int, int]]]
    pairs: Pairs
    pair_weight: Tensor
    imitates: bool = False

    @property
    def examples(self) -> TrainingRows:
        """For `fit` with a `reward_loss`."""
        return TrainingRows(self.rows, self.weight, arguments=self.compared)

    def compared(self, indices: Sequence[int]) -> ComparedPairs:
        """The pairs of the batch that packs the rows of `indices`, on the host."""
        places: list[tuple[int, int, int]] = []
        start = 0
        for index in indices:
            places += [(pair, start + one, start + two) for pair, one, two in self.places[index]]
            start += len(self.rows[index].responses)
        number, better, worse = torch.tensor(places).unbind(1)
        preferred, of_pair = None, None
        if self.imitates:
            different, of_pair = better.unique(return_inverse=True)
            rows = [self.rows[index] for index in indices]
            preferred = tokens_of_responses(rows, different.tolist())
        return ComparedPairs(
            number,
            better,
            worse,
            self.pairs.label[number],
            self.pairs.margin[number],
            self.pair_weight[number],
            preferred,
            of_pair,
        )


def pair_batches_of(
    pairs: Pairs, ranking: Literal["pairs", "k_wise"] = "pairs", *, imitates: bool = False
) -> PairBatches:
    """Every pair an example of its own, or all pairs of a prompt, group and category together.

    Raises ValueError for a prompt with more than MAX_RESPONSES different responses.
    """
    together: dict[object, list[int]] = {}
    for index, prompt in enumerate(pairs.prompts):
        of_prompt = (pairs.groups[index], pairs.categories[index], prompt)
        key = index if ranking == "pairs" else of_prompt
        together.setdefault(key, []).append(index)
    rows = [
        merged_candidates([pairs.rows[index] for index in members]) for members in together.values()
    ]
    places, example = [], torch.zeros(len(pairs.rows), dtype=torch.long)
    for number, (row, members) in enumerate(zip(rows, together.values(), strict=True)):
        if len(row.responses) > MAX_RESPONSES:
            raise ValueError(
                f"{len(members)} pairs of one prompt compare {len(row.responses)} different "
                f"responses, at most {MAX_RESPONSES} are allowed (the first pair: "
                f"{pairs.identifiers[members[0]]!r}); give pairs of one ranking a `group`, or set "
                "ranking to pairs"
            )
        places.append(_places(row, members, pairs))
        example[members] = number
    weight = weight_per_prompt(pairs.weight, example)
    total = weight.new_zeros(len(rows)).index_add(0, example, weight)
    return PairBatches(rows, total, places, pairs, weight, imitates)


def _places(row: Candidates, members: list[int], pairs: Pairs) -> list[tuple[int, int, int]]:
    """For each pair of a row its number and the places of its two responses in the row."""
    if len(members) == 1:
        return [(members[0], 0, 1)]
    place = {tuple(response): number for number, response in enumerate(row.responses)}
    places = []
    for index in members:
        preferred, other = map(tuple, pairs.rows[index].responses)
        places.append((index, place[preferred], place[other]))
    return places


# The loss of compared pairs with its metrics, from r(x, y) (R,) of all responses of a batch and, of
# an Advantage Model, e(x) (R,).
Compare = Callable[[Tensor, Tensor | None, ComparedPairs], tuple[Tensor, Metrics]]


def ranking_of_rewards(
    rewards: Tensor, _: Tensor | None, compared: ComparedPairs
) -> tuple[Tensor, Metrics]:
    """A reward model's ranking loss; rewards: (R,)."""
    loss, metrics = ranking_loss(
        rewards.index_select(0, compared.better),
        rewards.index_select(0, compared.worse),
        label_chosen=compared.label,
        margin=compared.margin,
        weight=compared.weight,
    )
    return loss, {"ranking_loss": loss.detach(), **metrics}


def reward_loss(
    model: PreTrainedModel,
    imitation_coef: float = 0.0,
    contrastive: ContrastiveConfig | None = None,
    compare: Compare = ranking_of_rewards,
) -> LossFunction:
    """The loss of `PairBatches.examples` for `fit`, with the terms that are asked for.

    `compare` + imitation_coef * NLL(preferred response) [PPO section 3.1], with the model's
    language-model head, + contrastive.coef * contrastive loss [RM section 3.1].
    """

    def loss_function(batch: PackedBatch, compared: ComparedPairs) -> tuple[Tensor, Metrics]:
        num_views = 1 if contrastive is None else 2
        places = batch.ends if imitation_coef == 0 else None
        views = [hidden_states(model, batch, places) for _ in range(num_views)]
        losses, metrics = zip(
            *(
                _view_loss(model, hidden, batch, compared, imitation_coef, compare)
                for hidden in views
            ),
            strict=True,
        )
        loss = torch.stack(losses).mean()
        means = {name: sum(view[name] for view in metrics) / num_views for name in metrics[0]}
        if contrastive is None:
            return loss, means
        term, further = _contrastive_loss(model, views, batch, compared, contrastive)
        return loss + contrastive.coef * term, {**means, **further}

    return loss_function


def _view_loss(
    model: PreTrainedModel,
    hidden: Tensor,
    batch: PackedBatch,
    compared: ComparedPairs,
    imitation_coef: float,
    compare: Compare,
) -> tuple[Tensor, Metrics]:
    """Loss of the pairs and imitation term of one pass over a batch."""
    loss, metrics = compare(*read_rewards(model, hidden, batch), compared)
    if imitation_coef == 0:
        return loss, metrics
    of_pair = compared.of_pair
    assert of_pair is not None, "pairs that are imitated need their tokens"
    logprobs, _, mask = read_logprobs(model, hidden, batch, chosen=compared.preferred)
    term, further = imitation_loss(
        logprobs.index_select(0, of_pair), mask[of_pair], weight=compared.weight
    )
    return loss + imitation_coef * term, {**metrics, **further}


def _contrastive_loss(
    model: PreTrainedModel,
    views: list[Tensor],
    batch: PackedBatch,
    compared: ComparedPairs,
    config: ContrastiveConfig,
) -> tuple[Tensor, Metrics]:
    """The contrastive term, on the hidden state of each response's last token."""
    first, second = (hidden.index_select(0, batch.response_end) for hidden in views)
    if config.on == "differences":
        first, second = (
            preference_differences(
                ends.index_select(0, compared.better), ends.index_select(0, compared.worse)
            )
            for ends in (first, second)
        )
    if config.kind == "simcse":
        return simcse_loss(first, second, config.temperature)
    return swav_loss(
        model.prototypes(first),
        model.prototypes(second),
        temperature=config.temperature,
        epsilon=config.sinkhorn_epsilon,
        num_iterations=config.sinkhorn_iterations,
    )
