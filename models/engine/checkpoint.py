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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.engine import ranks, signals

STATE_FILE = "state.pt"
_RECORDS = "*.jsonl"
_LEDGERS = "*.ledger"


def save_checkpoint(workdir: Path, step: int, state: dict[str, Any], keep: int = 2) -> None:
    """Write `checkpoints/<step>`: into a hidden folder first, synced, then renamed."""
    root = workdir / "checkpoints"
    partial = root / f".{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with (partial / STATE_FILE).open("wb") as stream:
        torch.save({**state, "step": step, **_random_states()}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    _save_records(workdir, partial)
    final = root / str(step)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in sorted(_steps(root))[:-keep]:
        shutil.rmtree(root / str(old))


def newest_checkpoint(workdir: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state, or `None`; restores torch's global random states.

    The run's records become those of the checkpoint, none without one. From now on a request to
    stop waits for `checkpoint_or_stop`.
    """
    signals.defer()
    steps = _steps(workdir / "checkpoints")
    if ranks.is_first():
        newest = workdir / "checkpoints" / str(max(steps)) if steps else None
        _restore_records(workdir, newest)
        if newest is not None:
            _restore_ledgers(workdir, newest)
    if not steps:
        return None
    state = _load(workdir, max(steps))
    torch.set_rng_state(state["torch_rng"])
    if "device_rng" in state and _has_device():
        torch.get_device_module().set_rng_state(state["device_rng"])
    return state


def oldest_checkpoint(workdir: Path) -> dict[str, Any] | None:
    """The oldest checkpoint still kept: where a collapsed run rolls back to."""
    steps = _steps(workdir / "checkpoints")
    return _load(workdir, min(steps)) if steps else None


def _load(workdir: Path, step: int) -> dict[str, Any]:
    path = workdir / "checkpoints" / str(step) / STATE_FILE
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return state


def _save_records(workdir: Path, folder: Path) -> None:
    for path in itertools.chain(workdir.glob(_RECORDS), workdir.glob(_LEDGERS)):
        with path.open("rb") as source, (folder / path.name).open("wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())


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


def _random_states() -> dict[str, Tensor]:
    """Torch's global ones: the CPU's, and that of the device if there is one (for dropout)."""
    states = {"torch_rng": torch.get_rng_state()}
    if _has_device():
        states["device_rng"] = torch.get_device_module().get_rng_state()
    return states


def _has_device() -> bool:
    return torch.get_default_device().type != "cpu"


def checkpoint_or_stop(
    workdir: Path, step: int, every: int, state: Callable[[], dict[str, Any]]
) -> None:
    """Checkpoint when due; on a request to stop, checkpoint at once and leave.

    All ranks ask for the `state`, which they may hold a part of each; the first writes it.
    """
    stopping = ranks.any_of(signals.stop_requested())
    if stopping or step % every == 0:
        found = state()
        if ranks.is_first():
            save_checkpoint(workdir, step, found)
    if stopping:
        ranks.any_of(stopping)  # until the first has saved
        signals.stop()


def _steps(root: Path) -> list[int]:
    if not root.exists():
        return []
    return [int(child.name) for child in root.iterdir() if child.name.isdigit()]
