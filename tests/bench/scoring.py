"""Scoring pairs: packed rows on two ranks, and transformers' padded batches on two threads.

    python -m tests.bench.scoring --pairs Anthropic/hh-rlhf/harmless-base

The small Llama of the other benchmarks with one head, the same tokens. Padded are batches of 32
texts, prompt and answer each, in the pairs' order and in order of length. Each a process of its
own, in turns. Prints a table: pairs per second (median, least, most).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.bench.material import MAX_TOKENS, make_material
from trimtab.models.nets.loading import load_tokenizer, new_scorer
from trimtab.models.nets.packing import Candidates
from trimtab.models.training import distributed
from trimtab.models.training.data import read_pairs
from trimtab.models.training.scoring import score_rows

ARMS = {
    "Trimtab, two ranks": "packed",
    "padded, by length": "sorted",
    "padded, in the pairs' order": "padded",
}
BATCH = 32


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scoring")
    parser.add_argument("--pairs", required=True, help="HH's harmless pairs: a file or a hub id")
    parser.add_argument("--limit", type=int, default=64, help="score the first so many")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--arm", choices=ARMS.values(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm is not None:
        print(pairs_per_second(options.arm, Path(options.pairs)))
        return
    rates: dict[str, list[float]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material"
        make_material(options.pairs, material, options.limit)
        for _ in range(options.runs):
            for name, arm in ARMS.items():
                rates[name].append(_in_a_process(arm, material))
    print("| | pairs/s | least to most | Trimtab is faster by |")
    print("|---|---|---|---|")
    ours = next(iter(rates.values()))
    for name, values in rates.items():
        ratio = median(one / other for one, other in zip(ours, values, strict=True))
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"| {name} | {median(values):.1f} | {spread} | {ratio:.2f} |")


def _in_a_process(arm: str, material: Path) -> float:
    command = [sys.executable, "-m", "tests.bench.scoring", "--arm", arm, "--pairs", str(material)]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def pairs_per_second(arm: str, material: Path) -> float:
    """All pairs once; a few before them warm up, and are compared with padded ones."""
    if arm == "packed":
        distributed.start(2)
    torch.set_num_threads(1 if arm == "packed" else 2)
    model = new_scorer(material / "policy" / "model", 0).eval()
    tokenizer = load_tokenizer(material / "policy" / "model")
    rows = read_pairs(material / "preferences" / "train.jsonl", tokenizer, MAX_TOKENS).rows
    score = score_rows if arm == "packed" else _padded
    if arm == "sorted":
        rows = sorted(rows, key=lambda row: row.num_tokens)
    score(model, rows[:4])
    started = time.perf_counter()
    scores = score(model, rows)
    seconds = time.perf_counter() - started
    distributed.leave()
    torch.testing.assert_close(scores[:4], _padded(model, rows[:4]), rtol=1e-3, atol=1e-3)
    return len(rows) / seconds


@torch.no_grad()
def _padded(model: PreTrainedModel, rows: list[Candidates]) -> Tensor:
    """Scores (N, 2), a text for each answer, padded on the right."""
    texts = [[*row.prompt, *answer] for row in rows for answer in row.responses]
    scores = []
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        width = max(map(len, part))
        ids = torch.tensor([text + [0] * (width - len(text)) for text in part])
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in part])
        scores.append(model(input_ids=ids, attention_mask=mask).logits[:, 0])
    return torch.cat(scores).view(-1, 2)


if __name__ == "__main__":
    main()
