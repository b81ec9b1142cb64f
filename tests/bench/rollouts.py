"""Sampling: this project's decoding loop on two ranks, and transformers' `generate` on two threads.

    python -m tests.bench.rollouts
    python -m tests.bench.rollouts --ending
    TRIMTAB_VLLM_PYTHON=... python -m tests.bench.rollouts --peer vLLM

The peer may be vLLM instead, on two threads. The same small Llamas from random weights, prompts and
lengths, one distribution to draw from. No response ends early, nor has a prompt another length than
the rest; `--ending`, both do, as they do of people. Each a process of its own, in turns. Prints a
table: sampled tokens per second (median, least, most).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from tests.bench.material import small_llama
from trimtab.models.config.policy import PPOConfig
from trimtab.models.config.sampling import VllmConfig
from trimtab.models.nets.generation import Sampling
from trimtab.models.training import distributed
from trimtab.models.training.sampling import sample
from trimtab.models.training.vllm_sampler import VllmSampler, vllm_sampler

VOCABULARY, BATCH, PROMPT, RESPONSE = 8192, 64, 48, 48
END = 1
SAMPLING = Sampling(temperature=0.8, max_new_tokens=RESPONSE)
# Width and layers, for about one, two, five and ten million parameters.
SIZES = {"1 M": (96, 2), "2 M": (128, 4), "5 M": (256, 4), "10 M": (320, 6)}
PEERS = ("generate", "vLLM")
# vLLM has no attention on CPUs for the smallest, whose heads have 24 numbers.
TOO_SMALL = {"vLLM": {"1 M"}}
# Samples a response to each prompt; returns the number of their tokens.
Sampled = Callable[[PreTrainedModel, "Words", list[list[int]]], int]


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rollouts")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", choices=PEERS, default="generate")
    parser.add_argument("--ending", action="store_true", help="responses end, prompts differ")
    parser.add_argument("--arm", choices=("Trimtab", *PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm is not None:
        print(tokens_per_second(options.arm, options.size, options.ending))
        return
    arms = ("Trimtab", options.peer)
    print(f"| parameters | Trimtab, tokens/s | `{options.peer}`, tokens/s | times as fast |")
    print("|---|---|---|---|")
    for size in (name for name in SIZES if name not in TOO_SMALL.get(options.peer, ())):
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(options.runs):
            for arm in arms:
                rates[arm].append(_in_a_process(arm, size, options.ending))
        ratio = median(mine / other for mine, other in zip(*rates.values(), strict=True))
        cells = [
            f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            for values in rates.values()
        ]
        print(f"| {size} | {cells[0]} | {cells[1]} | {ratio:.1f} |", flush=True)


def _in_a_process(arm: str, size: str, ending: bool) -> float:
    command = [sys.executable, "-m", "tests.bench.rollouts", "--arm", arm, "--size", size]
    command += ["--ending"] if ending else []
    return float(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def tokens_per_second(arm: str, size: str, ending: bool) -> float:
    """Of the second batch: the first warms up."""
    if arm == "Trimtab":
        distributed.start(2)
        torch.set_num_threads(1)
    else:
        torch.set_num_threads(2)
    words = Words(END if ending else None)
    model = small_llama(words, *SIZES[size], max_tokens=256).eval()
    prompts = torch.randint(2, VOCABULARY, (BATCH, PROMPT)).tolist()
    if ending:
        _let_end(model)
        prompts = [ids[: 4 + number * PROMPT // BATCH] for number, ids in enumerate(prompts)]
    with _sampling_by(arm) as once:
        once(model, words, prompts)
        started = time.perf_counter()
        count = once(model, words, prompts)
        seconds = time.perf_counter() - started
    distributed.leave()
    return count / seconds


@torch.no_grad()
def _let_end(model: PreTrainedModel) -> None:
    """Have the end token follow one token in thirty; random weights draw all tokens alike."""
    model.get_input_embeddings().weight[:, 0] = 0.2  # what all hidden states then have in common
    states = model.base_model(torch.randint(2, VOCABULARY, (8, PROMPT))).last_hidden_state
    head, common = model.get_output_embeddings().weight, states.mean((0, 1))
    others = (states @ head.T / SAMPLING.temperature).logsumexp(-1).mean()
    wanted = SAMPLING.temperature * (others - log(30))
    head[END] = wanted * common / common.square().sum()


@contextmanager
def _sampling_by(arm: str) -> Iterator[Sampled]:
    if arm != "vLLM":
        yield _trimtab if arm == "Trimtab" else _generate
        return
    config = PPOConfig(vllm=VllmConfig())
    with TemporaryDirectory() as folder, vllm_sampler(config, Path(folder)) as vllm:
        assert vllm is not None
        yield partial(_vllm, vllm)


class Words:
    """All that a model and sampling ask of one; maybe no token ends a response."""

    pad_token_id = 0

    def __init__(self, end: int | None = None) -> None:
        self.eos_token_id = end

    def __len__(self) -> int:
        return VOCABULARY


def _trimtab(model: PreTrainedModel, words: Words, prompts: list[list[int]]) -> int:
    generator = torch.Generator().manual_seed(0)
    return _num_tokens(sample(model, words, prompts, SAMPLING, generator).responses)


def _vllm(vllm: VllmSampler, model: PreTrainedModel, words: Words, prompts: list[list[int]]) -> int:
    """With the weights handed over, as at each batch."""
    generator = torch.Generator().manual_seed(0)
    return _num_tokens(
        vllm.sample(model, words.eos_token_id, prompts, SAMPLING, generator).responses
    )


@torch.no_grad()
def _generate(model: PreTrainedModel, words: Words, prompts: list[list[int]]) -> int:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    texts = model.generate(
        input_ids=ids,
        attention_mask=(ids != 0).long(),
        do_sample=True,
        temperature=SAMPLING.temperature,
        top_k=0,
        max_new_tokens=RESPONSE,
        eos_token_id=words.eos_token_id,
        pad_token_id=0,
    )
    return int((texts[:, width:] != 0).sum())


def _num_tokens(responses: Sequence[list[int]]) -> int:
    return sum(map(len, responses))


if __name__ == "__main__":
    main()
