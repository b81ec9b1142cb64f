"""The supervised loop: epochs of packed batches, accumulation, schedule, checkpoints, resume.

SFT, reward models and Advantage Models differ only in the loss they hand to `fit`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.config_parts import TrainConfig
from models.engine import ranks
from models.engine.batches import epoch_batches
from models.engine.checkpoint import checkpoint_or_stop, newest_checkpoint
from models.engine.learners import Learner, LossFunction, Metrics, accumulate, new_learner
from models.engine.optimiser import scheduled_rate
from models.engine.progress import Progress, tail_means
from models.nets.adapters import merge_adapters
from models.nets.freezing import trained_parameters
from models.nets.packing import Candidates
from models.nets.training import prepare_training

Ascent = Callable[[int], Metrics]
AfterStep = Callable[[int], None]


def fit(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    weights: Tensor,
    loss_function: LossFunction,
    config: TrainConfig,
    *,
    seed: int,
    workdir: Path,
    ascend: Ascent | None = None,
    after_step: AfterStep | None = None,
    parts: Sequence[Sequence[int]] | None = None,
) -> dict[str, float]:
    """Train `model` in place and return the means of the last tenth of the steps' metrics.

    Beside them stand `num_updates`, the number of steps, and `num_trained_tokens`, of all rows
    that they pass. `loss_function(batch, indices)` gets a
    packed batch and its rows' indices (b,) and returns (mean loss, metrics). It is a mean by
    `weights` (N,), what each row counts (pairs, tokens), by which micro batches and ranks equal one
    large batch. `ascend(step)` moves the parameters for the gradient only; `after_step(number)`
    looks at the model. Where there are `parts` of the rows, each has its epochs after those of the
    one before, under one schedule. Of ranks the first returns.
    """
    batches = _batches(rows, parts or [range(len(rows))], config, seed)
    prepare_training(model, config, seed, config.dropout)
    state = newest_checkpoint(workdir)
    decay = config.weight_decay
    learner = new_learner(model, loss_function, config, weight_decay=decay, state=state)
    start = 0 if state is None else state["step"]
    progress = Progress(workdir)
    model.train()
    for step in range(start, len(batches)):
        rate = scheduled_rate(config, step, len(batches))
        _seed_dropout(seed, step)
        with _ascended(model, ascend, step) as extra:
            metrics = _gradient(learner, rows, weights, batches[step], config) | extra
        metrics["grad_norm"] = learner.step(rate)
        progress.log(step + 1, {**metrics, "learning_rate": rate})
        if (step + 1) % 10 == 0 or step + 1 == len(batches):
            progress.advance(step + 1, len(batches))
        if after_step is not None:
            after_step(step + 1)
        checkpoint_or_stop(workdir, step + 1, config.checkpoint_every, learner.state_dict)
    learner.finish()
    ranks.leave()
    merge_adapters(model)
    return {**tail_means(progress.path), **_amounts(rows, batches)}


def _amounts(rows: Sequence[Candidates], batches: Sequence[Sequence[int]]) -> dict[str, float]:
    tokens = sum(rows[index].num_tokens for batch in batches for index in batch)
    return {"num_updates": len(batches), "num_trained_tokens": tokens}


def _batches(
    rows: Sequence[Candidates], parts: Sequence[Sequence[int]], config: TrainConfig, seed: int
) -> list[list[int]]:
    """The rows' indices of every step."""
    epochs = [part for part in parts for _ in range(config.num_epochs)]
    found = []
    for epoch, part in enumerate(epochs):
        lengths = [rows[index].num_tokens for index in part]
        for batch in epoch_batches(lengths, config.batch_size, seed, epoch):
            found.append([part[place] for place in batch])
    return found


def _seed_dropout(seed: int, step: int) -> None:
    """What a step drops depends on nothing before it, so that a resumed run drops the same."""
    torch.manual_seed(random.Random(f"dropout/{seed}/{step}/{ranks.number()}").getrandbits(63))


@contextmanager
def _ascended(model: PreTrainedModel, ascend: Ascent | None, step: int) -> Iterator[Metrics]:
    """Inside, the parameters are where `ascend(step)` moved them; after, where they were before.

    Gives the metrics of the ascent. The way back is a copy, not a subtraction: bit for bit.
    """
    if ascend is None:
        yield {}
        return
    before = [value.detach().clone() for value in trained_parameters(model)]
    yield ascend(step)
    with torch.no_grad():
        for parameter, value in zip(trained_parameters(model), before, strict=True):
            parameter.copy_(value)


def _gradient(
    learner: Learner[Tensor],
    rows: Sequence[Candidates],
    weights: Tensor,
    batch: list[int],
    config: TrainConfig,
) -> Metrics:
    """Gradients of one batch, and its mean metrics over all ranks."""
    limit = config.micro_batch_tokens
    metrics = accumulate(learner, rows, weights, batch, lambda indices: indices, limit)
    ranks.add_up(list(metrics.values()))
    return metrics
