"""Which methods find wrong preference labels, and what is best done with them.

    python -m tests.bench.cleaning --ukp ukp-arguments.jsonl.gz --helpful hh-helpful.jsonl.gz \\
        --harmless hh-harmless.jsonl.gz --world .bench/world \\
        --cells docs/explanation/cleaning.jsonl
    python -m tests.bench.cleaning --cells docs/explanation/cleaning.jsonl --page docs/explanation

The first measures every cell that is not in the file yet: data, kind of noise, share of wrong
labels, seed. It needs `trimtab[study]`, and uses one core; the synthetic world's pairs are made in
its folder, in a quarter of an hour, unless they are there. The second writes the tables below their
headings in cleaning.md, and the figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from threadpoolctl import threadpool_limits

from tests.bench.cleaning_data import Case, planted_case, read_pool, read_world, voted_case
from tests.bench.cleaning_methods import Found, find, train_on
from tests.bench.cleaning_page import write_page
from trimtab.models.data.readers import Source

# Kinds of noise, and shares of wrong labels. At the first ones reward models are trained, too.
TRAINED = (
    ("uniform", 0.25),
    ("closeness", 0.25),
    ("natural", 0.0),
    ("uniform", 0.0),
    ("uniform", 0.4),
)
OTHERS = (
    ("uniform", 0.05),
    ("uniform", 0.1),
    ("category", 0.25),
    ("length", 0.25),
    ("uniform", 0.2),
    ("uniform", 0.3),
    ("closeness", 0.1),
    ("closeness", 0.4),
)


@dataclass(frozen=True)
class Cell:
    """What is measured at once. natural: labels of one voter each, of which no share is planted."""

    data: str
    kind: str
    share: float
    seed: int


def cells(seeds: list[int], data: list[str]) -> list[Cell]:
    """All that belong to the study."""
    return [
        Cell(name, kind, share, seed)
        for kind, share in (*TRAINED, *OTHERS)
        for seed in seeds
        for name in data
        if kind != "natural" or name == "ukp"
    ]


def main() -> None:
    """Measure what is missing, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cleaning")
    for name in ("ukp", "helpful", "harmless"):
        parser.add_argument(f"--{name}", type=Path, help="a file of preference pairs")
    parser.add_argument("--world", type=Path, help="a folder for the synthetic world's pairs")
    parser.add_argument("--cells", type=Path, required=True, help="the file of what was measured")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--vectors", type=Path, default=Path(".bench/cleaning"))
    parser.add_argument("--page", type=Path, help="the folder of cleaning.md")
    options = parser.parse_args()
    if options.page:
        write_page(read_cells(options.cells), options.page)
        return
    torch.set_num_threads(1)
    makers = makers_of(options)
    done = {
        tuple(row[key] for key in ("data", "kind", "share", "seed"))
        for row in read_cells(options.cells)
    }
    with threadpool_limits(1):
        for cell in cells(options.seeds, list(makers)):
            if (cell.data, cell.kind, cell.share, cell.seed) in done:
                continue
            start = time.monotonic()
            case = makers[cell.data](cell.seed, cell.kind, cell.share)
            row = {**asdict(cell), **measured(cell, case)}
            with options.cells.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{cell}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def makers_of(options: argparse.Namespace) -> dict[str, Callable[[int, str, float], Case]]:
    """What makes the cases of each data set that is given, of seed, kind of noise and share."""
    makers: dict[str, Callable[[int, str, float], Case]] = {}
    if options.ukp:
        pool = read_pool([Source(str(options.ukp))], options.vectors, "ukp")
        makers["ukp"] = partial(voted_case, pool)
    if options.helpful and options.harmless:
        sources = [
            Source(str(getattr(options, name)), category=name) for name in ("helpful", "harmless")
        ]
        makers["hh"] = partial(planted_case, read_pool(sources, options.vectors, "hh"))
    if options.world:
        makers["world"] = partial(planted_case, read_world(options.world, options.vectors))
    return makers


def read_cells(path: Path) -> list[dict[str, Any]]:
    """What was measured so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(cell: Cell, case: Case) -> dict[str, Any]:
    """Numbers of a cell: of pairs, of each method, and of each treatment."""
    methods = find(case, cell.seed)
    row: dict[str, Any] = {
        "num_pairs": len(case.wrong),
        "num_test": len(case.test.rows),
        "num_wrong": int(case.wrong.sum()),
        "finding": {name: scores(method, case.wrong) for name, method in methods.items()},
    }
    if (cell.kind, cell.share) in TRAINED:
        row["training"] = {name: round(value, 4) for name, value in train_on(case, methods).items()}
    return row


def scores(method: Found, wrong: Any) -> dict[str, float]:
    """How well a method finds the wrong labels; share_flagged and seconds where there are none."""
    result = {"share_flagged": method.flagged.mean(), "seconds": method.seconds}
    if wrong.any():
        result |= {
            "auroc": roc_auc_score(wrong, -method.strength),
            "average_precision": average_precision_score(wrong, -method.strength),
            "recall": method.flagged[wrong].mean(),
        }
        if method.flagged.any():
            result["precision"] = wrong[method.flagged].mean()
    return {name: round(float(value), 4) for name, value in result.items()}


if __name__ == "__main__":
    main()
