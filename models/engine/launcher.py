"""DeepSpeed's launcher for the ranks of one host."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import socket
import sys
from typing import NoReturn

HOST = "127.0.0.1"


def is_rank() -> bool:
    """Whether a launcher has started this process."""
    return "RANK" in os.environ


def become_launcher(module: str, argument: str, num_ranks: int) -> NoReturn:
    """Turn this process into the launcher of `num_ranks` times `python -m module argument`.

    It keeps its process id and group, so that whoever watches, stops or kills this process does so
    to them. A rank that fails ends the others. The ranks that are told to stop have 30 s for it.
    Raises ValueError where DeepSpeed or accelerators are wanting.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise ValueError("train.zero needs DeepSpeed: pip install 'trimtab[deepspeed]'")
    # What `deepspeed` runs on every host; it would put a process more in between.
    command = [sys.executable, "-m", "deepspeed.launcher.launch", "--log_level", "warning"]
    command += ["--world_info", _world(num_ranks), "--node_rank", "0", "--no_local_rank"]
    command += ["--master_addr", HOST, "--master_port", str(_free_port()), "--module"]
    os.execv(sys.executable, [*command, module, argument])


def _world(num_ranks: int) -> str:
    """This host and the accelerators of its ranks, of those that this process may see."""
    devices: list[int | str] = list(range(num_ranks))
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        devices = [int(each) if each.isdecimal() else each for each in visible.split(",")]
    if len(devices) < num_ranks:
        raise ValueError(
            f"train.num_ranks is {num_ranks}, but CUDA_VISIBLE_DEVICES={visible} names "
            f"{len(devices)}: a rank takes one"
        )
    chosen = devices[:num_ranks]
    return base64.urlsafe_b64encode(json.dumps({"localhost": chosen}).encode()).decode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
