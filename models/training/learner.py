"""Learners: a model with its optimiser, replicated on every rank or sharded by ZeRO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainerConfig, ZeroConfig
from trimtab.models.nets.device import current_device, move_to_device
from trimtab.models.nets.freezing import load_trained_state, trained_parameters, trained_state
from trimtab.models.nets.packing import Candidates, PackedBatch, pack_on_host
from trimtab.models.training import distributed
from trimtab.models.training.batching import micro_batches
from trimtab.models.training.checkpoint import whole
from trimtab.models.training.optimiser import (
    Accumulator,
    Ascent,
    LossFunction,
    Metrics,
    T,
    WholeAscent,
    adamw,
    clip_gradients,
    set_rate,
)


class ModelHandle(Protocol):
    """A model that is whole on every rank, or sharded over the ranks."""

    model: PreTrainedModel

    def gathered(self) -> AbstractContextManager[PreTrainedModel]:
        """A context with all parameters on every rank, for passes without gradient."""


class Learner(ModelHandle, Accumulator[T], Protocol[T]):
    """A model under training. All ranks call everything, in the same order."""

    def step(self, learning_rate: float) -> Tensor:
        """Clip gradients, update, set them to zero; returns their global norm before clipping."""

    def ascent(self, objective: LossFunction) -> Ascent:
        """What moves the parameters up the objective's gradient, between two steps, and back."""

    def state_dict(self) -> dict[str, Any]:
        """Trained parameters and optimiser state, by the same names for every learner.

        Tensors, or this rank's `checkpoint.Part` of them.
        """

    def finish(self) -> None:
        """Leave the whole trained model on the first rank."""


class ReplicatedModel:
    """A model that is not trained, whole on every rank."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def gathered(self) -> AbstractContextManager[PreTrainedModel]:
        return nullcontext(self.model)


class ReplicatedLearner(ReplicatedModel):
    """Every rank holds all parameters and optimiser state; gradients are summed over ranks."""

    needs_equal_parts = False

    def __init__(
        self,
        model: PreTrainedModel,
        loss_function: LossFunction,
        config: TrainerConfig,
        weight_decay: float,
        state: dict[str, Any] | None,
    ) -> None:
        super().__init__(model)
        self.loss, self.config = loss_function, config
        self.optimiser = adamw(model, weight_decay, config.optimiser)
        if state is not None:
            load_trained_state(model, state["model"])
            self.optimiser.load_state_dict(state["optimiser"])

    def backward(self, loss: Tensor, is_last: bool) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> Tensor:
        parameters = trained_parameters(self.model)
        distributed.all_reduce_sum([value.grad for value in parameters if value.grad is not None])
        set_rate(self.optimiser, learning_rate)
        norm = clip_gradients(parameters, self.config.max_grad_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    def ascent(self, objective: LossFunction) -> Ascent:
        return WholeAscent(self.model, objective)

    def state_dict(self) -> dict[str, Any]:
        return {"model": trained_state(self.model), "optimiser": self.optimiser.state_dict()}

    def finish(self) -> None:
        pass


def new_learner(
    model: PreTrainedModel,
    loss_function: LossFunction,
    config: TrainerConfig,
    *,
    weight_decay: float = 0.0,
    state: dict[str, Any] | None,
) -> Learner[Any]:
    """The learner that `config.zero` asks for, from the state of a checkpoint if there is one."""
    if config.zero is None:
        return ReplicatedLearner(model, loss_function, config, weight_decay, whole(state))
    from trimtab.models.training.zero import ZeroLearner  # loads DeepSpeed: five seconds

    return ZeroLearner(model, loss_function, config, config.zero, weight_decay, state)


def model_handle(model: PreTrainedModel, zero: ZeroConfig | None) -> ModelHandle:
    """A model that is not trained; sharded over ranks under stage 3 of ZeRO."""
    if zero is None or zero.stage < 3:
        return ReplicatedModel(model)
    from trimtab.models.training.zero import ShardedModel

    return ShardedModel(model, zero)


@dataclass(frozen=True)
class TrainingRows:
    """Rows that a model is trained on. All of it lies on the host.

    weights: (N,), the weight of each row in the mean loss (its pairs or tokens), so that micro
    batches and ranks give the loss of one large batch. parts: lists of row indices that are trained
    on one after another, each for all epochs, under one schedule. None: all rows are one part.
    arguments: of some rows' indices the loss's further arguments, whose tensors go to the device
    with the packed rows; the indices themselves (b,) where a loss needs nothing else.
    """

    rows: Sequence[Candidates]
    weights: Tensor
    parts: Sequence[Sequence[int]] | None = None
    arguments: Callable[[list[int]], Any] = torch.tensor

    @property
    def training_parts(self) -> Sequence[Sequence[int]]:
        """The row indices of each part."""
        return self.parts or [range(len(self.rows))]


class MicroBatch(NamedTuple):
    """What goes through the model at once; batch and arguments are on the device.

    share: of the step's mean loss, 0 where the rows were passed before. is_last: of its batch.
    """

    batch: PackedBatch
    arguments: Any
    share: Tensor
    is_last: bool


def built_ahead(
    learner: Accumulator[Any], data: TrainingRows, batch: Sequence[int], max_tokens: int
) -> Iterator[MicroBatch]:
    """This rank's micro batches of a batch; the first has been built when this returns.

    The others are while the device computes those before them, for which the host does not wait.
    """
    micro = _built(learner, data, batch, max_tokens)
    return chain([next(micro)], micro)


def _built(
    learner: Accumulator[Any], data: TrainingRows, batch: Sequence[int], max_tokens: int
) -> Iterator[MicroBatch]:
    rows, weights = data.rows, data.weights
    batch = sorted(batch, key=lambda index: rows[index].num_tokens)
    total = distributed.replication(batch) * weights[batch].sum()
    parts = _parts(learner, rows, batch, max_tokens)
    for number, (part, counts) in enumerate(parts, start=1):
        packed = pack_on_host([rows[index] for index in part])
        share = weights[part].sum() / total if counts else torch.zeros(())
        yield MicroBatch(
            *move_to_device((packed, data.arguments(part))), share, is_last=number == len(parts)
        )


def accumulate(
    learner: Accumulator[Any],
    micro_batches: Iterable[MicroBatch],
    *,
    coefficient: float = 1.0,
    is_last: bool = True,
) -> Metrics:
    """Add the gradient of `coefficient` times a batch's loss, micro batch by micro batch.

    Returns this rank's part of mean loss and metrics, to be summed over ranks. `is_last`: the
    learner's step comes next.
    """
    sums: Metrics = defaultdict(lambda: torch.zeros((), device=current_device()))
    for micro in micro_batches:
        loss, metrics = learner.loss(micro.batch, micro.arguments)
        learner.backward(coefficient * loss * micro.share, is_last and micro.is_last)
        for name, value in {"loss": loss.detach(), **metrics}.items():
            sums[name] = sums[name] + value * micro.share
    return dict(sums)


def _parts(
    learner: Accumulator[Any], rows: Sequence[Candidates], batch: list[int], max_tokens: int
) -> list[tuple[list[int], bool]]:
    """This rank's micro batches of a batch, and whether each counts.

    If all ranks must run equally many, those with fewer repeat one, which does not count.
    """

    def cut(indices: list[int]) -> list[tuple[list[int], bool]]:
        parts = micro_batches([rows[index] for index in indices], max_tokens)
        return [([indices[place] for place in part], True) for part in parts]

    by_rank = distributed.rank_batches(batch)
    mine = cut(by_rank[distributed.rank()])
    if learner.needs_equal_parts:
        most = max(len(cut(indices)) for indices in by_rank)
        mine += [(mine[0][0], False)] * (most - len(mine))
    return mine
