"""Ten reward models for less than ten: what frozen lower layers save, and what agreement they cost.

    python -m tests.bench.ensemble

The label audit of the recipe `default` with ten members on the same pairs: all layers trained, the
same from other seeds, and fewer and fewer upper layers on the stored output of the rest. Prints a
table, mean and standard deviation over worlds: seconds of all members and of the stored layers over
those of one whole member; rank correlation (Spearman) of the pairs' mean strengths with the whole
ensemble's; the AUROC with which strength finds planted flips.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import spearmanr

MEMBERS = 10
ARMS = {
    "all layers": [],
    "all layers, other seeds": ["ensemble.member.seed=500"],
    "upper 3 of 4": ["ensemble.member.train.trainable_layers=3"],
    "upper 2 of 4": ["ensemble.member.train.trainable_layers=2"],
    "upper 1 of 4": ["ensemble.member.train.trainable_layers=1"],
}


def main() -> None:
    """Run every arm in every world, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ensemble")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4])
    options = parser.parse_args()
    cells: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            cards = {name: audit(Path(folder), seed, changes) for name, changes in ARMS.items()}
            one = member_seconds(cards["all layers"]) / MEMBERS
            reference = strengths(Path(folder), cards["all layers"])
            for name, card in cards.items():
                mine = strengths(Path(folder), card)
                agreement = spearmanr(
                    [mine[key] for key in reference], list(reference.values())
                ).statistic
                auroc = card["label_noise"]["in_sample"]["auroc_flipped"]["value"]
                cells[name].append((member_seconds(card) / one, float(agreement), auroc))
                print(f"{seed} {name}: {cells[name][-1]}", file=sys.stderr, flush=True)
    print("| members train | cost, whole members | rank correlation | AUROC of flips |")
    print("|---|---|---|---|")
    for name, rows in cells.items():
        columns = [_spread(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | " + " | ".join(columns) + " |")


def audit(home: Path, seed: int, changes: list[str]) -> dict[str, Any]:
    """The scorecard of a label audit with ten members, in-sample."""
    command = [
        sys.executable,
        "-m",
        "trimtab",
        "run",
        "default",
        "--flow",
        "label-audit",
    ]
    command += [f"seed={seed}", f"ensemble.size={MEMBERS}", 'ensemble.votes=["in_sample"]']
    command += ["sft.model.num_layers=4", "sft.model.initialisation=transformers"]
    command.append("sft.train.num_epochs=6")
    environment = {**os.environ, "TRIMTAB_HOME": str(home)}
    name = "-".join(["ensemble", f"seed{seed}", *(change.partition(".")[2] for change in changes)])
    subprocess.run(
        [*command, *changes, "--name", name], check=True, env=environment, stdout=sys.stderr
    )
    card = home / "reports" / name / "scorecard.json"
    content: dict[str, Any] = json.loads(card.read_text())
    return content


def member_seconds(card: dict[str, Any]) -> float:
    """What all members took, and the layers stored for them."""
    return sum(
        float(stage["seconds"])
        for stage in card["lineage"]
        if stage["role"].startswith("member_") or stage["role"] == "trunk_cache"
    )


def strengths(home: Path, card: dict[str, Any]) -> dict[str, float]:
    """Mean strength by pair, of the splits that members voted on."""
    (stage,) = (stage for stage in card["lineage"] if stage["role"] == "strength")
    (path,) = home.glob(f"store/artifacts/strength/{stage['key']}/*/strength.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row["strength_mean"] for row in rows}


def _spread(values: tuple[float, ...]) -> str:
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
