"""What a server loads that forks trainers under ZeRO: beside its own, what DeepSpeed loads in every
trainer, and once more in each of its ranks (MLflow, and torch's compiler, which is not used)."""

import os

import trimtab.models.training.preload

os.environ["DS_ACCELERATOR"] = "cpu"  # or it guesses
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401

import trimtab.models.training.zero  # noqa: F401
