"""The supervised loop: epochs of packed batches, accumulation, schedule, checkpoints, resume.

SFT, reward models and Advantage Models differ only in the loss they hand to `fit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.config import TrainConfig
from models.engine import ranks
from models.engine.batches import epoch_batches, micro_batches
from models.engine.checkpoint import checkpoint_or_stop, newest_checkpoint
from models.engine.optimiser import adamw, clip_gradients, scheduled_rate, set_rate
from models.engine.progress import Progress, tail_means
from models.nets.freezing import (
    freeze_lower_layers,
    load_trained_state,
    trained_parameters,
    trained_state,
)
from models.nets.packing import Candidates, PackedBatch, pack

Metrics = dict[str, Tensor]
LossFunction = Callable[[PackedBatch, Tensor], tuple[Tensor, Metrics, float]]
Ascent = Callable[[int], Metrics]


def fit(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    loss_function: LossFunction,
    config: TrainConfig,
    *,
    seed: int,
    pad_id: int,
    workdir: Path,
    ascend: Ascent | None = None,
) -> dict[str, float]:
    """Train `model` in place and return the means of the last tenth of the steps' metrics.

    `loss_function(batch, indices)` gets a packed batch and its rows' indices (b,) and returns (mean
    loss, metrics, weight); by the weight (pairs, tokens) micro batches and ranks equal one large
    batch. `ascend(step)` moves the parameters for the gradient only. Of ranks the first returns.
    """
    batches = [
        batch
        for epoch in range(config.num_epochs)
        for batch in epoch_batches([row.num_tokens for row in rows], config.batch_size, seed, epoch)
    ]
    freeze_lower_layers(model, config.trainable_layers)
    optimiser = adamw(model, config.learning_rate, config.weight_decay)
    torch.manual_seed(seed)
    start = 0
    if state := newest_checkpoint(workdir):
        load_trained_state(model, state["model"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
    progress = Progress(workdir, start)
    model.train()
    for step in range(start, len(batches)):
        set_rate(optimiser, scheduled_rate(config, step, len(batches)))
        with _ascended(model, ascend, step) as extra:
            metrics = _accumulate(model, rows, batches[step], loss_function, config, pad_id) | extra
        metrics["grad_norm"] = clip_gradients(model.parameters(), config.max_grad_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        progress.log(step + 1, {**metrics, "learning_rate": optimiser.param_groups[0]["lr"]})
        if (step + 1) % 10 == 0 or step + 1 == len(batches):
            progress.advance(step + 1, len(batches))
        checkpoint_or_stop(
            workdir,
            step + 1,
            config.checkpoint_every,
            lambda: {"model": trained_state(model), "optimiser": optimiser.state_dict()},
        )
    ranks.leave()
    return tail_means(progress.path)


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


def _accumulate(
    model: PreTrainedModel,
    rows: Sequence[Candidates],
    batch: list[int],
    loss_function: LossFunction,
    config: TrainConfig,
    pad_id: int,
) -> Metrics:
    """Gradients of one batch, micro batch by micro batch, and its mean metrics."""
    mine = ranks.share(sorted(batch, key=lambda index: rows[index].num_tokens))
    total = 0.0
    sums: Metrics = defaultdict(lambda: torch.zeros(()))
    for part in micro_batches([rows[index] for index in mine], config.micro_batch_tokens):
        indices = torch.tensor([mine[place] for place in part])
        loss, metrics, weight = loss_function(
            pack([rows[index] for index in indices.tolist()], pad_id), indices
        )
        (loss * weight).backward()
        total += weight
        for name, value in {"loss": loss.detach(), **metrics}.items():
            sums[name] = sums[name] + value * weight
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    if ranks.count() > 1:
        of_all = torch.tensor(total)
        ranks.add_up([of_all, *sums.values(), *gradients])
        total = float(of_all)
    for gradient in gradients:
        gradient.div_(total)
    return {name: value / total for name, value in sums.items()}
