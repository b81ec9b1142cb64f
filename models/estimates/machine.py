"""The machine that a plan is compared with."""

from __future__ import annotations

import os
import re
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
class Card:
    """A GPU by its data sheet.

    products: operations a second of dense bfloat16 products that add in float32. bandwidth: bytes a
    second of its memory. gib: memory that the driver shows, in GiB.
    """

    name: str
    products: float
    bandwidth: float
    gib: float

    def is_named(self, driver_name: str) -> bool:
        """Whether a driver's name of a GPU (`NVIDIA A100-SXM4-80GB`) has all words of this one."""
        return set(self.name.split()) <= set(re.split(r"[\s-]+", driver_name))


# From NVIDIA's data sheets (with sparsity they say twice as much).
CARDS = (
    Card("L4", 121e12, 300e9, 22.5),
    Card("A10G", 70e12, 600e9, 22.5),
    Card("RTX 4090", 165e12, 1008e9, 24),
    Card("A100 40GB", 312e12, 1555e9, 40),
    Card("L40S", 362e12, 864e9, 45),
    Card("A100 80GB", 312e12, 2039e9, 80),
    Card("H100", 989e12, 3350e9, 79.6),
    Card("H200", 989e12, 4800e9, 141),
)
# Sizes of a card within which it is the one that a plan names by its memory.
SAME_MEMORY = 0.1


@dataclass(frozen=True)
class Machine:
    """Devices of `memory` bytes, each for `slots` trainer processes at once.

    A computer without GPUs is one device. gpu_name: as the driver gives it; None if unknown.
    """

    num_devices: int
    memory: int
    slots: int
    has_gpus: bool
    gpu_name: str | None = None

    @classmethod
    def with_gpus(cls, count: int, gib: float, name: str | None = None) -> Machine:
        """`count` GPUs of `gib` GiB, one process each."""
        return cls(count, round(gib * GIB), 1, True, name)

    @property
    def cards(self) -> list[Card]:
        """The cards that its GPUs may be: of their name if it is known, and of their memory."""
        if not self.has_gpus:
            return []
        return [
            card
            for card in CARDS
            if abs(card.gib * GIB - self.memory) <= SAME_MEMORY * self.memory
            and (self.gpu_name is None or card.is_named(self.gpu_name))
        ]

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
            count = (
                f"{self.num_devices} GPUs of {size} each"
                if self.num_devices > 1
                else f"a GPU of {size}"
            )
            return f"{count}, one trainer a GPU"
        return f"this computer's {size}, shared by at most {self.slots} trainers at once"
