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

from models.config_parts import TrainConfig
from models.engine import ranks
from models.engine.batches import epoch_batches, micro_batches
from models.engine.checkpoint import checkpoint_or_stop, newest_checkpoint
from models.engine.learners import Learner, LossFunction, Metrics, new_learner
from models.engine.optimiser import scheduled_rate
from models.engine.progress import Progress, tail_means
from models.nets.freezing import trained_parameters
from models.nets.packing import Candidates, pack
from models.nets.training import prepare_training

Ascent = Callable[[int], Metrics]


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
) -> dict[str, float]:
    """Train `model` in place and return the means of the last tenth of the steps' metrics.

    `loss_function(batch, indices)` gets a packed batch and its rows' indices (b,) and returns
    (mean loss, metrics). It is a mean by `weights` (N,), what each row counts (pairs, tokens), by
    which micro batches and ranks equal one large batch. `ascend(step)` moves the parameters for
    the gradient only. Of ranks the first returns.
    """
    batches = [
        batch
        for epoch in range(config.num_epochs)
        for batch in epoch_batches([row.num_tokens for row in rows], config.batch_size, seed, epoch)
    ]
    prepare_training(model, config)
    torch.manual_seed(seed)
    state = newest_checkpoint(workdir)
    learner = new_learner(model, loss_function, config, state)
    start = 0 if state is None else state["step"]
    progress = Progress(workdir, start)
    model.train()
    for step in range(start, len(batches)):
        rate = scheduled_rate(config, step, len(batches))
        with _ascended(model, ascend, step) as extra:
            metrics = _accumulate(learner, rows, weights, batches[step], config) | extra
        metrics["grad_norm"] = learner.step(rate)
        progress.log(step + 1, {**metrics, "learning_rate": rate})
        if (step + 1) % 10 == 0 or step + 1 == len(batches):
            progress.advance(step + 1, len(batches))
        checkpoint_or_stop(workdir, step + 1, config.checkpoint_every, learner.state_dict)
    learner.finish()
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
    learner: Learner,
    rows: Sequence[Candidates],
    weights: Tensor,
    batch: list[int],
    config: TrainConfig,
) -> Metrics:
    """Gradients of one batch, micro batch by micro batch, and its mean metrics."""
    batch = sorted(batch, key=lambda index: rows[index].num_tokens)
    parts = _parts(learner, rows, batch, config.micro_batch_tokens)
    total = ranks.times_counted(batch) * weights[batch].sum()
    sums: Metrics = defaultdict(lambda: torch.zeros(()))
    for number, (part, counts) in enumerate(parts, start=1):
        indices = torch.tensor(part)
        loss, metrics = learner.loss(pack([rows[index] for index in part]), indices)
        share = weights[indices].sum() / total if counts else torch.zeros(())
        learner.backward(loss * share, is_last=number == len(parts))
        for name, value in {"loss": loss.detach(), **metrics}.items():
            sums[name] = sums[name] + value * share
    ranks.add_up(list(sums.values()))
    return dict(sums)


def _parts(
    learner: Learner, rows: Sequence[Candidates], batch: list[int], max_tokens: int
) -> list[tuple[list[int], bool]]:
    """This rank's micro batches of a batch, and whether each counts.

    Where ranks must have equally many, those with fewer repeat one that does not count.
    """

    def cut(share: list[int]) -> list[tuple[list[int], bool]]:
        parts = micro_batches([rows[index] for index in share], max_tokens)
        return [([share[place] for place in part], True) for part in parts]

    shares = ranks.shares(batch)
    mine = cut(shares[ranks.number()])
    if learner.needs_equal_parts:
        most = max(len(cut(share)) for share in shares)
        mine += [(mine[0][0], False)] * (most - len(mine))
    return mine
