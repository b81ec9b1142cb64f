"""Timers, rates, kernel tables and memory, with which parts measure."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.shapes import ModelShape
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs
from trimtab.models.gpu_check.driver import Bench
from trimtab.models.nets.device import current_device
from trimtab.models.nets.packing import Candidates

GIB = 2**30
TOP_KERNELS = 12
# What a kernel does, by the first pattern that its name has; the rest is elementwise.
GROUPS = {
    "attention": r"flash|fmha|attention|sdpa",
    "optimiser": r"adam|multi_tensor|foreach",
    "matrix products": r"gemm|cutlass|nvjet|cublas|\baten::(mm|addmm|bmm|baddbmm)\b|matmul",
    "copies, indexing": r"memcpy|memset|copy|cat|index|gather|scatter|embedding|aten::(to|clone)",
    "elementwise, reductions": r"",
}


def synchronise() -> None:
    """Wait until the GPU has done all its work."""
    if current_device().type == "cuda":
        torch.cuda.synchronize()


def timed(function: Callable[[], object], warmup: int, repeats: int) -> list[float]:
    """Seconds of each of the repeats, from one synchronisation to the next."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeats):
        synchronise()
        start = time.perf_counter()
        function()
        synchronise()
        seconds.append(time.perf_counter() - start)
    return seconds


def note_runs(
    bench: Bench, name: str, runs: Sequence[float], unit: str, scale: float = 1.0, **more: Any
) -> float:
    """Note the median of several runs, and the least and the most; returns the median."""
    values = [scale * run for run in runs]
    middle = median(values)
    bench.note(name, middle, unit, least=min(values), most=max(values), **more)
    return middle


def peak_gib() -> float | None:
    """The most GiB that tensors took; None on a CPU."""
    is_gpu = current_device().type == "cuda"
    return torch.cuda.max_memory_allocated() / GIB if is_gpu else None


def row_work(shape: ModelShape, row: Candidates) -> float:
    """Floating-point operations of a training step on a packed row [Kaplan et al. 2020, app. B].

    Two a parameter and token forward and four backward, embeddings apart, and causal attention.
    """
    weights = shape.largest_layer.active
    prompt = len(row.prompt)
    looks = prompt**2 / 2 + sum(prompt * len(y) + len(y) ** 2 / 2 for y in row.responses)
    of_layer = row.num_tokens * 2 * weights + looks * 4 * shape.num_heads * shape.head_dim
    return 3 * shape.num_layers * of_layer


def product_rate(size: int, dtype: torch.dtype) -> float:
    """Floating-point operations a second of products of square matrices."""
    left, right = (torch.randn(size, size, dtype=dtype, device=current_device()) for _ in range(2))
    seconds = timed(lambda: [left @ right for _ in range(10)], 1, 3)
    return 10 * 2 * size**3 / min(seconds)


def note_kernels(
    bench: Bench, call: str, function: Callable[[], object], seconds: float, trace: Path | None
) -> None:
    """Note where the device's time of one call goes, and how long it idles.

    seconds: of a call without a profiler. trace: where the timeline goes, compressed.
    """
    on_gpu = bench.device == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities) as watched:
        function()
        synchronise()
    if trace is not None:
        watched.export_chrome_trace(str(trace))
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    groups: dict[str, float] = defaultdict(float)
    kernels = []
    for event in watched.key_averages():
        time_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        is_annotation = "#" in event.key  # of a whole optimiser step, beside its kernels
        if event.device_type == kind and time_us > 0 and not is_annotation:
            groups[group_of(event.key)] += time_us / 1e3
            kernels.append((event.key, time_us / 1e3))
    busy = sum(groups.values()) or 1.0
    idle = max(0.0, 1 - busy / (1e3 * seconds))
    ordered = sorted(groups.items(), key=lambda item: -item[1])
    top = sorted(kernels, key=lambda item: -item[1])[:TOP_KERNELS]
    bench.note(
        f"{call}: device busy",
        busy,
        "ms",
        beside=f"idle {idle:.0%}" if on_gpu else "of the host",
        groups=[(name, spent, spent / busy) for name, spent in ordered],
    )
    bench.note(f"{call}: kernels", len(kernels), "kinds", groups=[(n, t, t / busy) for n, t in top])


def group_of(kernel: str) -> str:
    """Which of GROUPS a kernel belongs to."""
    return next(name for name, pattern in GROUPS.items() if re.search(pattern, kernel.lower()))


def note_memory(
    bench: Bench, stage: str, config: Any, inputs: StageInputs, used: float | None
) -> None:
    """Note the most GiB that tensors took beside what the plan says; used: None on a CPU."""
    planned = work_of(stage, config, inputs).peak[1].total / GIB
    if used is None:
        bench.note(f"{stage}: memory planned", planned, "GiB")
        return
    bench.note(
        f"{stage}: memory in tensors",
        used,
        "GiB",
        beside=f"planned {planned:.1f}",
        target="within its plan",
        met=used <= planned,
    )


def inputs_of(
    bench: Bench, shape: ModelShape, rows: Sequence[Candidates], prompt: int
) -> StageInputs:
    """Inputs of a plan for so many pairs, each as long as the longest; prompt: tokens."""
    count = len(rows)
    amounts = Amounts(
        demonstrations=count,
        pairs=count,
        train_pairs=count,
        train_rankings=count,
        policy_prompts=count,
        prompt_tokens=prompt,
        dialogue_tokens=max(len(row.prompt) + max(map(len, row.responses)) for row in rows),
        pair_tokens=max(row.num_tokens for row in rows),
    )
    return StageInputs(shape, amounts, has_gpus=bench.device == "cuda")
