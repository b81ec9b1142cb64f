"""How long a checkpoint takes: parameters and Adam's moments, written and synced, or only copied.

    python -m tests.bench.checkpoints --folder .

Prints a table: milliseconds (medians of so many) by the number of trained parameters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trimtab.models.training.checkpoint import begin_saving, finish_saving, save_checkpoint


def main() -> None:
    """Measure each size, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.checkpoints")
    parser.add_argument("--folder", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument(
        "--parameters", type=int, nargs="+", default=[870_000, 8_100_000, 135_000_000]
    )
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| parameters | training waits, ms | training goes on after, ms |")
    print("|---|---|---|")
    for count in options.parameters:
        state = {name: torch.randn(count) for name in ("weights", "mean", "square")}
        with TemporaryDirectory(dir=options.folder) as folder:
            cells = [
                _milliseconds(save, Path(folder), state, options.runs)
                for save in (save_checkpoint, begin_saving)
            ]
        print(f"| {count:,} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


def _milliseconds(
    save: Callable[..., None], folder: Path, state: dict[str, Any], num_runs: int
) -> float:
    times = []
    for step in range(num_runs):
        started = time.perf_counter()
        save(folder, step, state)
        times.append(1000 * (time.perf_counter() - started))
        finish_saving()
    return median(times)


if __name__ == "__main__":
    main()
