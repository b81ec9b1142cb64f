"""ZeRO: ranks hold a part each of optimiser state, gradients and parameters (DeepSpeed).

[ZERO] Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
2020, arXiv 1910.02054.

Implementation details that matter:
1. A checkpoint holds whole tensors under their names, as without ZeRO: it can be gone on from with
   any number of ranks, any stage of ZeRO, or none. The first rank's host needs room for them:
   twelve bytes a trained parameter.
2. The losses of all parts and ranks sum up to the step's; DeepSpeed takes the mean over ranks.
3. Stages 2 and 3 communicate in every part, so that ranks must have equally many.
4. Sampling passes a layer once a token: under stage 3 all parameters are gathered for it, once.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__ as compatible_operations
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_optimizer_state,
    set_log_level_from_string,
)
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.models import chunk_sizes
from trimtab.models.config.training import TrainerConfig, ZeroConfig
from trimtab.models.nets.freezing import load_trained_state
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.training import distributed
from trimtab.models.training.learner import LossFunction, Metrics
from trimtab.models.training.optimiser import adamw

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedModel:
    """A model that is not trained, sharded over the ranks (stage 3)."""

    def __init__(self, model: PreTrainedModel, zero: ZeroConfig) -> None:
        _start_deepspeed()
        deepspeed.zero.Init(module=model, config_dict_or_path=deepspeed_config(zero, 0.0))
        self.model = model

    @contextmanager
    def gathered(self) -> Iterator[PreTrainedModel]:
        with deepspeed.zero.GatheredParameters(list(self.model.parameters())):
            yield self.model


class ZeroLearner:
    """A Learner by DeepSpeed's ZeRO; `distributed.join_group` must have been called."""

    needs_equal_parts = True

    def __init__(
        self,
        model: PreTrainedModel,
        loss_function: LossFunction,
        config: TrainerConfig,
        zero: ZeroConfig,
        weight_decay: float,
        state: dict[str, Any] | None,
    ) -> None:
        if state is not None:
            load_trained_state(model, state["model"])
        self.model, self.stage = model, zero.stage
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.shapes = {name: parameter.shape for name, parameter in self.trained.items()}
        optimiser = adamw(model, weight_decay)
        self.groups = optimiser.state_dict()["param_groups"]
        self.own_attributes = {module: set(vars(module)) for module in model.modules()}
        _start_deepspeed()
        self.engine, *_ = deepspeed.initialize(
            model=_Loss(model, loss_function),
            optimizer=optimiser,
            config=deepspeed_config(zero, config.max_grad_norm),
        )
        if state is not None and state["optimiser"]["state"]:
            self._load_optimiser(state["optimiser"])

    def loss(self, batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        found: tuple[Tensor, Metrics] = self.engine(batch, arguments)
        return found

    def backward(self, loss: Tensor, is_last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(is_last)
        self.engine.backward(loss * distributed.world_size())

    def step(self, learning_rate: float) -> Tensor:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        return torch.as_tensor(self.engine.get_global_grad_norm())

    @contextmanager
    def gathered(self) -> Iterator[PreTrainedModel]:
        """The model itself; its own forward pass would gather and part layers one by one."""
        if self.stage < 3:
            yield self.model
            return
        with deepspeed.zero.GatheredParameters(list(self.model.parameters())), no_hooks(self.model):
            yield self.model

    def state_dict(self) -> dict[str, Any]:
        model = {
            name: self._whole(name, safe_get_full_fp32_param(parameter))
            for name, parameter in self.trained.items()
        }
        state = self._optimiser_state() if self.engine.optimizer.optimizer.state else {}
        return {"model": model, "optimiser": {"state": state, "param_groups": self.groups}}

    def _optimiser_state(self) -> dict[int, dict[str, Tensor]]:
        steps = self._num_steps()
        return {
            index: {"step": steps.clone()}
            | {
                key: self._whole(name, safe_get_full_optimizer_state(parameter, key))
                for key in _MOMENTS
            }
            for index, (name, parameter) in enumerate(self.trained.items())
        }

    def finish(self) -> None:
        values = self._gathered_parameters()
        self.engine.destroy()
        self._release_deepspeed_references()
        del self.engine
        self.trained = {}
        if distributed.is_rank_zero():
            _replace_parameters(self.model, values)
        gc.collect()  # the engine, its optimiser and the old parameters refer to one another
        if distributed.is_rank_zero():
            self.model.to(torch.get_default_device())

    def _gathered_parameters(self) -> dict[str, Tensor]:
        """All parameters in the first rank's host, nothing on others."""
        trained = {
            name: self._whole(name, safe_get_full_fp32_param(parameter))
            for name, parameter in self.trained.items()
        }
        frozen = {}
        for name, parameter in self.model.named_parameters():
            if name not in trained:
                with deepspeed.zero.GatheredParameters([parameter]):
                    frozen[name] = _copy(parameter)
        return {**trained, **frozen}

    def _release_deepspeed_references(self) -> None:
        """DeepSpeed's globals keep modules and stage 3's coordinator, and so all their tensors."""
        if self.stage == 3:
            vars(self.engine.optimizer.parameter_offload.param_coordinator).clear()
        vars(self.engine.module).clear()
        for module, own in self.own_attributes.items():
            module._parameters = getattr(module, "_original_parameters", module._parameters)
            for name in vars(module).keys() - own:
                delattr(module, name)

    def _load_optimiser(self, saved: dict[str, Any]) -> None:
        self._make_optimiser_states(saved["state"][0]["step"])
        for index, (name, parameter) in enumerate(self.trained.items()):
            for key in _MOMENTS:
                value = saved["state"][index][key].view(self.shapes[name])
                safe_set_full_optimizer_state(parameter, value, key)

    def _make_optimiser_states(self, step: Tensor) -> None:
        """What the first step would make: of this rank's parts there is nothing before it."""
        zero = self.engine.optimizer
        of_stage_3 = self.stage == 3
        for part in (
            zero.fp32_partitioned_groups_flat
            if of_stage_3
            else zero.single_partition_of_fp32_groups
        ):
            moments = {key: torch.zeros_like(part) for key in _MOMENTS}
            zero.optimizer.state[part] = {"step": step.to(part.device, copy=True), **moments}
        if not of_stage_3:
            zero._lazy_init_hp_params_optimizer_state()

    def _num_steps(self) -> Tensor:
        """How often the optimiser has stepped (scalar)."""
        first = next(iter(self.engine.optimizer.optimizer.state.values()))
        return torch.as_tensor(first["step"], device="cpu")

    def _whole(self, name: str, value: Tensor) -> Tensor:
        return _copy(value.view(self.shapes[name]))


def _start_deepspeed() -> None:
    # Sums over ranks for CPUs that would be compiled at first use; gloo has them.
    compatible_operations["deepspeed_shm_comm"] = False
    set_log_level_from_string("warning")
    deepspeed.init_distributed(dist_init_required=False)


def _copy(value: Tensor) -> Tensor:
    """A copy in the first rank's host, nothing on others."""
    return value.detach().to("cpu", copy=True) if distributed.is_rank_zero() else torch.empty(0)


def deepspeed_config(zero: ZeroConfig, max_grad_norm: float) -> dict[str, Any]:
    """DeepSpeed's own configuration. Batches, rates and schedule are the loop's."""
    stage: dict[str, Any] = {
        "stage": zero.stage,
        "reduce_bucket_size": chunk_sizes.ZERO_BUCKET,
        "stage3_max_live_parameters": chunk_sizes.ZERO_LIVE,
        "stage3_max_reuse_distance": chunk_sizes.ZERO_LIVE,
        "stage3_prefetch_bucket_size": chunk_sizes.ZERO_PREFETCH,
        "stage3_param_persistence_threshold": chunk_sizes.ZERO_WHOLE,
    }
    if zero.offload:
        stage["offload_optimizer"] = {"device": "cpu"}
        if zero.stage == 3:
            stage["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": stage,
        # torch's fused AdamW, as without ZeRO; DeepSpeed's own for offloading is compiled first.
        "zero_force_ds_cpu_optimizer": False,
    }


@contextmanager
def no_hooks(model: nn.Module) -> Iterator[None]:
    """A context in which modules run without DeepSpeed's hooks."""
    modules = list(model.modules())
    kept = [(module._forward_pre_hooks, module._forward_hooks) for module in modules]
    for module in modules:
        module._forward_pre_hooks, module._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for module, (before, behind) in zip(modules, kept, strict=True):
            module._forward_pre_hooks, module._forward_hooks = before, behind


class _Loss(nn.Module):
    """The model and its loss as one module, so that DeepSpeed's hooks enclose both."""

    def __init__(self, model: PreTrainedModel, loss_function: LossFunction) -> None:
        super().__init__()
        self.model, self.loss_function = model, loss_function

    def forward(self, batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        return self.loss_function(batch, arguments)


def _replace_parameters(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Plain parameters in place of those that DeepSpeed has taken apart; tied ones stay tied."""
    new = {
        id(parameter): nn.Parameter(values[name], requires_grad=parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, new[id(parameter)])
