"""Sampling by vLLM in place of our own loop: a process beside each rank, on the rank's GPU.

It is started once, and given the policy's weights before each batch. Its log-probabilities are
not the trainer's to the last digit, so that old ones are taken by the trainer; whether the two are
of one policy is checked at every batch.

Weights go through files in memory (tmpfs), which vLLM of any version reads and all ranks' processes
share. Handles of GPU memory (CUDA IPC) would save two copies, but both processes would need torch
builds that agree on them, and the trainer segments that cannot be expanded. On a GPU vLLM sleeps
while the trainer computes: it holds neither weights nor cache.

[VLLM] Kwon et al., Efficient Memory Management for Large Language Model Serving with
PagedAttention, 2023, arXiv 2309.06180.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.sampling import SamplerConfig, VllmConfig
from trimtab.models.nets.device import current_device
from trimtab.models.nets.generation import Samples, Sampling
from trimtab.models.nets.lora import merged_weights
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.precision import has_narrow_products
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import distributed, vllm_worker

PYTHON = "TRIMTAB_VLLM_PYTHON"  # the interpreter that has vLLM; else the trainer's own
LOG_NAME = "vllm.log"
MEMORY = Path("/dev/shm")
CHECKED = 8  # responses of a batch, on each rank
SHARD = 2**30  # bytes of a file: so much the host holds beside the files
# Ours: a process group that vLLM is none of, and segments that its sleep mode refuses.
OF_THE_TRAINER = (
    *"RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split(),
    *("GLOO_SOCKET_IFNAME", "PYTHONPATH", *distributed.ALLOCATOR),
)
# Mean nats a token between the two, above which they are not of one policy. In bfloat16 rounding
# alone makes some hundredths; in float32 some millionths.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}


_active: list[VllmSampler] = []


class VllmError(Exception):
    """vLLM could not be started, failed, or sampled from another policy than the trainer's."""


@contextmanager
def vllm_sampler(config: SamplerConfig, workdir: Path) -> Iterator[VllmSampler | None]:
    """A context in which `sampling.sample` has vLLM sample, or not if `config.vllm` is none.

    Gives the sampler, whose processes end with the context.
    """
    if config.vllm is None:
        yield None
        return
    sampler = VllmSampler(config.vllm, workdir)
    _active.append(sampler)
    try:
        yield sampler
    finally:
        _active.remove(sampler)
        sampler.close()


def active_sampler() -> VllmSampler | None:
    """The sampler of the innermost context of `vllm_sampler`; None outside."""
    return _active[-1] if _active else None


class VllmSampler:
    """Samples with vLLM. All ranks call it, and each has a share of the prompts."""

    def __init__(self, config: VllmConfig, workdir: Path) -> None:
        self.config, self.workdir = config, workdir
        number = distributed.rank()
        self.log = workdir / (f"{number}-{LOG_NAME}" if number else LOG_NAME)
        # By the work folder: what a trainer that was killed has left goes with the next.
        name = hashlib.sha256(str(workdir.resolve()).encode()).hexdigest()[:16]
        self.in_memory, self.on_disk = MEMORY / f"trimtab-vllm-{name}", workdir / "vllm"
        self.process: subprocess.Popen[str] | None = None

    def sample(
        self,
        policy: PreTrainedModel,
        end_token: int | None,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        generator: torch.Generator,
    ) -> Samples:
        """One response for every prompt, in order, ended as `rollouts.sample` ends them.

        Its log-probabilities are those at temperature 1. And `vllm_gap`, how far they were from the
        policy's: nats a token. Each response has a seed of its own, on however many ranks. Raises
        VllmError.
        """
        seeds = torch.randint(2**31, (len(prompts),), generator=generator, device="cpu").tolist()
        self._give_weights(policy)
        shape, device = (len(prompts), sampling.max_new_tokens), current_device()
        tokens, logprobs = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        gap = torch.zeros((), device=device)
        mine = distributed.shard(range(len(prompts)))
        if mine:
            local_prompts = [prompts[index] for index in mine]
            request = {"prompts": local_prompts, "seeds": [seeds[index] for index in mine]}
            samples = self._ask({**request, "sampling": _arguments(sampling, end_token)})
            gap += _checked_gap(policy, local_prompts, samples)
            both = zip(samples["responses"], samples["logprobs"], strict=True)
            for index, (response, noted) in zip(mine, both, strict=True):
                tokens[index, : len(response)] = torch.tensor(response) + 1  # 0: none
                logprobs[index, : len(response)] = torch.tensor(noted)
        distributed.all_reduce_sum([tokens, logprobs, gap])
        gap /= min(distributed.world_size(), len(prompts))
        responses = [(row[row > 0].long() - 1).tolist() for row in tokens]
        unknown = torch.full_like(logprobs, math.nan)
        return Samples(responses, logprobs, unknown, {"vllm_gap": gap})

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _give_weights(self, policy: PreTrainedModel) -> None:
        """Hand the weights to all ranks' processes, by a folder that goes once they have them."""
        is_new = self.process is None
        if is_new:
            self._start()  # before there is a folder: it removes one that is left
        torch.cuda.empty_cache()  # what the trainer has freed; nothing on a CPU
        try:
            is_in_memory = distributed.any_rank(
                distributed.is_rank_zero() and self._write(policy) == self.in_memory
            )
            folder = str(self.in_memory if is_in_memory else self.on_disk)
            self._ask({"load": self._engine(policy, folder)} if is_new else {"weights": folder})
            distributed.barrier()  # until all have read it
        finally:
            if distributed.is_rank_zero():
                self._remove_weights()

    def _write(self, policy: PreTrainedModel) -> Path:
        """Put the policy's weights in a folder, in memory if it has room for them."""
        self._remove_weights()  # not over files that vLLM may have mapped
        dtype = _dtype(policy)
        needed = 2 * dtype.itemsize * sum(map(torch.numel, policy.parameters()))
        has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed
        folder = self.in_memory if has_room else self.on_disk
        folder.mkdir(mode=0o700)  # among everybody's, in memory: not one that another has made
        _save_untied(policy, folder, dtype)
        return folder

    def _remove_weights(self) -> None:
        for folder in (self.in_memory, self.on_disk):
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> None:
        python = os.environ.get(PYTHON) or sys.executable
        with self.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    [python, vllm_worker.__file__, str(self.in_memory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=_environment(),
                    start_new_session=True,  # a SIGTERM to the group lets a step be finished
                )
            except OSError as error:
                raise VllmError(f"{PYTHON}: {error}") from error

    def _engine(self, policy: PreTrainedModel, folder: str) -> dict[str, Any]:
        """Arguments of vllm.LLM."""
        is_cpu = policy.device.type == "cpu"
        return {
            "model": folder,
            "skip_tokenizer_init": True,
            "dtype": str(_dtype(policy)).removeprefix("torch."),
            "max_model_len": int(policy.config.max_position_embeddings),
            "kv_cache_memory_bytes": int(self.config.cache_gib * 2**30),
            # The share that must be free at its start, once its cache has a size of its own.
            "gpu_memory_utilization": 0.05,
            "logprobs_mode": "raw_logprobs",
            # On a CPU compiling takes longer than many batches; on a GPU it has CUDA graphs.
            "enforce_eager": is_cpu,
            "enable_sleep_mode": not is_cpu,
            "disable_log_stats": True,
        }

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise VllmError(f"vLLM ended with {self.process.wait()}; its log is {self.log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise VllmError(
                f"{answer['error']} (vLLM's log is {self.log}; {PYTHON} names its Python)"
            )
        return answer


def _dtype(policy: PreTrainedModel) -> torch.dtype:
    """The type in which the policy multiplies, and vLLM holds it."""
    is_narrow = has_narrow_products() or policy.dtype == torch.bfloat16
    return torch.bfloat16 if is_narrow else torch.float32


def _checked_gap(
    policy: PreTrainedModel, prompts: Sequence[list[int]], samples: dict[str, Any]
) -> Tensor:
    """The gap on the first few responses; VllmError if it is more than rounding."""
    pairs = list(zip(prompts, samples["responses"], strict=True))[:CHECKED]
    rows = [Candidates(prompt, (response,)) for prompt, response in pairs]
    with torch.no_grad():
        ours, _, mask = response_logprobs(policy, pack(rows))
    theirs = [value for noted in samples["logprobs"][:CHECKED] for value in noted]
    gap = (ours[mask] - ours.new_tensor(theirs)).abs().mean()
    dtype = _dtype(policy)
    if not gap <= TOLERANCE[dtype]:
        raise VllmError(
            f"vLLM's log-probabilities are {float(gap):.3g} nats a token from the policy's in "
            f"{dtype}, allowed: {TOLERANCE[dtype]}; it did not sample from the policy"
        )
    return gap


def _save_untied(policy: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    """Configuration and weights, with a head of its own.

    Where a head is tied to the embeddings, vLLM 0.32 on CPUs does not get it when weights change.
    """
    config = copy.deepcopy(policy.config)
    config.architectures, config.tie_word_embeddings = [type(policy).__name__], False
    config.save_pretrained(folder)
    weights = merged_weights(policy)
    shards = split_torch_state_dict_into_shards(weights, max_shard_size=SHARD)
    for name, keys in shards.filename_to_tensors.items():
        shard = {key: weights[key].to("cpu", dtype, copy=True) for key in keys}
        save_file(shard, folder / name, {"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


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
    """Of the process: the rank's GPU, or its cores; nothing is reported or fetched."""
    environment = {n: value for n, value in os.environ.items() if n not in OF_THE_TRAINER}
    gpus = environment.get(distributed.VISIBLE, "").split(",")
    if len(gpus) > 1:
        environment[distributed.VISIBLE] = gpus[distributed.rank()]
    if distributed.world_size() > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # each would take the first cores
    return environment | {
        # Its script's folder has modules of our trainers, by names such as `data`.
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
