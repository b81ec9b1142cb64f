"""Teaching a policy responses to say: the loss of SFT and of all that fine-tunes on samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainConfig
from trimtab.models.functional.rehearsal import nll_loss
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import distributed
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.nll_term import NLLTerm


def imitate(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    config: TrainConfig,
    *,
    seed: int,
    workdir: Path,
    parts: Sequence[Sequence[int]] | None = None,
    nll_term: NLLTerm | None = None,
) -> dict[str, float]:
    """Fine-tune `model` on rows of one response each; the loss is on response tokens only.

    Only the first rank returns.
    """
    summary = fit(
        model,
        TrainingRows(rows, torch.tensor([float(len(row.responses[0])) for row in rows]), parts),
        imitation_loss(model),
        config,
        seed=seed,
        workdir=workdir,
        extras=StepExtras(term=nll_term),
    )
    distributed.leave()
    return summary


def imitation_loss(model: PreTrainedModel) -> LossFunction:
    """The NLL of responses, in nats a token, for `fit`."""

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        logprobs, entropies, response_mask = response_logprobs(model, batch)
        loss, _ = nll_loss(logprobs, response_mask)
        entropy = entropies.detach().sum() / response_mask.sum()
        return loss, {"entropy": entropy}

    return loss_function
