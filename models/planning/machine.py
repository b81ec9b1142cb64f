"""The machine that a plan is held against."""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 2**30
# What a process takes beside its tensors, in bytes, estimated: on a GPU the CUDA context with its
# kernels and cuBLAS's workspace, and the buffers of NCCL where ranks add up; else Python and its
# libraries.
CONTEXT = 3 * GIB // 2
MESSAGES = 3 * GIB // 2
INTERPRETER = 2 * GIB // 5
# Share of a device's memory that a plan leaves free: holes of the allocator, and what is estimated.
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

    def beside(self, num_ranks: int) -> int:
        """Bytes that a device holds for a stage of so many ranks beside their tensors."""
        if not self.has_gpus:
            return INTERPRETER * num_ranks
        return CONTEXT + MESSAGES * (num_ranks > 1)

    @property
    def margin(self) -> int:
        """Bytes of a device below which what is left is too little to say that something fits."""
        return round(MARGIN * self.memory)

    def __str__(self) -> str:
        size = f"{self.memory / GIB:.1f} GiB"
        if self.has_gpus:
            return f"{self.num_devices} GPUs of {size} each, one trainer a GPU"
        return f"this computer's {size}, shared by at most {self.slots} trainers at once"
