"""Sampling: this project's decoding loop on two ranks, and transformers' `generate` on two threads.

    python -m tests.bench.rollouts
    TRIMTAB_VLLM_PYTHON=... python -m tests.bench.rollouts --peer vLLM

The peer may be vLLM instead, on two threads. The same small Llamas from random weights, prompts and
lengths, one distribution to draw from; no response ends early. Each a process of its own, in turns.
Prints a table: tokens per second (median, least, most).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from models.config_ppo import PPOConfig, VllmConfig
from models.engine import ranks
from models.engine.rollouts import sample
from models.engine.vllm_sampler import VllmSampler, vllm_sampler
from models.nets.generation import Sampling
from tests.bench.material import small_llama

VOCABULARY, BATCH, PROMPT, RESPONSE = 8192, 64, 48, 48
# Width and layers, for about one, two, five and ten million parameters.
SIZES = {"1 M": (96, 2), "2 M": (128, 4), "5 M": (256, 4), "10 M": (320, 6)}
PEERS = ("generate", "vLLM")
# vLLM has no attention on CPUs for the smallest, whose heads have 24 numbers.
TOO_SMALL = {"vLLM": {"1 M"}}


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rollouts")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", choices=PEERS, default="generate")
    parser.add_argument("--arm", choices=("Trimtab", *PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm is not None:
        print(tokens_per_second(options.arm, options.size))
        return
    arms = ("Trimtab", options.peer)
    print(f"| parameters | Trimtab, tokens/s | `{options.peer}`, tokens/s | times as fast |")
    print("|---|---|---|---|")
    for size in (each for each in SIZES if each not in TOO_SMALL.get(options.peer, ())):
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(options.runs):
            for arm in arms:
                rates[arm].append(_in_a_process(arm, size))
        ratio = median(mine / other for mine, other in zip(*rates.values(), strict=True))
        cells = [
            f"{median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
            for found in rates.values()
        ]
        print(f"| {size} | {cells[0]} | {cells[1]} | {ratio:.1f} |", flush=True)


def _in_a_process(arm: str, size: str) -> float:
    command = [sys.executable, "-m", "tests.bench.rollouts", "--arm", arm, "--size", size]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def tokens_per_second(arm: str, size: str) -> float:
    """Of the second batch: the first warms up."""
    if arm == "Trimtab":
        ranks.start(2)
        torch.set_num_threads(1)
    else:
        torch.set_num_threads(2)
    model = small_llama(Words(), *SIZES[size], max_tokens=256).eval()
    prompts = torch.randint(2, VOCABULARY, (BATCH, PROMPT)).tolist()
    with _sampling_by(arm) as once:
        once(model, prompts)
        started = time.perf_counter()
        once(model, prompts)
        seconds = time.perf_counter() - started
    ranks.leave()
    return BATCH * RESPONSE / seconds


@contextmanager
def _sampling_by(arm: str) -> Iterator[Callable[[PreTrainedModel, list[list[int]]], None]]:
    if arm != "vLLM":
        yield _trimtab if arm == "Trimtab" else _generate
        return
    config = PPOConfig(vllm=VllmConfig())
    with TemporaryDirectory() as folder, vllm_sampler(config, Path(folder)) as vllm:
        assert vllm is not None
        yield partial(_vllm, vllm)


class Words:
    """All that a model and sampling ask of one; no token ends a response."""

    pad_token_id = 0
    eos_token_id = None

    def __len__(self) -> int:
        return VOCABULARY


def _trimtab(model: PreTrainedModel, prompts: list[list[int]]) -> None:
    sampling = Sampling(temperature=0.8, max_new_tokens=RESPONSE)
    sample(model, Words(), prompts, sampling, torch.Generator().manual_seed(0))


def _vllm(vllm: VllmSampler, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """With the weights handed over, as at each batch."""
    sampling = Sampling(temperature=0.8, max_new_tokens=RESPONSE)
    vllm.sample(model, None, prompts, sampling, torch.Generator().manual_seed(0))


@torch.no_grad()
def _generate(model: PreTrainedModel, prompts: list[list[int]]) -> None:
    ids = torch.tensor(prompts)
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=0.8,
        top_k=0,
        max_new_tokens=RESPONSE,
    )


if __name__ == "__main__":
    main()
