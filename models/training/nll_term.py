"""Further terms of a loss, on rows drawn for each step: the NLL of given responses, and others.

The NLL term is rehearsal [AM eq. 9] and PPO-ptx.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations:
1. The paper rehearses in PPO only; here every method that moves a policy away from SFT can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import PolicyConfig, RehearsalUnit
from trimtab.models.functional.rehearsal import nll_loss
from trimtab.models.nets import counts
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training.data import context_length, encode_dialogues
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    TrainingRows,
    accumulate,
    built_ahead,
)
from trimtab.models.training.scoring import with_trunk


@dataclass(frozen=True)
class DrawnTerm(ABC):
    """A term `coefficient * loss` of the loss, on `batch_size` of `rows` drawn for each step.

    name: of the metric, the mean loss over what was drawn.
    """

    rows: list[Candidates]
    coefficient: float
    batch_size: int
    name: str

    @staticmethod
    @abstractmethod
    def loss(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Metrics]:
        """Mean loss and metrics of a packed batch."""

    @staticmethod
    @abstractmethod
    def weight(row: Candidates) -> int:
        """What the row counts in the mean."""

    def coefficient_for(self, _drawn: Sequence[Candidates]) -> float:
        """The coefficient of the mean loss of a step's rows."""
        return self.coefficient

    def draw(self, generator: torch.Generator) -> list[Candidates]:
        """A step's rows, drawn with replacement; the same on all ranks."""
        places = torch.randint(
            len(self.rows), (self.batch_size,), generator=generator, device="cpu"
        )
        return [self.rows[place] for place in places.tolist()]

    def accumulate(
        self, learner: Learner[Any], drawn: Sequence[Candidates], max_tokens: int, is_last: bool
    ) -> Metrics:
        """Add the term's gradient; the learner's loss function comes from `with_term`.

        Result and `is_last` as in `learner.accumulate`.
        """
        weights = torch.tensor([self.weight(row) for row in drawn])
        data = TrainingRows(drawn, weights, arguments=lambda _: None)
        metrics = accumulate(
            learner,
            built_ahead(learner, data, range(len(drawn)), max_tokens),
            coefficient=self.coefficient_for(drawn),
            is_last=is_last,
        )
        return {self.name: metrics["loss"]}


@dataclass(frozen=True)
class NLLTerm(DrawnTerm):
    """The NLL of the response of each row; the metric is in nats a token.

    unit: of the coefficient. `response`: it weighs the mean over responses of their NLL, a sum over
    tokens [AM eq. 9], which is the NLL a token times the mean length.
    """

    name: str = "rehearsal_loss"
    unit: RehearsalUnit = "token"

    def coefficient_for(self, drawn: Sequence[Candidates]) -> float:
        """Times the mean length of what was drawn, if the unit is a response."""
        if self.unit == "token":
            return self.coefficient
        return self.coefficient * sum(map(self.weight, drawn)) / len(drawn)

    @staticmethod
    def loss(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Metrics]:
        """Mean NLL in nats a token, of all responses."""
        logprobs, _, mask = response_logprobs(model, batch)
        return nll_loss(logprobs, mask)

    @staticmethod
    def weight(row: Candidates) -> int:
        """Tokens of its response."""
        return len(row.responses[0])


def with_term(
    model: PreTrainedModel, loss_function: LossFunction, term: type[DrawnTerm]
) -> LossFunction:
    """`loss_function`; of a batch without further arguments, the loss of the term."""

    def either(batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        return term.loss(model, batch) if arguments is None else loss_function(batch, arguments)

    return either


def rehearsal_of(
    config: PolicyConfig,
    inputs: dict[str, Path],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    behind: Sequence[int] = (),
) -> NLLTerm | None:
    """The rehearsal term, on the input `rehearsal`; None if its coefficient is 0.

    behind: tokens of an instruction that is appended to every prompt.
    """
    drawn = counts.nll_batch_sizes(config, has_rehearsal=True)
    if not drawn:
        return None
    path = inputs["rehearsal"] / "rehearsal.jsonl"
    rows = encode_dialogues(path, tokenizer, context_length(model.config) - len(behind))
    rows = [Candidates([*row.prompt, *behind], row.responses) for row in rows]
    depth = num_frozen_layers(model, config.train.trainable_layers)
    rows = with_trunk(model, rows, depth)
    return NLLTerm(rows, config.rehearsal_coef, drawn["rehearsal"], unit=config.rehearsal_unit)
