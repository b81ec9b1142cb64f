"""Metrics and progress as JSON lines: all a trainer tells the outside world while it runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from trimtab.models.training import distributed

T = TypeVar("T")


class NotFiniteError(ValueError):
    """A metric became NaN or infinite: training stops rather than learn from it."""


class Progress:
    """Appends to `metrics.jsonl` in the work directory, from the first rank.

    A checkpoint brings it back as it was, so that no step is ever reported twice.
    """

    def __init__(
        self, workdir: Path, *, done: int = 0, of: int | None = None, part: str = ""
    ) -> None:
        """done, of: for one part of a stage, what was done before it and what the stage has.

        part: words for what a stage does after its training, counted by itself.
        """
        self.path = workdir / "metrics.jsonl"
        self.before, self.total = done, of
        self.part = {"part": part} if part else {}

    def log(self, step: int, metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
        """Record metrics of one step and return them.

        All are read from the device at once. Raises `NotFiniteError` naming the first bad one.
        """
        values = _numbers(metrics)
        append_rows(self.path, [{"step": step, "time": time.time(), "metrics": values}])
        for name, value in values.items():
            if not math.isfinite(value):
                raise NotFiniteError(
                    f"{name} became {value} at step {step}; lower the learning rate or check the "
                    f"data of this step (see {self.path})"
                )
        return values

    def follow(self, items: Iterable[T], total: int) -> Iterator[T]:
        """The items as they come, `total` of them; records progress at each fortieth.

        What is followed next comes on top of them."""
        for done, item in enumerate(items, start=1):
            yield item
            if done % max(1, total // 40) == 0 or done == total:
                self.advance(done, total)
        self.before += total

    def finish(self, total: int) -> None:
        """Record that a part is done; what is recorded next comes on top of it."""
        self.advance(total, total)
        self.before += total

    def advance(self, done: int, total: int) -> None:
        """Record progress for the progress bar."""
        done, total = self.before + done, self.total or total
        row = {"step": done, "progress": [done, total], **self.part, "time": time.time()}
        append_rows(self.path, [row])


def append_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Append rows to a file of JSON lines, from the first rank."""
    if distributed.is_rank_zero():
        with path.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _numbers(metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
    """The metrics as numbers; the host waits once for those on the device."""
    move_to_device = {
        name: value.double()
        for name, value in metrics.items()
        if isinstance(value, Tensor) and value.device.type != "cpu"
    }
    read = torch.stack(list(move_to_device.values())).tolist() if move_to_device else []
    numbers = dict(zip(move_to_device, read, strict=True))
    return {name: float(numbers.get(name, value)) for name, value in metrics.items()}


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The metric rows of a `metrics.jsonl`, each with its `step`."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{"step": row["step"], **row["metrics"]} for row in rows if "metrics" in row]


def tail_means(path: Path, share: float = 0.1) -> dict[str, float]:
    """Means of every metric over the last `share` of the steps (at least one)."""
    rows = read_metrics(path)
    tail = rows[-max(1, round(share * len(rows))) :]
    return {name: sum(row[name] for row in tail) / len(tail) for name in tail[-1] if name != "step"}
