"""The machine that a plan is held against."""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 2**30
# Overhead of a process in bytes. On a GPU, estimated and not measured: the CUDA context with its
# kernels and cuBLAS's workspace; with several ranks also NCCL's buffers. On a CPU, measured: Python
# and its libraries.
CUDA_CONTEXT = 3 * GIB // 2
NCCL_BUFFERS = 3 * GIB // 2
PYTHON_PROCESS = 2 * GIB // 5
# Two cores, in round numbers; of a plan's stages and of a budget's voters.
OPERATIONS_A_SECOND = 1e11
# Share of a device's memory that should stay free: for fragmentation, and errors of the estimates.
MARGIN = 0.1


@dataclass(frozen=True)
class Machine:
    """Devices with memory of their own (bytes), each for `slots` trainer processes at once.

    A computer without GPUs is one device whose processes share its memory.
    """

    num_devices: int
    memory: int
    slots: int
    has_gpus: bool

    @classmethod
    def of_gpus(cls, count: int, gib: float) -> Machine:
        """`count` GPUs of `gib` GiB, one process each."""
        return cls(count, round(gib * GIB), 1, True)

    @classmethod
    def this_computer(cls, max_parallel: int) -> Machine:
        """The memory of this computer, shared by at most `max_parallel` trainers."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(1, memory, max_parallel, False)

    def overhead(self, num_ranks: int) -> int:
        """Bytes of a device that a stage's processes take in addition to their tensors."""
        if not self.has_gpus:
            return PYTHON_PROCESS * num_ranks
        return CUDA_CONTEXT + NCCL_BUFFERS * (num_ranks > 1)

    @property
    def margin(self) -> int:
        """Bytes of a device that should stay free; with less a stage is said to be close."""
        return round(MARGIN * self.memory)

    def __str__(self) -> str:
        size = f"{self.memory / GIB:.1f} GiB"
        if self.has_gpus:
            return f"{self.num_devices} GPUs of {size} each, one trainer a GPU"
        return f"this computer's {size}, shared by at most {self.slots} trainers at once"
