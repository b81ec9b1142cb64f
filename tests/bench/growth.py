"""How cost grows: with pairs, model, members of an ensemble, response length and ranks.

    python -m tests.bench.growth --plot docs/explanation/growth.svg

Rows of random tokens on Llamas from random weights, one core except where ranks are counted; each
measurement is a process of its own, the median of `--runs`. Prints a table of seconds with the
exponent of growth (slope of a line through logarithms), and draws it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from tests.bench.material import small_llama
from tests.bench.rollouts import SIZES, VOCABULARY, Words
from trimtab.models.config.training import TrainConfig
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.trunk import tie_trunk
from trimtab.models.training import distributed
from trimtab.models.training.data import Pairs
from trimtab.models.training.learner import TrainingRows
from trimtab.models.training.loop import fit
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss
from trimtab.models.training.sampling import sample
from trimtab.models.training.scoring import with_trunk

PAIRS, BATCH, PROMPT, RESPONSE = 64, 8, 96, 48
# What grows: its values, and what they are counted in.
SERIES: dict[str, tuple[list[int], str]] = {
    "pairs": ([32, 64, 128, 256], "reward model: pairs"),
    "parameters": ([0, 1, 2, 3], "reward model: parameters"),
    "members": ([1, 2, 5, 10], "ensemble: members, upper 1 of 4 layers trained"),
    "response": ([16, 32, 64, 128, 256], "sampling: tokens a response"),
    "ranks": ([1, 2], "reward model: ranks, one core each"),
}


def main() -> None:
    """Measure every series, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="where to draw it")
    parser.add_argument("--series", choices=SERIES, help=argparse.SUPPRESS)
    parser.add_argument("--value", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.series is not None:
        print(seconds(options.series, options.value))
        return
    print("| | measured (seconds) | exponent |")
    print("|---|---|---|")
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for name, (values, title) in SERIES.items():
        counts = [float(count_of(name, value)) for value in values]
        took = [median(_in_a_process(name, value) for _ in range(options.runs)) for value in values]
        curves[title] = counts, took
        pairs = ", ".join(f"{count:,.0f}: {t:.2f}" for count, t in zip(counts, took, strict=True))
        print(f"| {title} | {pairs} | {exponent(counts, took):.2f} |", flush=True)
    if options.plot:
        draw(curves, options.plot)


def count_of(series: str, value: int) -> int:
    """What a value stands for: of models, their parameters."""
    if series != "parameters":
        return value
    width, layers = list(SIZES.values())[value]
    return small_llama(Words(), width, layers, max_tokens=512).num_parameters()


def seconds(series: str, value: int) -> float:
    """Of one epoch, or one batch of responses; what comes first only warms up."""
    torch.set_num_threads(1)
    if series == "response":
        return _sample(value)
    if series == "members":
        return _ensemble(value)
    if series == "ranks":
        distributed.start(value)
    size = list(SIZES)[value] if series == "parameters" else "2 M"
    return _train(size, value if series == "pairs" else PAIRS)


def _train(size: str, count: int) -> float:
    return _epoch(_scorer(size), _rows(count), TrainConfig(batch_size=BATCH))


def _ensemble(num_members: int) -> float:
    """What the frozen layers make of all rows, once, and each member's upper layer behind it."""
    first, rows = _scorer("2 M"), _rows(PAIRS)
    depth = first.config.num_hidden_layers - 1
    with_trunk(first, rows[:BATCH], depth)
    started = time.perf_counter()
    rows = with_trunk(first, rows, depth)
    took = time.perf_counter() - started
    for _ in range(num_members):
        member = _scorer("2 M")
        tie_trunk(first, member, depth)
        took += _epoch(member, rows, TrainConfig(batch_size=BATCH, trainable_layers=1))
    return took


def _scorer(size: str) -> PreTrainedModel:
    width, layers = SIZES[size]
    model = small_llama(Words(), width, layers, max_tokens=512)
    model.config.num_labels = 1
    scorer = AutoModelForSequenceClassification.from_config(model.config)
    fuse_layers(scorer)
    return scorer


def _rows(count: int) -> list[Candidates]:
    """Pairs of random tokens."""
    draw = torch.Generator().manual_seed(0)
    lengths = (PROMPT, RESPONSE, RESPONSE)
    texts = [
        [torch.randint(2, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]
        for _ in range(count)
    ]
    return [Candidates(prompt, (chosen, rejected)) for prompt, chosen, rejected in texts]


def _epoch(scorer: PreTrainedModel, rows: list[Candidates], config: TrainConfig) -> float:
    """A step's mean but for the first, times the number of steps."""
    count = len(rows)
    records = [{"id": str(number), "prompt": str(number)} for number in range(count)]
    ones = torch.ones(count)
    pairs = Pairs(records, rows, ones, torch.zeros(count), ones)
    with tempfile.TemporaryDirectory() as folder:
        loss = reward_loss(scorer)
        data = TrainingRows(rows, pairs.weight, arguments=pair_batches_of(pairs).compared)
        fit(scorer, data, loss, config, seed=0, workdir=Path(folder))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    times = [row["time"] for row in map(json.loads, lines) if "metrics" in row]
    return (times[-1] - times[0]) / (len(times) - 1) * len(times)


def _sample(length: int) -> float:
    model = small_llama(Words(), *SIZES["2 M"], max_tokens=512).eval()
    prompts = torch.randint(2, VOCABULARY, (32, 48)).tolist()
    for tokens in (2, length):
        sampling = Sampling(temperature=0.8, max_new_tokens=tokens)
        started = time.perf_counter()
        sample(model, Words(), prompts, sampling, torch.Generator().manual_seed(0))
    return time.perf_counter() - started


def draw(curves: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    """A panel a series, both axes logarithmic, with the line of its exponent."""
    figure, panels = plt.subplots(1, len(curves), figsize=(3 * len(curves), 3), layout="tight")
    for axes, (title, (counts, took)) in zip(panels, curves.items(), strict=True):
        slope, offset = np.polyfit(np.log(counts), np.log(took), 1)
        axes.loglog(counts, took, "o", color="#1f5f8b")
        axes.loglog(counts, np.exp(offset) * np.array(counts) ** slope, "--", color="#888888")
        axes.set(xlabel=title, ylabel="seconds", title=f"exponent {slope:.2f}")
        axes.set_xticks(counts, [_short(count) for count in counts])
        axes.set_yticks(took, [f"{seconds:.2g}" for seconds in took])
        axes.minorticks_off()
    figure.savefig(path)


def _short(count: float) -> str:
    return f"{count / 1e6:.0f} M" if count >= 1e6 else f"{count:,.0f}"


def exponent(counts: list[float], took: list[float]) -> float:
    """Of cost ~ count ** exponent."""
    return float(np.polyfit(np.log(counts), np.log(took), 1)[0])


def _in_a_process(series: str, value: int) -> float:
    command = [sys.executable, "-m", "tests.bench.growth", "--series", series]
    command += ["--value", str(value)]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()
