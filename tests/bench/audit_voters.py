"""How well each voter of the label audit finds wrong labels among people's pairs, and in what time.

    python -m tests.bench.audit_voters ukp-arguments.jsonl.gz --budget 20m

Draws pairs on which all people's votes agree, turns the labels of a share of them round, and audits
them in a new home folder. Prints a table: AUROC of minus a voter's difference for finding the
labels turned round, with its 95 % interval, of each voter and of all calibrated together, up to
each; and the seconds of the stages that only that voter needs. The self-test is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from trimtab.flows.cli.cli import main as trimtab
from trimtab.infra.reports import read_run
from trimtab.models.config.reward import EmbeddingModelConfig
from trimtab.models.functional.strength import calibrated_strength
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.statistics.estimates import auroc_estimate


def main() -> None:
    """Draw, audit, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_voters")
    parser.add_argument("pairs", type=Path, help="pairs with people's votes, as JSON lines, gzip")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.25, help="of the labels turned round")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        measure(options, Path(scratch))


def measure(options: argparse.Namespace, scratch: Path) -> None:
    """Audit a drawn file in `scratch`, and print what each voter finds."""
    flipped = _draw(options, scratch / "pairs.jsonl")
    os.environ["TRIMTAB_HOME"] = str(scratch / "home")
    command = ["audit", str(scratch / "pairs.jsonl"), "--name", "audit", "--budget"]
    if status := trimtab([*command, options.budget, "ensemble.self_test_share=0"]):
        raise SystemExit(status)
    folder = scratch / "home" / "reports" / "audit"
    rows = pq.read_table(folder / "audited.parquet").to_pylist()
    is_wrong = torch.tensor([row["id"] in flipped for row in rows])
    columns = zip(*(row["differences"] for row in rows), strict=True)
    votes = torch.tensor([[math.nan if d is None else d for d in gaps] for gaps in columns])
    print("| voter | AUROC | with those above |\n|---|---|---|")
    so_far: list[torch.Tensor] = []
    for name, count in _voters(folder):
        gaps, votes = votes[:count].nanmean(0), votes[count:]  # of several parts one votes
        so_far.append(gaps)
        together = torch.stack(so_far)
        cells = [_shown(votes_of, is_wrong, options.seed) for votes_of in (gaps[None], together)]
        print(f"| {name} | {' | '.join(cells)} |")


def _shown(votes: torch.Tensor, is_wrong: torch.Tensor, seed: int) -> str:
    everywhere = torch.ones(len(is_wrong), dtype=torch.bool)
    strength, _, _ = calibrated_strength(votes, everywhere, ~votes.isnan())
    auroc = auroc_estimate(-strength, is_wrong, seed)
    assert auroc is not None
    return f"{auroc.value:.3f} [{auroc.low:.3f}, {auroc.high:.3f}]"


def _voters(folder: Path) -> list[tuple[str, int]]:
    """The voters in order: the name of each, and how many members it is."""
    settings: dict[str, Any] = read_run(folder)["settings"]
    kinds = [EmbeddingModelConfig.model_validate(kind) for kind in settings["embedding_models"]]
    voters = [(STRENGTH_NAMES[kind.name], 1) for kind in kinds]
    size = settings.get("ensemble.cross_fitted.size")
    return [*voters, (f"{size} reward models", size)] if size else voters


def _draw(options: argparse.Namespace, path: Path) -> set[str]:
    """Write the pairs; returns the ids of those turned round."""
    with gzip.open(options.pairs, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    clear = [row for row in rows if not (row["votes_rejected"] or row["votes_equal"])]
    rng = random.Random(options.seed)
    drawn = rng.sample(clear, options.count)
    flipped = {row["id"] for row in rng.sample(drawn, round(options.share * len(drawn)))}
    with path.open("w", encoding="utf-8") as stream:
        for row in drawn:
            answers = (row["chosen"], row["rejected"])
            chosen, rejected = answers[::-1] if row["id"] in flipped else answers
            fields = {name: row[name] for name in ("id", "prompt", "category")}
            stream.write(json.dumps({**fields, "chosen": chosen, "rejected": rejected}) + "\n")
    return flipped


if __name__ == "__main__":
    main()
