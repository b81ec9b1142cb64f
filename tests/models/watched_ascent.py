"""Runs a job as `trimtab.models.training.entry` does and notes what each ascent does to parameters.

Each rank writes ascents/<rank>.json into the work folder: of every ascent the digests of what the
rank holds of parameters and of the optimiser's masters, before it, at theta' and after its undoing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.training import distributed, entry

_watched: list[dict[str, Any]] = []


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _state(learner: Any) -> dict[str, str]:
    """Of whole parameters, and of this rank's part of masters."""
    with learner.gathered():
        parameters = _digest(list(learner.trained.values()))
    return {"parameters": parameters, "masters": _digest(learner.masters())}


def _watch() -> None:
    from trimtab.models.training.zero import PartedAscent

    begin, move, undo = PartedAscent.__init__, PartedAscent.move, PartedAscent.undo

    def watched_begin(self: Any, learner: Any, objective: Any) -> None:
        begin(self, learner, objective)
        _watched.append({"before": _state(learner)})

    def watched_move(self: Any, rate: float) -> None:
        move(self, rate)
        _watched[-1]["moved"] = _state(self.learner)

    def watched_undo(self: Any) -> None:
        undo(self)
        _watched[-1]["after"] = _state(self.learner)

    watched = {"__init__": watched_begin, "move": watched_move, "undo": watched_undo}
    for name, method in watched.items():
        setattr(PartedAscent, name, method)


def main(job_path: str) -> None:
    """Run the job as `trimtab.models.training.entry` does."""
    job = json.loads(Path(job_path).read_text())
    _watch_after_fork(Path(job["workdir"]) / "ascents")
    entry.main(job_path)


def _watch_after_fork(folder: Path) -> None:
    plain = entry._make_deterministic

    def begin(*arguments: Any) -> None:
        plain(*arguments)
        _watch()

    entry._make_deterministic = begin
    leave = distributed.leave

    def write_and_leave() -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{distributed.rank()}.json").write_text(json.dumps(_watched))
        leave()

    distributed.leave = write_and_leave
