"""Dropout on a device that is no CPU: masks are drawn there, each from numbers of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForSequenceClassification

from tests.models.pretend_gpu import NAME, run_on_pretended_gpu
from trimtab.models.config.training import TrainerConfig
from trimtab.models.nets.device import current_device
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_scores
from trimtab.models.nets.training import (
    current_pass,
    dropped,
    prepare_training,
    same_pass,
    seed_dropout,
)
from trimtab.models.nets.trunk import hidden_states

CONFIG = LlamaConfig(
    vocab_size=30,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
    num_labels=1,
)
ROWS = [Candidates([3, 4, 5], ([6, 7, 8], [9, 10])), Candidates([11], ([12, 13], [14]))]
SHARE = 0.25
SIZE = 100_000


def _scorer(config: TrainerConfig | None = None) -> LlamaForSequenceClassification:
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(CONFIG)
    model = model.to(current_device())
    prepare_training(model, config or TrainerConfig(), 0, dropout=SHARE)
    return model.train()


def _mask(seed: int, step: int, rank: int, name: str, num_passes: int) -> list[bool]:
    """Which of some numbers are left, in the pass after so many others."""
    seed_dropout(seed, step, rank)
    with same_pass(num_passes):
        kept: list[bool] = (
            dropped(torch.ones(64, device=current_device()), SHARE, name) != 0
        ).tolist()
    return kept


def _masks(each: list[tuple[int, int, int, str, int]]) -> list[list[bool]]:
    return [_mask(*numbers) for numbers in each]


def test_seed_step_rank_layer_part_and_pass_have_masks_of_their_own() -> None:
    first = (0, 0, 0, "0/0", 0)
    others = [(1, 0, 0, "0/0", 0), (0, 1, 0, "0/0", 0), (0, 0, 1, "0/0", 0)]
    others += [(0, 0, 0, "1/0", 0), (0, 0, 0, "0/1", 0), (0, 0, 0, "0/0", 1)]
    found = run_on_pretended_gpu(_masks, [first, *others, first])
    assert found[0] == found[-1]
    assert len(set(map(tuple, found))) == 1 + len(others)


def _moments(dtype: torch.dtype) -> tuple[torch.dtype, float, float, set[float], Tensor]:
    seed_dropout(0, 0, 0)
    given = torch.full((SIZE,), 3.0, dtype=dtype, device=current_device(), requires_grad=True)
    output = dropped(given, SHARE, "0/0")
    (gradient,) = torch.autograd.grad(output.sum(), given)
    values = output.detach().float()
    same = (gradient.float() * 3).cpu()
    return (
        output.dtype,
        float(values.mean()),
        float(values.var()),
        set(values.tolist()),
        (same - values.cpu()).abs().max(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_keeps_the_mean_and_the_gradient_is_dropped_where_the_output_is(
    dtype: torch.dtype,
) -> None:
    found, mean, variance, values, difference = run_on_pretended_gpu(_moments, dtype)
    assert found == dtype
    assert values == {0.0, 4.0}  # 3 / (1 - 1/4), exact in either type
    # Of each number the mean is 3 and the variance 9 p / (1 - p) = 3; six standard errors.
    assert abs(mean - 3) < 6 * (3 / SIZE) ** 0.5
    # The share dropped has the standard error sqrt(p (1 - p) / n); d variance / d p = 16 (1 - 2p).
    assert abs(variance - 3) < 6 * 8 * (3 / 16 / SIZE) ** 0.5
    assert difference < 0.05  # 3 * 4/3, the gradient rounded to eight bits


def _gradients_of_two_passes(is_recomputed: bool) -> dict[str, Tensor]:
    """Of two micro batches whose backward passes both come behind the forward ones."""
    model = _scorer(TrainerConfig(gradient_checkpointing=is_recomputed))
    seed_dropout(0, 0, 0)
    losses = [response_scores(model, pack(ROWS)).square().sum() for _ in range(2)]
    for loss in losses:
        loss.backward()
    assert current_pass() == 2
    return {name: value.grad.cpu() for name, value in model.named_parameters()}


def test_a_recomputed_layer_drops_again_what_it_dropped() -> None:
    kept, recomputed = (run_on_pretended_gpu(_gradients_of_two_passes, on) for on in (False, True))
    for name, gradient in kept.items():
        assert torch.equal(gradient, recomputed[name]), name


def _states_of_steps() -> list[Tensor]:
    """Of two passes of step 1, of step 2, and of step 1 once more, other numbers between them."""
    model, found = _scorer(), []
    for step in (1, 2, 1):
        seed_dropout(0, step, 0)
        found += [hidden_states(model, pack(ROWS)).detach().cpu() for _ in range(2)]
        torch.rand(7)
    return found


def test_views_and_steps_differ_and_a_step_that_is_resumed_repeats_its_masks() -> None:
    first, second, *others, again, again_second = run_on_pretended_gpu(_states_of_steps)
    for other in (second, *others):
        assert not torch.equal(first, other)
    assert torch.equal(first, again)
    assert torch.equal(second, again_second)


class _Draws(TorchDispatchMode):
    """Counts the numbers that are drawn, by device."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in op.tags:
            for leaf in tree_leaves(result):
                self.numbers[leaf.device.type] += leaf.numel()
        return result


def _draws() -> tuple[Counter[str], int]:
    model, batch = _scorer(TrainerConfig(gradient_checkpointing=True)), pack(ROWS)
    seed_dropout(0, 0, 0)
    with _Draws() as draws:
        response_scores(model, batch).sum().backward()
    return draws.numbers, batch.input_ids.numel()


def test_no_mask_is_drawn_on_the_cpu() -> None:
    numbers, num_tokens = run_on_pretended_gpu(_draws)
    assert numbers["cpu"] == 0
    # Of two parts of three layers, once; what is recomputed is drawn in another thread.
    assert numbers[NAME] >= 2 * CONFIG.num_hidden_layers * num_tokens * CONFIG.hidden_size


def test_the_cpu_draws_as_it_did() -> None:
    seed_dropout(5, 2, 1)
    ones = torch.ones(3, 4)
    found = [dropped(ones, SHARE, "0/0") for _ in range(2)]
    torch.manual_seed(5371349578815986851)  # random.Random("dropout/5/2/1").getrandbits(63)
    expected = [torch.nn.functional.dropout(ones, SHARE) for _ in range(2)]
    assert all(map(torch.equal, found, expected))
