"""Ten small members as one stacked model (torch.func), or one after another: which is faster?

    python -m tests.bench.stacking

Reward models of the recipe `default` on one core, pairs of equal length, so that nothing is padded;
loss and gradient of one batch, of ten members: Trimtab's packed pass for each in turn, the padded
pass for each in turn, and that pass of all ten at once (`torch.func.vmap` over stacked weights).
Prints a table: milliseconds (median, least, most) of so many turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from transformers import LlamaForSequenceClassification, PreTrainedModel

from trimtab.flows.config.recipes.synthetic import default
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.loading import build_policy
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_scores
from trimtab.models.stages.world import word_tokenizer

MEMBERS, PROMPT, RESPONSE = 10, 16, 12


def main() -> None:
    """Measure each size of batch, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stacking")
    parser.add_argument("--pairs", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| pairs a batch | Trimtab, in turn, ms | padded, in turn, ms | padded, stacked, ms |")
    print("|---|---|---|---|")
    for count in options.pairs:
        arms = _arms(count)
        for arm in arms:
            arm()
        times = [[1000 * _seconds(arm) for arm in arms] for _ in range(options.runs)]
        cells = [
            f"{median(column):.0f} ({min(column):.0f} to {max(column):.0f})"
            for column in zip(*times, strict=True)
        ]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def _arms(count: int) -> list[Callable[[], Any]]:
    """Of so many pairs: functions that take all members' gradients."""
    tokenizer = word_tokenizer()
    tokens = torch.randint(4, len(tokenizer), (count, PROMPT + 2 * RESPONSE)).tolist()
    first, second = PROMPT, PROMPT + RESPONSE
    rows = [Candidates(ids[:first], (ids[first:second], ids[second:])) for ids in tokens]
    batch = pack(rows)
    texts = torch.tensor([row.prompt + response for row in rows for response in row.responses])
    models = [_member(seed) for seed in range(MEMBERS)]
    lean = [_member(seed) for seed in range(MEMBERS)]
    for model in lean:
        fuse_layers(model)

    def packed() -> None:
        for model in lean:
            _loss(response_scores(model, batch)).backward()

    length = texts.shape[1]
    mask = torch.full((length, length), -torch.inf).triu(1)[None, None]

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        trunk = functional_call(
            models[0].model, (weights, buffers), (texts,), {"attention_mask": mask}
        )
        return _loss(trunk.last_hidden_state[:, -1].mean(-1))

    members = [dict(model.model.named_parameters()) for model in models]
    buffers = dict(models[0].model.named_buffers())
    stacked, _ = stack_module_state([model.model for model in models])
    all_at_once = vmap(grad(loss), in_dims=(0, None))
    return [
        packed,
        lambda: [grad(loss)(weights, buffers) for weights in members],
        lambda: all_at_once(stacked, buffers),
    ]


def _member(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = build_policy(default().sft.model, word_tokenizer()).config
    config.num_labels, config.use_cache = 1, False
    config._attn_implementation = "eager"  # torch.func goes through it
    return LlamaForSequenceClassification(config)


def _loss(scores: Tensor) -> Tensor:
    chosen, rejected = scores.view(-1, 2).unbind(1)
    return -F.logsigmoid(chosen - rejected).mean()


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
