"""Checkpoints: everything that determines the future of a run, written whole or not at all.

With it goes what the run has recorded so far, its `*.jsonl` files, so that a run that goes on
elsewhere, or after more steps than were saved, has every row once. Its ledgers of what was spent,
`*.ledger`, go along too, but going back to a step unspends nothing: they keep all their lines.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.training import distributed, signals

STATE_FILE = "state.pt"
_RECORDS = "*.jsonl"
_LEDGERS = "*.ledger"
_KEPT = 2

_writer = ThreadPoolExecutor(1, "checkpoint")
_saving: list[Future[None]] = []  # the checkpoint that the thread is writing, if any


def save_checkpoint(workdir: Path, step: int, state: dict[str, Any]) -> None:
    """Write `checkpoints/<step>`: into a hidden folder first, synced, then renamed."""
    _write(_begun(workdir, step), _complete(step, state))


def begin_saving(workdir: Path, step: int, state: dict[str, Any]) -> None:
    """As `save_checkpoint`, of everything as it is now, while training goes on.

    Takes a copy of the state in the host's memory. Whatever comes in the way of it is raised by the
    next call, or by `finish_saving`.
    """
    partial, copy = _begun(workdir, step), _copied(_complete(step, state))
    _saving.append(_writer.submit(_write, partial, copy))


def finish_saving() -> None:
    """Wait for the checkpoint that is being written, if any; raises what came in its way."""
    while _saving:
        _saving.pop().result()


def _begun(workdir: Path, step: int) -> Path:
    """The hidden folder of a checkpoint, with what the run has recorded so far.

    The one before it is then whole.
    """
    finish_saving()
    partial = workdir / "checkpoints" / f".{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in itertools.chain(workdir.glob(_RECORDS), workdir.glob(_LEDGERS)):
        shutil.copyfile(path, partial / path.name)
    return partial


def _complete(step: int, state: dict[str, Any]) -> dict[str, Any]:
    """With the CPU's generator; a device draws dropout masks alone, which each step seeds anew."""
    return {**state, "step": step, "torch_rng": torch.get_rng_state()}


def _write(partial: Path, state: dict[str, Any]) -> None:
    """Make a checkpoint of a hidden folder; the oldest goes."""
    with (partial / STATE_FILE).open("wb") as stream:  # torch's own file hides why it fails
        torch.save(state, stream)
    for path in partial.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    root, step = partial.parent, state["step"]
    shutil.rmtree(root / str(step), ignore_errors=True)
    partial.rename(root / str(step))
    for old in sorted(_steps(root))[:-_KEPT]:
        shutil.rmtree(root / str(old))


def _copied(value: Any) -> Any:
    """A state with copies of its tensors, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, (list, tuple)) else value


def newest_checkpoint(workdir: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state, or `None`; restores the state of torch's global generator.

    The run's records become those of the checkpoint, none without one. From now on a request to
    stop waits for `checkpoint_or_stop`.
    """
    signals.defer()
    finish_saving()
    steps = _steps(workdir / "checkpoints")
    if distributed.is_rank_zero():
        newest = workdir / "checkpoints" / str(max(steps)) if steps else None
        _restore_records(workdir, newest)
        if newest is not None:
            _restore_ledgers(workdir, newest)
    if not steps:
        return None
    state = _load(workdir, max(steps))
    torch.set_rng_state(state["torch_rng"])
    return state


def oldest_checkpoint(workdir: Path) -> dict[str, Any] | None:
    """The oldest checkpoint still kept: where a collapsed run rolls back to."""
    finish_saving()
    steps = _steps(workdir / "checkpoints")
    return _load(workdir, min(steps)) if steps else None


def _load(workdir: Path, step: int) -> dict[str, Any]:
    path = workdir / "checkpoints" / str(step) / STATE_FILE
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return state


def _restore_records(workdir: Path, folder: Path | None) -> None:
    """Each is replaced by another file, which whoever reads along by offset sees."""
    saved = set() if folder is None else {path.name for path in folder.glob(_RECORDS)}
    for name in saved | {path.name for path in workdir.glob(_RECORDS)}:
        partial = workdir / f"{name}.partial"
        if folder is not None and name in saved:
            shutil.copyfile(folder / name, partial)
        else:
            partial.write_bytes(b"")
        partial.replace(workdir / name)


def _restore_ledgers(workdir: Path, folder: Path) -> None:
    """The lines of both, each once; those that were cut off are left out."""
    for saved in folder.glob(_LEDGERS):
        own = workdir / saved.name
        texts = [path.read_bytes() for path in (own, saved) if path.exists()]
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        partial = workdir / f"{saved.name}.partial"
        with partial.open("wb") as stream:
            stream.writelines(dict.fromkeys(line for line in lines if line.endswith(b"\n")))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(own)


def _has_device() -> bool:
    return torch.get_default_device().type != "cpu"


def checkpoint_or_stop(
    workdir: Path, step: int, every: int, state: Callable[[], dict[str, Any]]
) -> None:
    """Checkpoint when due; on a request to stop, checkpoint at once and leave.

    All ranks ask for the `state`, which they may hold a part of each; the first writes it. A device
    goes on meanwhile. A CPU would share its cores and memory with the writing: it waits.
    """
    stopping = distributed.any_rank(signals.stop_requested())
    if stopping or step % every == 0:
        found = state()
        if distributed.is_rank_zero():
            save = begin_saving if _has_device() and not stopping else save_checkpoint
            save(workdir, step, found)
    if stopping:
        distributed.any_rank(stopping)  # until the first has saved
        signals.stop()


def _steps(root: Path) -> list[int]:
    if not root.exists():
        return []
    return [int(child.name) for child in root.iterdir() if child.name.isdigit()]
