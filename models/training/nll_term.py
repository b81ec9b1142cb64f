"""A further term of the loss, the NLL of given responses: rehearsal [AM eq. 9] and PPO-ptx.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.

Deviations:
1. The paper rehearses in PPO only; here every method that moves a policy away from SFT can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models import counts
from trimtab.models.config.policy import PolicyConfig
from trimtab.models.functional.rehearsal import nll_loss
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training.data import context_length, encode_dialogues
from trimtab.models.training.learner import Learner, LossFunction, Metrics, TrainingRows, accumulate
from trimtab.models.training.scoring import with_trunk


@dataclass(frozen=True)
class NLLTerm:
    """A term `coefficient * NLL` of the loss, on `batch_size` of `rows` drawn for each step.

    rows: of one response each. name: of the metric, the mean NLL in nats a token.
    """

    rows: list[Candidates]
    coefficient: float
    batch_size: int
    name: str = "rehearsal_loss"

    def draw(self, generator: torch.Generator) -> list[Candidates]:
        """A step's dialogues, drawn with replacement; the same on all ranks."""
        places = torch.randint(
            len(self.rows), (self.batch_size,), generator=generator, device="cpu"
        )
        return [self.rows[place] for place in places.tolist()]

    def accumulate(
        self, learner: Learner[Any], drawn: Sequence[Candidates], max_tokens: int, is_last: bool
    ) -> Metrics:
        """Add the term's gradient; the learner's loss function comes from `with_nll`.

        Result and `is_last` as in `learner.accumulate`.
        """
        found = accumulate(
            learner,
            TrainingRows(drawn, torch.tensor([len(row.responses[0]) for row in drawn])),
            range(len(drawn)),
            lambda _: None,
            max_tokens,
            coefficient=self.coefficient,
            is_last=is_last,
        )
        return {self.name: found["loss"]}


def with_nll(model: PreTrainedModel, loss_function: LossFunction) -> LossFunction:
    """`loss_function`; of a batch without further arguments, the NLL of its responses."""

    def either(batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        if arguments is not None:
            return loss_function(batch, arguments)
        logprobs, _, mask = response_logprobs(model, batch)
        return nll_loss(logprobs, mask)

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
    return NLLTerm(rows, config.rehearsal_coef, drawn["rehearsal"])
