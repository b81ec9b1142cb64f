"""The trainers' entry, with a toy stage where the real ones are."""

from __future__ import annotations

# ruff: noqa: E402
import sys

LOADED_BEFORE = {"torch", "transformers.models.llama.modeling_llama"} <= sys.modules.keys()

import json
import os
import time
import types

from pydantic import BaseModel

from trimtab.models import specs
from trimtab.models.training import distributed, entry, signals
from trimtab.models.training.stage import Stage

NAME = "toy"


class Config(BaseModel):
    """size: of a product; 1: until it is stopped, at a checkpoint; 3: until it is killed."""

    model_config = {"extra": "forbid"}
    size: int


def run(config: Config, stage: Stage) -> None:
    """Write down what this process sees of its surroundings."""
    import torch

    product = torch.ones(config.size, config.size) @ torch.ones(config.size, 2)
    seen = {
        "loaded_before": LOADED_BEFORE,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "sum": product.sum().item(),
        "inputs": {name: str(path) for name, path in stage.inputs.items()},
    }
    (stage.workdir / f"pid{int(not distributed.is_rank_zero())}").write_text(str(os.getpid()))
    if config.size == 1:
        signals.defer()
    (stage.workdir / "seen.json").write_text(json.dumps(seen))
    while config.size in (1, 3):
        if config.size == 1 and signals.stop_requested():
            (stage.workdir / "saved").touch()
            signals.stop()
        time.sleep(0.01)


def main(job_path: str) -> None:
    """Run the job as `trimtab.models.training.entry` does."""
    stage = types.ModuleType(f"trimtab.models.stages.{NAME}")
    stage.run = run  # type: ignore[attr-defined]
    sys.modules[stage.__name__] = stage
    specs.SPECS[NAME] = specs.StageSpec(NAME, Config, required=("policy",))
    entry.main(job_path)
