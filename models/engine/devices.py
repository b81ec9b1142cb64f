"""The GPU of a trainer: new tensors and models are made on it unless they name another device."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"


def show_only(gpus: Sequence[str]) -> None:
    """Let this process see the GPUs of these names (as in CUDA_VISIBLE_DEVICES) and no others.

    To be called before CUDA is asked for anything.
    """
    os.environ[VISIBLE] = ",".join(gpus)


def compute_on_gpu() -> None:
    """From now on compute on this rank's GPU of those that it sees.

    Raises ValueError where torch sees none.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise ValueError(
            f"{VISIBLE} is {os.environ.get(VISIBLE)!r}, but torch {torch.__version__} sees no GPU: "
            f"install a build of torch for it, or set {VISIBLE}= where the stages are started from "
            "to compute on the CPU"
        )
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.accelerator.set_device_index(index)
    torch.set_default_device(torch.device(device.type, index))
