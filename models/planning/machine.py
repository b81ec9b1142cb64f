"""The machine that a plan is held against."""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 2**30


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

    def __str__(self) -> str:
        size = f"{self.memory / GIB:.1f} GiB"
        if self.has_gpus:
            return f"{self.num_devices} GPUs of {size} each, one trainer a GPU"
        return f"this computer's {size}, shared by at most {self.slots} trainers at once"
