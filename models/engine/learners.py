"""How a supervised step is taken: on ranks that hold the whole of everything, or with ZeRO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from models.config_parts import TrainConfig
from models.engine import ranks
from models.engine.optimiser import adamw, clip_gradients, set_rate
from models.nets.freezing import load_trained_state, trained_parameters, trained_state
from models.nets.packing import PackedBatch

Metrics = dict[str, Tensor]
LossFunction = Callable[[PackedBatch, Tensor], tuple[Tensor, Metrics]]


class Learner(Protocol):
    """A model under training. All ranks call everything, in the same order.

    needs_equal_parts: whether ranks must run the same number of forward passes in a step.
    """

    needs_equal_parts: bool

    def loss(self, batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        """Mean loss of a packed batch, whose rows are `indices` (b,), and metrics."""

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Add a part's gradient; over parts and ranks the losses sum up to the step's."""

    def step(self, learning_rate: float) -> Tensor:
        """Clip, update, forget the gradient; returns its global norm before clipping."""

    def state_dict(self) -> dict[str, Any]:
        """Trained parameters and optimiser state, whole and alike whatever the learner."""

    def finish(self) -> None:
        """Leave the whole trained model on the first rank."""


class WholeLearner:
    """Every rank holds parameters, gradients and optimiser state, and they add up gradients."""

    needs_equal_parts = False

    def __init__(
        self,
        model: PreTrainedModel,
        loss_function: LossFunction,
        config: TrainConfig,
        state: dict[str, Any] | None,
    ) -> None:
        self.model, self.loss, self.config = model, loss_function, config
        self.optimiser = adamw(model, config.learning_rate, config.weight_decay)
        if state is not None:
            load_trained_state(model, state["model"])
            self.optimiser.load_state_dict(state["optimiser"])

    def backward(self, loss: Tensor, is_last: bool) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> Tensor:
        parameters = trained_parameters(self.model)
        ranks.add_up([value.grad for value in parameters if value.grad is not None])
        set_rate(self.optimiser, learning_rate)
        norm = clip_gradients(parameters, self.config.max_grad_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"model": trained_state(self.model), "optimiser": self.optimiser.state_dict()}

    def finish(self) -> None:
        pass


def new_learner(
    model: PreTrainedModel,
    loss_function: LossFunction,
    config: TrainConfig,
    state: dict[str, Any] | None,
) -> Learner:
    """The learner that `config.zero` asks for, from the state of a checkpoint if there is one."""
    if config.zero is None:
        return WholeLearner(model, loss_function, config, state)
    from models.engine.zero import ZeroLearner  # loads DeepSpeed: five seconds

    return ZeroLearner(model, loss_function, config, config.zero, state)
