"""Counts what steps launch on a GPU and how often the host waits for it, on the GPU that is none.

    python -m tests.models.launches

A launch is an operation on tensors of the device that makes no mere view. The host waits where a
value is read, where the size of a result depends on values, and for a copy between host and device
that is not `non_blocking`. Of each step it prints the launches by name, the copies that are not
waited for, what is waited for, and the order of both, as JSON.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from tests.models import pretend_gpu
from tests.models.pretend_gpu import PretendTensor
from trimtab.models.config.policy import DPOConfig, PPOConfig
from trimtab.models.config.reward import ContrastiveConfig, MetaRMConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.nets import attention, device
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.nets.scoring import CATEGORY_HEADS, response_logprobs
from trimtab.models.nets.training import prepare_training
from trimtab.models.stages import dpo
from trimtab.models.stages.meta_rm import MetaAscent
from trimtab.models.stages.ppo_max.update import ActorCritic
from trimtab.models.training.data import Pairs
from trimtab.models.training.imitation import imitation_loss
from trimtab.models.training.learner import (
    LossFunction,
    ReplicatedLearner,
    TrainingRows,
    accumulate,
    built_ahead,
)
from trimtab.models.training.loop import fit
from trimtab.models.training.nll_term import NLLTerm
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss
from trimtab.models.training.scoring import map_rows, score_rows

TRAIN = TrainConfig(batch_size=4, num_epochs=1, micro_batch_tokens=100_000)

_ALLOCATIONS = ("empty", "new_empty", "_unsafe_view", "_reshape_alias", "lift_fresh")
_COPIES = ("_to_copy", "copy_")
# Besides indices that are masks.
_SIZED_BY_VALUES = (
    "nonzero",
    "masked_select",
    "masked_scatter_backward",
    "unique",
    "_unique",
    "repeat_interleave",
    "bincount",
)


class Counted:
    """Counts what the device computes while it is entered: what its TorchDispatchMode sees, and
    what torch's own constructors ask of the device below that."""

    def __init__(self) -> None:
        self.compute = pretend_gpu._compute
        self.launches: Counter[str] = Counter()
        self.events: list[str] = []  # copies that nobody waits for, and what is waited for

    def __enter__(self) -> Counted:
        pretend_gpu._compute = self._counted
        return self

    def __exit__(self, *_: object) -> None:
        pretend_gpu._compute = self.compute

    def _counted(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = self.compute(op, args, kwargs)
        self._count(op, args, kwargs, result)
        return result

    def _count(self, op: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        name = op._schema.name.removeprefix("aten::")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        is_ours = any(isinstance(each, PretendTensor) for each in (*given, *made))
        if not is_ours or op.is_view or name.startswith(_ALLOCATIONS):
            return
        if name in _COPIES and len({type(each) for each in (*given, *made)}) > 1:
            is_waited_for = not (kwargs.get("non_blocking", False) or (True in args[2:]))
            self.events.append(f"wait: {name}" if is_waited_for else "copy")
        elif waits := self._waits(name, args):
            self.events.append(f"wait: {waits}")
        else:
            self.launches[name] += 1

    @staticmethod
    def _waits(name: str, args: Any) -> str | None:
        if name in ("_local_scalar_dense", "equal") or name.startswith(_SIZED_BY_VALUES):
            return name
        if name.removeprefix("_").startswith("index_put") or name == "index":
            for index in (each for each in args[1] if each is not None):
                if index.dtype in (torch.bool, torch.uint8):
                    return f"{name} by a mask"
                if not isinstance(index, PretendTensor):
                    return f"{name} from the host"
        return None


def _kernel(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    """Launches what an attention kernel does, and computes nothing."""
    attended: Tensor = _OneKernel.apply(query, key, value)
    return attended


class _OneKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return query.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        _, key, value = ctx.saved_tensors
        return gradient.clone(), torch.zeros_like(key), torch.zeros_like(value)


def _model(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **options,
    )
    model = kind(config).to(device.current_device())
    fuse_layers(model)
    return model


def _policy() -> Any:
    return _model(LlamaForCausalLM)


def _scorer(num_labels: int = 1) -> Any:
    return _model(LlamaForSequenceClassification, num_labels=num_labels)


def _rows(count: int, num_responses: int = 1) -> list[Candidates]:
    return [
        Candidates(
            [7] * (3 + row % 5), tuple([8 + n] * (2 + row % 3 + n) for n in range(num_responses))
        )
        for row in range(count)
    ]


def _pairs(count: int, category: str | None = None) -> Pairs:
    rows = [Candidates(row.prompt, row.responses, category=category) for row in _rows(count, 2)]
    records = [
        {"id": str(number), "prompt": str(number), "category": category} for number in range(count)
    ]
    ones = torch.ones(count)
    return Pairs(records, rows, ones, 0 * ones, ones)


def _pass(model: Any, loss: LossFunction, data: TrainingRows) -> Callable[[], object]:
    """Forward and backward of one micro batch, which has to be built first."""
    learner = ReplicatedLearner(model, loss, TRAIN, 0.0, None)

    def run() -> None:
        every = range(len(data.rows))
        accumulate(learner, built_ahead(learner, data, every, TRAIN.micro_batch_tokens))

    return run


def _reward_model(count: int, dropout: float = 0.0) -> Callable[[], object]:
    model = _scorer()
    prepare_training(model, TRAIN, 0, dropout)
    model.train()
    return _pass(model, reward_loss(model), pair_batches_of(_pairs(count)).examples)


def _reward_model_in_bfloat16() -> Callable[[], object]:
    run = _reward_model(2)

    def narrow() -> None:
        set_product_precision("bfloat16")
        run()
        set_product_precision("float32")

    return narrow


def _reward_model_with_all_terms() -> Callable[[], object]:
    model = _scorer(4)
    setattr(model.config, CATEGORY_HEADS, ["a", "b"])
    model.lm_head = _policy().lm_head
    rankings = pair_batches_of(_pairs(4, "b"), "k_wise", imitates=True)
    loss = reward_loss(model, 0.5, ContrastiveConfig(coef=0.5))
    return _pass(model, loss, rankings.examples)


def _sft() -> Callable[[], object]:
    model, rows = _policy(), _rows(4)
    return _pass(model, imitation_loss(model), TrainingRows(rows, torch.ones(len(rows))))


def _dpo() -> Callable[[], object]:
    model, pairs = _policy(), _pairs(4)

    def arguments(indices: list[int]) -> tuple[Tensor, ...]:
        return dpo._pair_arguments(pairs, torch.zeros(4, 2), indices)

    data = TrainingRows(pairs.rows, pairs.weight, arguments=arguments)
    return _pass(model, dpo._pair_loss(model, DPOConfig()), data)


def _logprobs() -> Callable[[], object]:
    model, rows = _policy(), _rows(4)
    return lambda: map_rows(rows, lambda batch: response_logprobs(model, batch), width=4)


def _scores() -> Callable[[], object]:
    model, rows = _scorer(), _rows(4, 2)
    return lambda: score_rows(model, rows)


def _ppo_update() -> Callable[[], object]:
    """Of policy and critic, with rehearsal: three micro batches and two steps."""
    rows = _rows(4)
    config = PPOConfig(train_batch=4, micro_batch_tokens=100_000)
    term = NLLTerm(rows, 0.1, 4)
    learner = ActorCritic(config, _policy(), _scorer, [term])
    values = torch.zeros(4, 4).to(device.current_device())
    mask = (torch.arange(4) < torch.tensor([[len(row.responses[0])] for row in rows])).to(
        device.current_device()
    )
    names = ("old_logprobs", "ref_logprobs", "values", "advantages", "returns")
    tensors = dict.fromkeys(names, values)
    experience = SimpleNamespace(rows=rows, response_mask=mask, importance=None, **tensors)
    return lambda: learner.update(experience, updates_policy=True)  # type: ignore[arg-type]


def _steps() -> Callable[[], object]:
    """Three steps of `fit`, of one micro batch each."""
    model = _scorer()

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            data = pair_batches_of(_pairs(12)).examples
            fit(model, data, reward_loss(model), TRAIN, seed=0, workdir=Path(folder))

    return run


def _ascent() -> Callable[[], object]:
    """Of MetaRM, by a set length: up and down again."""
    model = _scorer()
    config = MetaRMConfig(train=TRAIN, ascent_length=1.0, meta_batch=4)
    ascent = MetaAscent(config, model, _rows(4, 2))
    learner = ReplicatedLearner(model, reward_loss(model), TRAIN, 0.0, None)

    def run() -> None:
        with ascent(0, learner):
            pass

    return run


STEPS: dict[str, Callable[[], Callable[[], object]]] = {
    "reward model, 2 pairs": lambda: _reward_model(2),
    "reward model, 40 pairs": lambda: _reward_model(40),
    "reward model, dropout": lambda: _reward_model(2, dropout=0.1),
    "reward model, bfloat16": _reward_model_in_bfloat16,
    "reward model, all terms": _reward_model_with_all_terms,
    "sft": _sft,
    "dpo": _dpo,
    "log-probabilities": _logprobs,
    "scores": _scores,
    "ppo update": _ppo_update,
    "three steps": _steps,
    "meta_rm ascent": _ascent,
}


def counts(names: Iterable[str]) -> dict[str, Any]:
    """Of each step, the second time it runs: `launches` by name, `events` in order."""
    attention._has_flash = lambda _: True
    attention.varlen = SimpleNamespace(varlen_attn=_kernel)
    found = {}
    for name in names:
        run = STEPS[name]()
        run()
        with Counted() as counted:
            run()
        found[name] = {"launches": dict(counted.launches), "events": counted.events}
    return found


if __name__ == "__main__":
    pretend_gpu.install()
    device.set_device(torch.device(pretend_gpu.NAME, 0))
    print(json.dumps(counts(STEPS)))
