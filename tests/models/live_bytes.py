"""Runs a job as `trimtab.models.training.entry` does and notes how many bytes live in each phase.

What lives is the memory of all tensors of a rank's device: a storage counts from the first
operation that makes or reads it until it is freed. What a kernel takes and gives back inside one
operation does not count, nor the window in which ranks of one host add up, nor what ZeRO copies to
the host in the end. A job `as_on_gpu` stores and attends narrow where products are, as a GPU does.
The `limits` in the work folder's told.json take the place of those in `trimtab.models.nets.counts`.
Each rank writes live/<process id>.json into the work folder: the most bytes that lived in each
phase.
"""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trimtab.models.nets import counts
from trimtab.models.training import entry

TOLD_FILE = "told.json"
_LOADERS = ("load_policy", "load_scorer", "load_critic", "new_scorer", "build_policy")


class LiveBytes(TorchDispatchMode):
    """Inside, `peaks` has the most bytes that have lived in each `phase`.

    While it is not `counting`, what is made does not count, then or later. While models are loaded
    no garbage of reference cycles is collected: when Python does so differs from run to run, and
    it counts for as long as it may live.
    """

    def __init__(self) -> None:
        super().__init__()
        gc.disable()
        self.phase, self.live, self.counting = "loading", 0, True
        self.peaks: dict[str, int] = defaultdict(int)
        self._sizes: dict[int, int] = {}  # of storages that live

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        for leaf in tree_iter((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result

    def note(self, tensor: Tensor) -> None:
        """Know the tensor's storage until it is freed."""
        if tensor.device.type != "cpu":  # of shapes alone
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes() if self.counting else 0
            self.live += self._sizes[key]
            weakref.finalize(storage, self._forget, key)
        self.peaks[self.phase] = max(self.peaks[self.phase], self.live)

    def note_all(self) -> None:
        """Know what other threads have made, and what was read from files."""
        for each in gc.get_objects():
            if isinstance(each, Tensor):
                self.note(each)

    def begin(self, phase: str) -> None:
        """From now on it is another phase."""
        if phase == "loading":
            gc.disable()
        elif self.phase == "loading":
            gc.enable()
            gc.collect()
        self.phase = phase
        self.peaks[phase] = max(self.peaks[phase], self.live)

    def count(self, is_counting: bool) -> None:
        """From now on what is made counts, or does not."""
        self.counting = is_counting

    def count_again(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that did not count when they were made."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.live += storage.nbytes() - self._sizes[storage._cdata]
            self._sizes[storage._cdata] = storage.nbytes()

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _patched(
    owner: Any,
    name: str,
    before: Callable[[], None] = lambda: None,
    after: Callable[..., None] = lambda *_: None,
) -> None:
    """Let a function of a module or class be surrounded by others; `after` gets what it gets."""
    plain = getattr(owner, name)

    def surrounded(*args: Any, **kwargs: Any) -> Any:
        before()
        result = plain(*args, **kwargs)
        after(*args)
        return result

    setattr(owner, name, surrounded)


def _mark(tracker: LiveBytes) -> None:
    """Phases begin where these functions are called, and end where others are."""
    from trimtab.models.stages import meta_rm, reward_model, sft
    from trimtab.models.stages.ppo_max import rollout, scorers, trainer, update
    from trimtab.models.training import loop

    owners: tuple[ModuleType, ...] = (trainer, scorers, reward_model, meta_rm, sft)
    for owner in owners:
        for name in _LOADERS:
            if hasattr(owner, name):
                _patched(owner, name, after=lambda *_: tracker.note_all())
    starts: tuple[tuple[Any, str, str], ...] = (
        (meta_rm, "sample_answers", "sampling"),
        (meta_rm, "score_spreads", "scoring"),
        (meta_rm, "fit", "loading"),
        (meta_rm.MetaAscent, "__call__", "ascent"),
        (loop, "_gradient", "training"),
        (meta_rm, "score_splits", "scoring"),
        (reward_model, "score_splits", "scoring"),
        (trainer.PPORun, "_collect", "sampling"),
        (rollout, "_sample_rows", "sampling"),
        (rollout, "_policy_logprobs", "scoring"),
        (update.ActorCritic, "_critic_step", "critic update"),
        (update.ActorCritic, "_policy_step", "policy update"),
        (trainer, "merge_adapters", "saving"),
    )
    for owner, name, phase in starts:
        _patched(owner, name, before=lambda phase=phase: tracker.begin(phase))


def _leave_out(tracker: LiveBytes, uses_zero: bool) -> None:
    """The window of ranks of one host, and what ZeRO copies to the host."""
    from trimtab.models.training import distributed

    if distributed._ranks.windows is not None:
        tracker.count(False)
        tracker.note(distributed._ranks.windows)
        tracker.count(True)
    if uses_zero:
        from trimtab.models.training import zero

        _patched(zero, "_copy", lambda: tracker.count(False), lambda _: tracker.count(True))
        _patched(
            zero,
            "_replace_parameters",
            after=lambda model, _: tracker.count_again(model.parameters()),
        )


def _narrow_as_on_gpu() -> None:
    """Let a CPU attend and decode as a GPU does, and store narrow what is not trained."""
    from trimtab.models.nets import attention, loading, precision, static_steps, trunk
    from trimtab.models.training import sampling

    precision.keeps_frozen_in_bfloat16 = loading.keeps_frozen_in_bfloat16 = (
        precision.has_narrow_products
    )
    for module in (attention, trunk, static_steps):
        module.attention_dtype = lambda _: torch.bfloat16
    sampling.decode = partial(sampling.decode, mode="eager")


def main(job_path: str) -> None:
    """Run the job as `trimtab.models.training.entry` does."""
    job = json.loads(Path(job_path).read_text())
    told = json.loads((Path(job["workdir"]) / TOLD_FILE).read_text())
    for name, value in told["limits"].items():
        setattr(counts, name, value)
    tracker = LiveBytes()

    if told["as_on_gpu"]:
        _narrow_as_on_gpu()

    def begin() -> None:
        trainer = job["config"].get("train") or job["config"]
        _mark(tracker)
        _leave_out(tracker, trainer["zero"] is not None)
        tracker.__enter__()

    _patched(entry, "_make_deterministic", after=lambda *_: begin())
    try:
        entry.main(job_path)
    finally:
        if tracker.peaks:  # else this is the ranks' parent
            folder = Path(job["workdir"]) / "live"
            folder.mkdir(exist_ok=True)
            (folder / f"{os.getpid()}.json").write_text(json.dumps(tracker.peaks))
