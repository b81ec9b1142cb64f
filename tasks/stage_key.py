"""A stage's key, and the version of its code, which is a part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from models.data.records import ArtifactRef
from tasks.code_version import code_version
from tasks.stage_context import Trainers


class CodeChangedError(RuntimeError):
    """A stage whose code was edited between its key and its end: nobody knows what made it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"stage {name}: its code on disk changed while it ran; nothing of it was published"
        )


def code_of(trainers: Trainers, stage: str) -> str:
    """The version of the stage's code as it is on disk now."""
    module = f"{trainers.package}.{stage}"
    return code_version(module, root=trainers.root, packages=(module.partition(".")[0],))


def stage_key(
    stage: str, config: Mapping[str, Any], inputs: Mapping[str, ArtifactRef], code: str
) -> str:
    """sha256 over the canonical JSON of what decides a stage's result.

    Limits of what it may spend do not (`models.config.base.deciding`): with a higher one the same
    work goes on, and what it has spent so far counts.
    Inputs count by content, not by the key that made them: an upstream change that leaves its
    output as it was reruns nothing downstream.
    """
    content = {
        "stage": stage,
        "config": config,
        "inputs": {name: ref.digest for name, ref in inputs.items()},
        "code": code,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
