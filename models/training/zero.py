"""ZeRO: ranks hold a part each of optimiser state, gradients and parameters (DeepSpeed).

[ZERO] Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
2020, arXiv 1910.02054.

Implementation details that matter:
1. Where layers multiply in bfloat16, stages 2 and 3 hold all parameters in bfloat16. Of those that
   are trained each rank has its part in float32 beside (the masters, in DeepSpeed's optimiser),
   from which they are rounded after every step; what is frozen the first rank's host keeps in
   float32, to be saved. Gradients of a micro batch are bfloat16, summed over ranks and micro
   batches in float32. Under stage 1 all stay in float32.
2. A checkpoint has each rank's part of masters and moments in a file of its own; a run goes on from
   it with any number of ranks, any stage of ZeRO, or none.
3. The losses of all parts and ranks sum up to the step's; DeepSpeed takes the mean over ranks.
4. Stages 2 and 3 communicate in every part, so that ranks must have equally many.
5. Sampling passes a layer once a token: under stage 3 all parameters are gathered for it, once.
6. torch's FSDP2 can do all of this too, on float32 parts that it gathers in bfloat16. On two gloo
   ranks neither took clearly less memory while gradients were added up, in a step and in an ascent,
   and DeepSpeed stays.
"""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.ops import __compatible_ops__ as compatible_operations
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID
from deepspeed.utils import safe_get_full_fp32_param, set_log_level_from_string
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainerConfig, ZeroConfig
from trimtab.models.nets import counts
from trimtab.models.nets.device import current_device
from trimtab.models.nets.freezing import check_trained_names
from trimtab.models.nets.fused import with_forward
from trimtab.models.nets.logits import Head
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.nets.precision import has_narrow_products
from trimtab.models.training import distributed
from trimtab.models.training.checkpoint import Part, PartedTensor
from trimtab.models.training.optimiser import Ascent, LossFunction, Metrics, WholeAscent, adamw

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedModel:
    """A model that is not trained, sharded over the ranks (stage 3); in bfloat16 as above."""

    def __init__(self, model: PreTrainedModel, zero: ZeroConfig) -> None:
        _start_deepspeed()
        if has_narrow_products():
            keep_sums_wide(model)
            for parameter in model.parameters():
                parameter.data = parameter.data.bfloat16()
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
        self.model, self.stage = model, zero.stage
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.shapes = {name: parameter.shape for name, parameter in self.trained.items()}
        if state is not None:
            check_trained_names(self.trained, state["model"])
        self.is_narrow = has_narrow_products() and self.stage > 1
        # Of DeepSpeed's optimiser: the attribute that has this rank's parts in float32.
        self.masters_name = (
            "fp32_partitioned_groups_flat" if self.stage == 3 else "single_partition_of_fp32_groups"
        )
        optimiser = adamw(model, weight_decay)
        self.groups = optimiser.state_dict()["param_groups"]
        sizes = [parameter.numel() for parameter in self.trained.values()]
        self.places = dict(zip(self.trained, places_of_rank(sizes, self.stage), strict=True))
        _start_deepspeed()
        settings = deepspeed_config(zero, config.max_grad_norm, is_narrow=self.is_narrow)
        self.frozen: dict[str, Tensor] = {}
        self.classes: dict[nn.Module, type[nn.Module]] = {}
        masters = self._narrowed() if self.is_narrow else {}
        if self.is_narrow and self.stage == 3:  # DeepSpeed would read float32 as its own
            deepspeed.zero.Init(module=model, config_dict_or_path=settings)
        self.own_attributes = {module: set(vars(module)) for module in model.modules()}
        self.engine, *_ = deepspeed.initialize(
            model=_Loss(model, loss_function), optimizer=optimiser, config=settings
        )
        if state is not None:
            masters = {name: _read(state["model"][name], at) for name, at in self.places.items()}
        self._set_masters(masters)
        if state is not None and state["optimiser"]["state"]:
            self._load_optimiser(state["optimiser"])

    def _narrowed(self) -> dict[str, Tensor]:
        """Make parameters bfloat16, one by one; returns this rank's parts in float32.

        The first rank's host keeps what is frozen, for the end.
        """
        masters = {}
        self.classes = keep_sums_wide(self.model)
        for name, parameter in self.model.named_parameters():
            if name in self.trained:
                masters[name] = _read(parameter.detach(), self.places[name]).clone()
            elif parameter.dtype == torch.float32 and distributed.is_rank_zero():
                self.frozen[name] = _copy(parameter)
            parameter.data = parameter.data.bfloat16()
        return masters

    def loss(self, batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        outputs: tuple[Tensor, Metrics] = self.engine(batch, arguments)
        return outputs

    def backward(self, loss: Tensor, is_last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(is_last)
        self.engine.backward(loss * distributed.world_size())

    def step(self, learning_rate: float) -> Tensor:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        return torch.as_tensor(self.engine.get_global_grad_norm())

    def ascent(self, objective: LossFunction) -> Ascent:
        return (
            WholeAscent(self.model, objective) if self.stage == 1 else PartedAscent(self, objective)
        )

    @contextmanager
    def gathered(self) -> Iterator[PreTrainedModel]:
        """The model itself; its own forward pass would gather and part layers one by one."""
        if self.stage < 3:
            yield self.model
            return
        with deepspeed.zero.GatheredParameters(list(self.model.parameters())), no_hooks(self.model):
            yield self.model

    def state_dict(self) -> dict[str, Any]:
        state = self._optimiser_state() if self.engine.optimizer.optimizer.state else {}
        model = {name: self._part(name) for name in self.trained}
        return {"model": model, "optimiser": {"state": state, "param_groups": self.groups}}

    def _optimiser_state(self) -> dict[int, dict[str, Any]]:
        first = next(iter(self.engine.optimizer.optimizer.state.values()))
        steps = torch.as_tensor(first["step"], device="cpu")
        return {
            index: {"step": steps.clone()} | {key: self._part(name, key) for key in _MOMENTS}
            for index, name in enumerate(self.trained)
        }

    def _part(self, name: str, moment: str | None = None) -> Part:
        return Part(self.held(name, moment), self.places[name].start, tuple(self.shapes[name]))

    def held(self, name: str, moment: str | None = None) -> Tensor:
        """(n,) float32: what this rank has of a parameter, or of a moment of it; a view."""
        parameter, count = self.trained[name], len(self.places[name])
        if count == 0:
            return torch.empty(0)
        if self.stage == 3:
            part, _ = parameter._z3_optimizer._get_fp32_opt_state_partition(
                parameter, release_swap_buffers=True, optim_state_key=moment
            )
            return part.detach()[:count]
        return parameter._hp_mapping.get_hp_fragment(moment).detach()

    def masters(self) -> list[Tensor]:
        """This rank's parts of all parameters in float32, as DeepSpeed lays them one by one."""
        masters: list[Tensor] = getattr(self.engine.optimizer, self.masters_name)
        return masters

    @property
    def shares_masters(self) -> bool:
        """Whether masters are the parameters themselves: of float32 ones under stage 3."""
        return (
            self.stage == 3 and not self.is_narrow and not self.engine.optimizer.offload_optimizer
        )

    @torch.no_grad()
    def refresh(self, values: Sequence[Tensor]) -> None:
        """Let parameters be those of which every rank has its part in `values`, like `masters`.

        As after an optimiser's step.
        """
        zero, name = self.engine.optimizer, self.masters_name
        plain = getattr(zero, name)
        setattr(zero, name, list(values))
        try:
            if self.stage < 3:
                zero.update_lp_params()
                return
            zero._partition_all_parameters()
            for group in range(len(values)):
                zero._reassign_or_swap_out_partitioned_parameters(group)
            if zero.persistent_parameters:
                zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
        finally:
            setattr(zero, name, plain)

    def take_gradients(self) -> list[Tensor]:
        """This rank's part of the gradient that was added up, like `masters`; it is then zero."""
        zero, masters = self.engine.optimizer, self.masters()
        is_offloaded = zero.offload_optimizer if self.stage == 3 else zero.cpu_offload
        if is_offloaded:
            gradients: list[Any] = [master.grad for master in masters]
            taken = [gradient.clone() for gradient in gradients]
        else:
            taken = [_flat(zero.averaged_gradients[i], master) for i, master in enumerate(masters)]
            zero.averaged_gradients.update(dict.fromkeys(range(len(masters))))
        if self.stage == 3:
            zero._pre_step()
        else:
            zero.micro_step_id = INITIAL_MICRO_STEP_ID
        zero.zero_grad()
        return taken

    @torch.no_grad()
    def _set_masters(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.held(name).copy_(value)
        if values:
            self.refresh(self.masters())

    def finish(self) -> None:
        values = self._gathered_parameters()
        self.engine.destroy()
        self._release_deepspeed_references()
        del self.engine
        self.trained = {}
        if distributed.is_rank_zero():
            _replace_parameters(self.model, values)
        for parameter in self.model.parameters():  # other ranks still have DeepSpeed's
            vars(parameter).clear()
        gc.collect()  # the engine, its optimiser and the old parameters refer to one another
        if distributed.is_rank_zero():
            self.model.to(current_device())

    def _gathered_parameters(self) -> dict[str, Tensor]:
        """All parameters in the first rank's host, nothing on others."""
        trained = {
            name: _copy(safe_get_full_fp32_param(parameter).view(self.shapes[name]))
            for name, parameter in self.trained.items()
        }
        frozen = {}
        for name, parameter in self.model.named_parameters():
            if name not in trained:
                with deepspeed.zero.GatheredParameters([parameter]):
                    frozen[name] = _copy(parameter)
        return {**trained, **frozen, **self.frozen}

    def _release_deepspeed_references(self) -> None:
        """DeepSpeed's globals keep modules and stage 3's coordinator, and so all their tensors."""
        if self.stage == 3:
            vars(self.engine.optimizer.parameter_offload.param_coordinator).clear()
        vars(self.engine.module).clear()
        for module, attributes in self.own_attributes.items():
            module._parameters = getattr(module, "_original_parameters", module._parameters)
            for name in vars(module).keys() - attributes:
                delattr(module, name)
        for module, kind in self.classes.items():
            module.__class__ = kind

    def _load_optimiser(self, saved: dict[str, Any]) -> None:
        self._make_optimiser_states(saved["state"][0]["step"])
        for index, name in enumerate(self.trained):
            for key in _MOMENTS:
                self.held(name, key).copy_(_read(saved["state"][index][key], self.places[name]))

    def _make_optimiser_states(self, step: Tensor) -> None:
        """What the first step would make: of this rank's parts there is nothing before it."""
        zero = self.engine.optimizer
        for part in self.masters():
            moments = {key: torch.zeros_like(part) for key in _MOMENTS}
            zero.optimizer.state[part] = {"step": step.to(part.device, copy=True), **moments}
        if self.stage < 3:
            zero._lazy_init_hp_params_optimizer_state()


class PartedAscent:
    """An ascent on each rank's own part: gradients are summed into parts, as the descent's are.

    The parameters become theta' = theta + rate * gradient, computed in float32 and rounded as
    parameters are; theta stays as it is in the optimiser's masters, from which the parameters are
    made anew in the end. Of a movement far below the distance of two bfloat16 numbers (2^-8 to 2^-7
    of a weight) few weights move, and those by all of that distance. Masters that were learned lie
    anywhere between two such numbers, so that in the mean over weights the movement is right; from
    weights that are bfloat16 numbers themselves it falls short until the masters have left them.
    """

    needs_equal_parts = True

    def __init__(self, learner: ZeroLearner, objective: LossFunction) -> None:
        self.learner, self.objective = learner, objective
        self.values: list[Tensor] = []  # gradients, then what the parameters go back to

    def loss(self, batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        module = self.learner.engine.module
        descent, module.loss_function = module.loss_function, self.objective
        try:
            return self.learner.loss(batch, arguments)
        finally:
            module.loss_function = descent

    def backward(self, loss: Tensor, is_last: bool) -> None:
        self.learner.backward(loss, is_last)

    def direction(self) -> tuple[Tensor, int]:
        self.values = self.learner.take_gradients()
        norms = torch.stack([torch.linalg.vector_norm(value) for value in self.values])
        squares = norms.square().sum().to(current_device())
        distributed.all_reduce_sum([squares])
        return squares.sqrt(), sum(shape.numel() for shape in self.learner.shapes.values())

    @torch.no_grad()
    def move(self, rate: float) -> None:
        masters = self.learner.masters()
        for value, master in zip(self.values, masters, strict=True):
            torch.add(master, value, alpha=rate, out=value)
        moved = self.values
        self.values = [master.clone() for master in masters] if self.learner.shares_masters else []
        self.learner.refresh(moved)

    def undo(self) -> None:
        self.learner.refresh(self.values or self.learner.masters())


def _start_deepspeed() -> None:
    # Sums over ranks for CPUs that would be compiled at first use; gloo has them.
    compatible_operations["deepspeed_shm_comm"] = False
    set_log_level_from_string("warning")
    deepspeed.init_distributed(dist_init_required=False)


def _copy(value: Tensor) -> Tensor:
    """A copy in the first rank's host, nothing on others."""
    return value.detach().to("cpu", copy=True) if distributed.is_rank_zero() else torch.empty(0)


def places_of_rank(sizes: Sequence[int], stage: int) -> list[range]:
    """Which numbers of each parameter, of so many, this rank holds.

    Stages 1 and 2 cut all of them, one behind another and filled up to an even part for each rank;
    stage 3 cuts each by itself.
    """
    rank, count = distributed.rank(), distributed.world_size()
    if stage == 3:
        shares = [-(-size // count) for size in sizes]
        firsts = [rank * share for share in shares]
    else:
        shares = [2 * -(-sum(sizes) // (2 * count))] * len(sizes)
        starts = itertools.accumulate(sizes, initial=0)
        firsts = [rank * share - start for share, start in zip(shares, starts, strict=False)]
    return [
        range(min(max(first, 0), size), min(max(first + share, 0), size))
        for first, share, size in zip(firsts, shares, sizes, strict=True)
    ]


def _read(saved: Tensor | PartedTensor, places: range) -> Tensor:
    """(n,) the numbers of a tensor at these places."""
    if isinstance(saved, PartedTensor):
        return saved.read(places)
    return saved.reshape(-1)[places.start : places.stop]


def _flat(gradients: Sequence[Tensor], like: Tensor) -> Tensor:
    """(n,) DeepSpeed's gradients of a rank's part in one, float32; with zeros behind them."""
    flat = getattr(gradients, "flat_partition", None)
    if flat is None:
        flat = torch.zeros_like(like)
        parts = [gradient.reshape(-1) for gradient in gradients]
        torch.cat(parts, out=flat[: sum(map(len, parts))])
    return flat


def deepspeed_config(
    zero: ZeroConfig, max_grad_norm: float, *, is_narrow: bool = False
) -> dict[str, Any]:
    """DeepSpeed's own configuration. Batches, rates and schedule are the loop's."""
    stage: dict[str, Any] = {
        "stage": zero.stage,
        "reduce_bucket_size": counts.ZERO_BUCKET,
        "stage3_max_live_parameters": counts.ZERO_LIVE,
        "stage3_max_reuse_distance": counts.ZERO_LIVE,
        "stage3_prefetch_bucket_size": counts.ZERO_PREFETCH,
        "stage3_param_persistence_threshold": counts.ZERO_WHOLE,
    }
    if zero.offload:
        stage["offload_optimizer"] = {"device": "cpu"}
        if zero.stage == 3:
            stage["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": stage,
        # A gradient that is not finite ends the run (`Progress`); DeepSpeed would leave out a step.
        "bf16": {"enabled": is_narrow, "check_grad_overflow": False},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        # torch's fused AdamW, as without ZeRO; DeepSpeed's own for offloading is compiled first.
        "zero_force_ds_cpu_optimizer": False,
    }


@contextmanager
def no_hooks(model: nn.Module) -> Iterator[None]:
    """A context in which modules run without DeepSpeed's hooks."""
    modules = list(model.modules())
    hooks = [(module._forward_pre_hooks, module._forward_hooks) for module in modules]
    for module in modules:
        module._forward_pre_hooks, module._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for module, (before, behind) in zip(modules, hooks, strict=True):
            module._forward_pre_hooks, module._forward_hooks = before, behind


class _Loss(nn.Module):
    """The model and its loss as one module, so that DeepSpeed's hooks enclose both."""

    def __init__(self, model: PreTrainedModel, loss_function: LossFunction) -> None:
        super().__init__()
        self.model, self.loss_function = model, loss_function

    def forward(self, batch: PackedBatch, arguments: Any) -> tuple[Tensor, Metrics]:
        return self.loss_function(batch, arguments)


def keep_sums_wide(model: PreTrainedModel) -> dict[nn.Module, type[nn.Module]]:
    """Let a model of bfloat16 weights have a float32 residual stream and heads, as a wide one.

    Returns the classes that its changed modules had.
    """
    kinds: dict[nn.Module, Any] = {module: type(module) for module in model.modules()}
    changed: dict[nn.Module, type[nn.Module]] = {
        module: with_forward(kind, _embed)
        for module, kind in kinds.items()
        if isinstance(module, nn.Embedding)
    }
    scores, logits = getattr(model, "score", None), model.get_output_embeddings()
    if isinstance(scores, nn.Linear):
        changed[scores] = with_forward(kinds[scores], _read_out)
    if isinstance(logits, nn.Linear):
        changed[logits] = _WideHead
    classes = {module: type(module) for module in changed}
    for module, kind in changed.items():
        module.__class__ = kind
    return classes


def _embed(self: Any, tokens: Tensor) -> Tensor:
    embedded: Tensor = super(type(self), self).forward(tokens)
    # Outside of a trunk's pass, where a policy samples, all of it is narrow.
    return embedded.float() if torch.is_autocast_enabled(embedded.device.type) else embedded


def _read_out(self: Any, hidden: Tensor) -> Tensor:
    bias = None if self.bias is None else self.bias.float()
    return F.linear(hidden.float(), self.weight.float(), bias)


class _WideHead(Head):
    """A language-model head of narrow weights: a GPU adds up their products in float32."""

    def forward(self, hidden: Tensor, is_narrow: bool = False) -> Tensor:
        if hidden.device.type == "cpu":
            return _read_out(self, hidden)
        return super().forward(hidden, is_narrow=True)


def _replace_parameters(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Plain parameters in place of those that DeepSpeed has taken apart; tied ones stay tied."""
    new = {
        id(parameter): nn.Parameter(values[name], requires_grad=parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, new[id(parameter)])
