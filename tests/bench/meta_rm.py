"""What a step of MetaRM costs beside one of a plain reward model on the same pairs.

    python -m tests.bench.meta_rm --pairs Anthropic/hh-rlhf/harmless-base

Both on one core, on the small Llama of the other benchmarks. The meta batch is of as many pairs as
the batch, so that ascent and descent pass the same kind of rows. Prints a table: pairs per second
(median, least, most) over all steps but the first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

from tests.bench.material import MAX_TOKENS, make_material
from trimtab.models.config.reward import MetaRMConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.nets.loading import load_tokenizer, new_scorer
from trimtab.models.stages.meta_rm import MetaAscent
from trimtab.models.training.data import Pairs, read_pairs
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss

BATCH = 16


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.meta_rm")
    parser.add_argument("--pairs", required=True, help="HH's harmless pairs: a file or a hub id")
    parser.add_argument("--limit", type=int, default=8 * BATCH, help="train on the first so many")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {"plain": [], "MetaRM": []}
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material"
        make_material(options.pairs, material, options.limit)
        tokenizer = load_tokenizer(material / "policy" / "model")
        pairs = read_pairs(material / "preferences" / "train.jsonl", tokenizer, MAX_TOKENS)
        for turn in range(options.runs):
            for name in rates:
                work = Path(folder) / f"{turn}-{name}"
                work.mkdir()
                rates[name].append(pairs_per_second(pairs, material, work, name == "MetaRM"))
                print(f"{turn} {name}: {rates[name][-1]:.2f}", file=sys.stderr, flush=True)
    print("| | pairs/s | least to most | a step takes |")
    print("|---|---|---|---|")
    for name, values in rates.items():
        ratio = median(one / other for one, other in zip(rates["plain"], values, strict=True))
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"| {name} | {median(values):.2f} | {spread} | {ratio:.2f} |")


def pairs_per_second(pairs: Pairs, material: Path, work: Path, is_meta: bool) -> float:
    """One epoch from the same start, with the ascent or without."""
    config = MetaRMConfig(train=TrainConfig(batch_size=BATCH), meta_batch=BATCH, num_responses=2)
    model = new_scorer(material / "policy" / "model", 0)
    ascend = MetaAscent(config, model, pairs.rows) if is_meta else None
    fit(
        model,
        pair_batches_of(pairs).examples,
        reward_loss(model),
        config.train,
        seed=0,
        workdir=work,
        extras=StepExtras(around_gradient=ascend),
    )
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    times = [row["time"] for row in rows if "metrics" in row]
    return BATCH * (len(times) - 1) / (times[-1] - times[0])


if __name__ == "__main__":
    main()
