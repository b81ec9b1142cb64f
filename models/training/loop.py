"""The supervised loop: epochs of packed batches, accumulation, schedule, checkpoints, resume.

SFT, reward models and Advantage Models differ only in the loss they hand to `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainConfig
from trimtab.models.nets import counts
from trimtab.models.nets.lora import merge_adapters
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.training import prepare_training, seed_dropout
from trimtab.models.training import distributed
from trimtab.models.training.batching import epoch_batches
from trimtab.models.training.checkpoint import checkpoint_or_stop, newest_checkpoint
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    MicroBatch,
    TrainingRows,
    accumulate,
    built_ahead,
    new_learner,
)
from trimtab.models.training.nll_term import DrawnTerm, with_term
from trimtab.models.training.optimiser import scheduled_rate
from trimtab.models.training.progress import Progress, tail_means

AroundGradient = Callable[[int, Learner[Any]], AbstractContextManager[Metrics]]
# A further term of the loss, and the rows that a step draws for it.
Drawn = tuple[DrawnTerm, Sequence[Candidates]]


@dataclass(frozen=True)
class StepExtras:
    """Additions to a step of `fit`.

    around_gradient(step, learner): a context in which the gradient is computed, with parameters as
    they were before it when it ends; it yields metrics, the same on every rank.
    after_step(number): called after the update, for measurements. term: added to the loss.
    """

    around_gradient: AroundGradient | None = None
    after_step: Callable[[int], None] | None = None
    term: DrawnTerm | None = None


NO_EXTRAS = StepExtras()


def fit(
    model: PreTrainedModel,
    data: TrainingRows,
    loss_function: LossFunction,
    config: TrainConfig,
    *,
    seed: int,
    workdir: Path,
    extras: StepExtras = NO_EXTRAS,
) -> dict[str, float]:
    """Train `model` in place and return the means of the last tenth of the steps' metrics.

    Also returns `num_updates`, the number of steps, and `num_trained_tokens`, the tokens of all
    rows of their batches. `loss_function(batch, arguments)` gets a packed batch and its
    `data.arguments`, and returns (loss, metrics), means weighted by `data.weights`. All ranks
    return, each with the whole model: call `distributed.leave` once they are no longer needed.
    """
    rows = data.rows
    batches = step_batches(data, config, seed)
    num_steps = len(batches)
    drawn_rows = _draws(extras.term, num_steps, seed)
    most_steps = counts.optimiser_steps(
        config, map(len, data.training_parts), max(row.num_tokens for row in rows)
    )
    assert num_steps == most_steps or (config.batch_tokens and num_steps < most_steps)
    prepare_training(model, config, seed, config.dropout)
    state, decay = newest_checkpoint(workdir), config.weight_decay
    if extras.term is not None:
        loss_function = with_term(model, loss_function, type(extras.term))
    learner = new_learner(model, loss_function, config, weight_decay=decay, state=state)
    start = 0 if state is None else state["step"]
    del state  # its open files would keep a removed checkpoint on the disk
    progress = Progress(workdir)
    model.train()
    limit = config.micro_batch_tokens
    upcoming: Iterator[MicroBatch] | None = None
    for step in range(start, num_steps):
        rate = scheduled_rate(config, step, num_steps)
        seed_dropout(seed, step, distributed.rank())
        micro = upcoming or built_ahead(learner, data, batches[step], limit)
        around = extras.around_gradient
        with nullcontext({}) if around is None else around(step, learner) as extra:
            metrics = _gradient(learner, micro, drawn_rows[step], limit) | extra
        metrics["grad_norm"] = learner.step(rate)
        if step + 1 < num_steps:  # before the metrics are waited for
            upcoming = built_ahead(learner, data, batches[step + 1], limit)
        progress.log(step + 1, {**metrics, "learning_rate": rate})
        if (step + 1) % 10 == 0 or step + 1 == num_steps:
            progress.advance(step + 1, num_steps)
        if extras.after_step is not None:
            extras.after_step(step + 1)
        checkpoint_or_stop(workdir, step + 1, config.checkpoint_every, learner.state_dict)
    learner.finish()
    if config.zero is not None:
        distributed.broadcast_parameters(model)
    merge_adapters(model)
    return {**tail_means(progress.path), **_amounts(rows, batches, drawn_rows)}


def _draws(term: DrawnTerm | None, num_steps: int, seed: int) -> list[Drawn | None]:
    """The term's rows of every step, drawn in advance so that resuming repeats them."""
    if term is None:
        return [None] * num_steps
    generator = torch.Generator("cpu").manual_seed(seed + 1)
    return [(term, term.draw(generator)) for _ in range(num_steps)]


def _amounts(
    rows: Sequence[Candidates], batches: Sequence[Sequence[int]], drawn_rows: Sequence[Drawn | None]
) -> dict[str, float]:
    tokens = sum(rows[index].num_tokens for batch in batches for index in batch)
    tokens += sum(row.num_tokens for drawn in drawn_rows if drawn is not None for row in drawn[1])
    return {"num_updates": len(batches), "num_trained_tokens": tokens}


def step_batches(data: TrainingRows, config: TrainConfig, seed: int) -> list[list[int]]:
    """The rows' indices of every step of `fit`."""
    epochs = [part for part in data.training_parts for _ in range(config.num_epochs)]
    batches = []
    for epoch, part in enumerate(epochs):
        lengths = [data.rows[index].num_tokens for index in part]
        for batch in epoch_batches(
            lengths,
            config.batch_size,
            seed,
            epoch,
            config.batch_tokens,
            config.least_batch_size,
        ):
            batches.append([part[place] for place in batch])
    return batches


def _gradient(
    learner: Learner[Any],
    micro_batches: Iterator[MicroBatch],
    drawn_rows: Drawn | None,
    max_tokens: int,
) -> Metrics:
    """Gradients of one batch and of the further term; mean metrics over all ranks."""
    metrics = accumulate(learner, micro_batches, is_last=drawn_rows is None)
    if drawn_rows is not None:
        term, drawn = drawn_rows
        metrics |= term.accumulate(learner, drawn, max_tokens, is_last=True)
    distributed.all_reduce_sum(list(metrics.values()))
    return metrics
