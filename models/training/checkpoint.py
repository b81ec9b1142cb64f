"""Checkpoints: everything that determines the future of a run, written whole or not at all.

With it goes what the run has recorded so far, its `*.jsonl` files, so that a run that goes on
elsewhere, or after more steps than were saved, has every row once. Its ledgers of what was spent,
`*.ledger`, go along too, but going back to a step unspends nothing: they keep all their lines.

Of a tensor that is partitioned over ranks every rank writes its own part (`Part`) into a file of
its own, safetensors, so that no host memory holds a second copy of the state. The first rank writes
all else once these files are whole. A reader takes any numbers of such a tensor (`PartedTensor`),
so that a run goes on with any number of ranks.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trimtab.models.nets.device import current_device
from trimtab.models.training import distributed, signals

STATE_FILE = "state.pt"
PART_FILE = "part-{}.safetensors"
_PARTED = "shape of a tensor in parts"
_RECORDS = "*.jsonl"
_LEDGERS = "*.ledger"
_KEPT = 2

_writer = ThreadPoolExecutor(1, "checkpoint")
_saving: list[Future[None]] = []  # the checkpoint that the thread is writing, if any


@dataclass(frozen=True)
class Part:
    """What a rank holds of a tensor of `shape`: its numbers (n,) from the place `start` on.

    In a state, of which every rank has the same structure: all of them save it.
    """

    values: Tensor
    start: int
    shape: tuple[int, ...]


class PartedTensor:
    """A tensor of a checkpoint that ranks wrote in parts; nothing of it is read before it is asked.

    pieces: the place of the first number, and a reader of slices, of each part.
    """

    def __init__(self, shape: Sequence[int], pieces: Sequence[tuple[int, Any]]) -> None:
        self.shape = torch.Size(shape)
        self.pieces = pieces

    def read(self, places: range) -> Tensor:
        """(n,) the numbers at these places of the flat tensor, float32, on the CPU.

        Raises ValueError where parts do not hold them all.
        """
        values = torch.empty(len(places), device="cpu")
        num_read = 0
        for start, piece in self.pieces:
            first = max(places.start, start)
            count = min(places.stop, start + piece.get_shape()[0]) - first
            if count > 0:
                target = values[first - places.start :][:count]
                target.copy_(piece[first - start : first - start + count])
                num_read += count
        if num_read != len(places):
            raise ValueError(
                f"a checkpoint's parts hold {num_read} of the {len(places)} numbers asked for of a "
                f"tensor {tuple(self.shape)}: it is damaged"
            )
        return values


def whole(state: Any) -> Any:
    """A state with its tensors in parts read whole."""

    def read(leaf: Any) -> Any:
        if not isinstance(leaf, PartedTensor):
            return leaf
        return leaf.read(range(leaf.shape.numel())).view(leaf.shape)

    return _mapped(state, read)


def save_checkpoint(workdir: Path, step: int, state: dict[str, Any]) -> None:
    """Write `checkpoints/<step>`: into a hidden folder first, synced, then renamed.

    With a `Part` in the state all ranks call this.
    """
    partial = _begun(workdir, step, state)
    _write(partial, _complete(step, state), distributed.rank(), distributed.world_size())


def begin_saving(workdir: Path, step: int, state: dict[str, Any]) -> None:
    """As `save_checkpoint`, of everything as it is now, while training goes on.

    Takes a copy of the state in the host's memory, of this rank's parts alone. Whatever comes in
    the way of it is raised by the next call, or by `finish_saving`.
    """
    partial, copy = _begun(workdir, step, state), _mapped(_complete(step, state), _copied)
    rank, count = distributed.rank(), distributed.world_size()
    _saving.append(_writer.submit(_write, partial, copy, rank, count))


def finish_saving() -> None:
    """Wait for the checkpoint that is being written, if any; raises what came in its way."""
    while _saving:
        _saving.pop().result()


def _begun(workdir: Path, step: int, state: dict[str, Any]) -> Path:
    """The hidden folder of a checkpoint, with what the run has recorded so far.

    The one before it is then whole.
    """
    finish_saving()
    partial = workdir / "checkpoints" / f".{step}.partial"
    if distributed.is_rank_zero():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in itertools.chain(workdir.glob(_RECORDS), workdir.glob(_LEDGERS)):
            shutil.copyfile(path, partial / path.name)
    if has_parts(state):
        distributed.barrier()  # until the first has made the folder
    return partial


def has_parts(state: Any) -> bool:
    """Whether every rank saves a part of the state."""
    return any(isinstance(leaf, Part) for _, leaf in _leaves(state))


def _complete(step: int, state: dict[str, Any]) -> dict[str, Any]:
    """With the CPU's generator; a device draws dropout masks alone, which each step seeds anew."""
    return {**state, "step": step, "torch_rng": torch.get_rng_state()}


def _write(partial: Path, state: dict[str, Any], rank: int, num_ranks: int) -> None:
    """Write this rank's part; the first then makes a checkpoint of the folder, the oldest goes."""
    parts = {name: leaf for name, leaf in _leaves(state) if isinstance(leaf, Part)}
    if parts:
        _write_parts(partial / PART_FILE.format(rank), parts)
    if rank > 0:
        return
    while parts and not all((partial / PART_FILE.format(r)).exists() for r in range(num_ranks)):
        time.sleep(0.01)  # a rank that fails instead ends this one
    with (partial / STATE_FILE).open("wb") as stream:  # torch's own file hides why it fails
        torch.save(_mapped(state, _shape_alone), stream)
    for path in partial.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    root, step = partial.parent, state["step"]
    if (root / str(step)).exists():
        _remove(root / str(step))
    partial.rename(root / str(step))
    for old in sorted(_steps(root))[:-_KEPT]:
        _remove(root / str(old))


def _remove(folder: Path) -> None:
    """Remove a checkpoint, hidden first: one that has a number for a name is whole."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)  # what is left, the next start removes


def _write_parts(path: Path, parts: dict[str, Part]) -> None:
    """One file, which has its name once it is whole; its metadata has each part's start."""
    partial = path.with_suffix(".partial")
    held = {name: part.values.detach() for name, part in parts.items() if part.values.numel()}
    starts = {name: str(parts[name].start) for name in held}
    save_file(held, partial, starts)
    partial.rename(path)


def _shape_alone(leaf: Any) -> Any:
    return {_PARTED: list(leaf.shape)} if isinstance(leaf, Part) else leaf


def _copied(leaf: Any) -> Any:
    """A copy on the CPU of a tensor, or of a part's; the same of all else."""
    if isinstance(leaf, Part):
        return replace(leaf, values=leaf.values.detach().to("cpu", copy=True))
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What a state holds that is no container, each with a name of its own."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{name}/{place}")
    else:
        yield name, value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A state whose leaves are changed."""
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(part, change) for part in value)
    return change(value)


def newest_checkpoint(workdir: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state, or `None`; restores the state of torch's global generator.

    Tensors are read as they are used; one that was written in parts is a `PartedTensor`. The run's
    records become those of the checkpoint, none without one. From now on a request to stop waits
    for `checkpoint_or_stop`.
    """
    signals.defer()
    finish_saving()
    steps = _steps(workdir / "checkpoints")
    if distributed.is_rank_zero():
        for left in (workdir / "checkpoints").glob(".*"):  # by a trainer that was killed
            shutil.rmtree(left, ignore_errors=True)
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
    folder = workdir / "checkpoints" / str(step)
    state: dict[str, Any] = torch.load(
        folder / STATE_FILE, weights_only=True, map_location="cpu", mmap=True
    )
    pieces: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for path in folder.glob(PART_FILE.format("*")):
        part = safe_open(path, "pt")
        for name, start in (part.metadata() or {}).items():
            pieces[name].append((int(start), part.get_slice(name)))

    def with_parts(value: Any, name: str = "") -> Any:
        if not isinstance(value, dict):
            return value
        if _PARTED in value:
            return PartedTensor(value[_PARTED], pieces[name])
        return {key: with_parts(part, f"{name}/{key}") for key, part in value.items()}

    restored: dict[str, Any] = with_parts(state)
    return restored


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
    """A ledger has one writer and only grows: of two copies one begins with the other."""
    for saved in folder.glob(_LEDGERS):
        ledger = workdir / saved.name
        if ledger.exists() and ledger.read_bytes().startswith(saved.read_bytes()):
            continue  # it may be open
        partial = workdir / f"{saved.name}.partial"
        with saved.open("rb") as source, partial.open("wb") as stream:
            shutil.copyfileobj(source, stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(ledger)


def _has_device() -> bool:
    return current_device().type != "cpu"


def checkpoint_or_stop(
    workdir: Path, step: int, every: int, state: Callable[[], dict[str, Any]]
) -> None:
    """Checkpoint when due; on a request to stop, checkpoint at once and leave.

    All ranks ask for the `state`; the first writes it, or each its part. A device goes on
    meanwhile. A CPU would share its cores and memory with the writing: it waits.
    """
    stopping = distributed.any_rank(signals.stop_requested())
    if stopping or step % every == 0:
        current = state()
        if distributed.is_rank_zero() or has_parts(current):
            save = begin_saving if _has_device() and not stopping else save_checkpoint
            save(workdir, step, current)
    if stopping:
        distributed.any_rank(stopping)  # until the first has saved
        signals.stop()


def _steps(root: Path) -> list[int]:
    if not root.exists():
        return []
    return [int(child.name) for child in root.iterdir() if child.name.isdigit()]
