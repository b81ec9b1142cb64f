"""Training a policy: by any loss, with rehearsal, or to say given responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import PolicyConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.functional.rehearsal import nll_loss
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import distributed
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.loop import AroundGradient, StepExtras, fit
from trimtab.models.training.nll_term import rehearsal_of
from trimtab.models.training.stage import Stage


def train_policy(  # noqa: PLR0913 - what is trained on what, and two additions
    config: PolicyConfig,
    stage: Stage,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: TrainingRows,
    loss_function: LossFunction,
    behind: Sequence[int] = (),
    around_gradient: AroundGradient | None = None,
) -> dict[str, float]:
    """`fit` with the rehearsal that the configuration asks for, and write `model`.

    Only the first rank returns. behind: as in `rehearsal_of`. around_gradient: of `StepExtras`.
    """
    term = rehearsal_of(config, stage.inputs, model, tokenizer, behind)
    summary = fit(
        model,
        data,
        loss_function,
        config.train,
        seed=config.seed,
        workdir=stage.workdir,
        extras=StepExtras(around_gradient=around_gradient, term=term),
    )
    distributed.leave()
    stage.write_model(model, tokenizer)
    return summary


def imitate(
    stage: Stage,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Candidates],
    config: TrainConfig,
    seed: int,
) -> dict[str, float]:
    """Fine-tune on rows of one response each, and write `model`; only the first rank returns."""
    data, loss_function = imitated_rows(rows), imitation_loss(model)
    summary = fit(model, data, loss_function, config, seed=seed, workdir=stage.workdir)
    distributed.leave()
    stage.write_model(model, tokenizer)
    return summary


def imitated_rows(
    rows: Sequence[Candidates], parts: Sequence[Sequence[int]] | None = None
) -> TrainingRows:
    """Rows of one response each, which count as many as they have tokens, for `imitation_loss`."""
    lengths = torch.tensor([float(len(row.responses[0])) for row in rows])
    return TrainingRows(rows, lengths, parts)


def imitation_loss(model: PreTrainedModel) -> LossFunction:
    """The NLL of responses, in nats a token, for `fit`; of response tokens only."""

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        logprobs, entropies, response_mask = response_logprobs(model, batch)
        loss, _ = nll_loss(logprobs, response_mask)
        entropy = entropies.detach().sum() / response_mask.sum()
        return loss, {"entropy": entropy}

    return loss_function
