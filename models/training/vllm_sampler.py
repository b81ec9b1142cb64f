"""Sampling by vLLM in place of our own loop: a process beside the trainer, of the first rank.

It is started once, and given the policy's weights before each batch. Its log-probabilities are
not the trainer's to the last digit, so that old ones are taken by the trainer; whether the two are
of one policy is checked at every batch.

[VLLM] Kwon et al., Efficient Memory Management for Large Language Model Serving with
PagedAttention, 2023, arXiv 2309.06180.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import PPOConfig
from trimtab.models.nets.device import current_device
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.lora import merged_weights
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.precision import has_narrow_products
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import distributed, vllm_worker
from trimtab.models.training.learner import Metrics

PYTHON = "TRIMTAB_VLLM_PYTHON"  # the interpreter that has vLLM; else the trainer's own
LOG_NAME = "vllm.log"
CHECKED = 8  # responses of a batch
# Mean nats a token between the two, above which they are not of one policy. In bfloat16 rounding
# alone makes some hundredths; in float32 some millionths.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}


class VllmError(Exception):
    """vLLM could not be started, failed, or sampled from another policy than the trainer's."""


@contextmanager
def vllm_sampler(config: PPOConfig, workdir: Path) -> Iterator[VllmSampler | None]:
    """A context with vLLM's sampler, or None if `config.vllm` is; its process ends with it."""
    if config.vllm is None:
        yield None
        return
    sampler = VllmSampler(config, workdir)
    try:
        yield sampler
    finally:
        sampler.close()


class VllmSampler:
    """Samples with vLLM. All ranks call it; the first runs the process and sends the results."""

    def __init__(self, config: PPOConfig, workdir: Path) -> None:
        self.config, self.workdir = config, workdir
        self.dtype = "bfloat16" if has_narrow_products() else "float32"
        self.process: subprocess.Popen[str] | None = None

    def sample(
        self,
        policy: PreTrainedModel,
        end_token: int | None,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        generator: torch.Generator,
    ) -> tuple[list[list[int]], Metrics]:
        """One response for every prompt, in order, ended as `rollouts.sample` ends them.

        And `vllm_gap`, how far its log-probabilities were from the policy's: nats a token. Each
        response has a seed of its own. Raises VllmError.
        """
        seeds = torch.randint(2**31, (len(prompts),), generator=generator, device="cpu").tolist()
        tokens = torch.zeros(len(prompts), sampling.max_new_tokens, device=current_device())
        gap = torch.zeros((), device=current_device())
        if distributed.is_rank_zero():
            self._give_weights(policy)
            found = self._ask(
                {"prompts": prompts, "seeds": seeds, "sampling": _arguments(sampling, end_token)}
            )
            gap += self._checked_gap(policy, prompts, found)
            for row, response in zip(tokens, found["responses"], strict=True):
                row[: len(response)] = torch.tensor(response) + 1  # 0: none
        distributed.all_reduce_sum([tokens, gap])
        return [(row[row > 0].long() - 1).tolist() for row in tokens], {"vllm_gap": gap}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _give_weights(self, policy: PreTrainedModel) -> None:
        """Hand the weights to vLLM through a folder outside the stage's output."""
        folder = self.workdir / "vllm"
        # Not over files that vLLM may have mapped.
        shutil.rmtree(folder, ignore_errors=True)
        _save_untied(policy, folder)
        if self.process is None:
            self._start(folder, int(policy.config.max_position_embeddings))
        else:
            self._ask({"weights": str(folder)})
        shutil.rmtree(folder)

    def _start(self, folder: Path, max_tokens: int) -> None:
        command = [os.environ.get(PYTHON) or sys.executable, vllm_worker.__file__]
        with (self.workdir / LOG_NAME).open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=_environment(),
                    start_new_session=True,  # a SIGTERM to the group lets a step be finished
                )
            except OSError as error:
                raise VllmError(f"{PYTHON}: {error}") from error
        assert self.config.vllm is not None
        is_cpu = current_device().type == "cpu"
        arguments = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "dtype": self.dtype,
            "max_model_len": max_tokens,
            "kv_cache_memory_bytes": int(self.config.vllm.cache_gib * 2**30),
            # The share that must be free at its start, once its cache has a size of its own.
            "gpu_memory_utilization": 0.05,
            "logprobs_mode": "raw_logprobs",
            # On a CPU compiling takes longer than many batches; on a GPU it has CUDA graphs.
            "enforce_eager": is_cpu,
            "disable_log_stats": True,
        }
        self._ask({"load": arguments})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None and self.process.stdout is not None
        log = self.workdir / LOG_NAME
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise VllmError(f"vLLM ended with {self.process.wait()}; its log is {log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise VllmError(f"{answer['error']} (vLLM's log is {log}; {PYTHON} names its Python)")
        return answer

    def _checked_gap(
        self, policy: PreTrainedModel, prompts: Sequence[list[int]], found: dict[str, Any]
    ) -> Tensor:
        """The gap on the first few responses; VllmError if it is more than rounding."""
        pairs = list(zip(prompts, found["responses"], strict=True))[:CHECKED]
        rows = [Candidates(prompt, (response,)) for prompt, response in pairs]
        with torch.no_grad():
            ours, _, mask = response_logprobs(policy, pack(rows))
        theirs = [value for noted in found["logprobs"][:CHECKED] for value in noted]
        gap = (ours[mask] - ours.new_tensor(theirs)).abs().mean()
        if not gap <= TOLERANCE[self.dtype]:
            raise VllmError(
                f"vLLM's log-probabilities are {float(gap):.3g} nats a token from the policy's in "
                f"{self.dtype}, allowed: {TOLERANCE[self.dtype]}; it did not sample from the policy"
            )
        return gap


def _save_untied(policy: PreTrainedModel, folder: Path) -> None:
    """Configuration and weights, with a head of its own.

    Where a head is tied to the embeddings, vLLM 0.32 on CPUs does not get it when weights change.
    """
    config = copy.deepcopy(policy.config)
    config.architectures, config.tie_word_embeddings = [type(policy).__name__], False
    config.save_pretrained(folder)
    places: set[int] = set()
    weights = {}
    for name, value in merged_weights(policy).items():
        weights[name] = value.clone() if value.data_ptr() in places else value
        places.add(value.data_ptr())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _arguments(sampling: Sampling, end_token: int | None) -> dict[str, Any]:
    """Arguments of vllm.SamplingParams; logprobs=0 returns only the sampled token's."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": [] if end_token is None else [end_token],
        "detokenize": False,
        "logprobs": 0,
    }


def _environment() -> dict[str, str]:
    """Of the process: all cores that the ranks have, which wait; nothing is reported or fetched."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {
        # Its script's folder has modules of our trainers, by names such as `data`.
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": str(distributed.world_size() * torch.get_num_threads()),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
