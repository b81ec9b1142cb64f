"""A flow whose process waits for files at its import and in its body, and leaves others."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trimtab.flows.runs.flow import flow
from trimtab.infra.prefect import fence

_place = Path(os.environ["FENCED_PLACE"])


def _at(name: str) -> None:
    """Say that this is reached, and wait for the word to go on."""
    (_place / name).touch()
    while not (_place / f"after {name}").exists():
        time.sleep(0.02)


fence.SECONDS_BETWEEN_LOOKS = 0.5
_at("import")


@flow(name="fenced", subject="test")
def fenced() -> str:
    """Args: none."""
    _at("flow")
    return "done"
