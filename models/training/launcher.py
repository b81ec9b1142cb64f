"""DeepSpeed's launcher for the ranks of one host."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

HOST = "127.0.0.1"
# Of our own: others, such as a job scheduler, may have set RANK.
_LAUNCHED = "TRIMTAB_IS_RANK"


def is_rank() -> bool:
    """Whether a launcher has started this process."""
    return _LAUNCHED in os.environ


def become_launcher(module: str, argument: str, num_ranks: int, gpus: Sequence[str]) -> NoReturn:
    """Turn this process into the launcher of `num_ranks` times `python -m module argument`.

    Each sees all of the GPUs, and takes that of its number; without GPUs they use the CPU.

    It keeps its process id and group, so that whoever watches, stops or kills this process does so
    to them. A rank that fails ends the others. The ranks that are told to stop have 30 s for it.
    Raises ValueError without DeepSpeed.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise ValueError(
            "ZeRO, and ranks with a GPU each, need DeepSpeed: pip install 'trimtab[deepspeed]'"
        )
    # What `deepspeed` runs on every host; it would put a process more in between.
    command = [sys.executable, "-P", "-m", "deepspeed.launcher.launch", "--log_level", "warning"]
    world = json.dumps({"localhost": gpus or list(range(num_ranks))})
    command += ["--world_info", base64.urlsafe_b64encode(world.encode()).decode()]
    command += ["--node_rank", "0", "--no_local_rank"]
    command += ["--master_addr", HOST, "--master_port", str(_free_port()), "--module"]
    accelerator = "cuda" if gpus else "cpu"  # which DeepSpeed would choose by what it sees
    safe = {"PYTHONSAFEPATH": "1"}  # for the ranks, which the launcher starts with `python -m`
    environment = {**os.environ, **safe, "DS_ACCELERATOR": accelerator, _LAUNCHED: "1"}
    os.execve(sys.executable, [*command, module, argument], environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
