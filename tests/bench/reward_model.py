"""One epoch of reward-model training on real pairs: this project's stage, and TRL's RewardTrainer.

    python -m tests.bench.reward_model --pairs Anthropic/hh-rlhf/harmless-base --limit 96

The same small Llama, tokens, batch size, optimiser and schedule; each a process of its own, in
turns, each of which is another seed (of the head and of the order). Prints a table: pairs per
second (median, least, most), the share of the machine's rate of float32 matrix products that useful
tokens make, the loss of the last quarter of the steps (mean and spread over turns). `--plot` draws
the losses of all turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev

import matplotlib.pyplot as plt
import numpy as np

from tests.bench.machine import matrix_rate
from tests.bench.material import MAX_TOKENS, make_material, training_work
from trimtab.models.gpu_check.trl_trainers import BEST, SCHEDULE
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.nets.packing import Candidates
from trimtab.models.training.batching import epoch_batches
from trimtab.models.training.data import read_pairs

ROOT = Path(__file__).resolve().parents[2]
BATCH, RATE = 16, 5e-4
SAME = SCHEDULE | {"per_device_train_batch_size": BATCH, "learning_rate": RATE}
FLOAT32 = {"bf16": False}  # without, TRL multiplies in bfloat16


@dataclass(frozen=True)
class Epoch:
    """Pairs per second, each step's loss (nats), the machine's rate."""

    rate: float
    losses: list[float]
    machine: float

    @property
    def loss(self) -> float:
        """Mean of the last quarter of the steps."""
        return mean(self.losses[-len(self.losses) // 4 :])


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reward_model")
    parser.add_argument("--pairs", required=True, help="HH's harmless pairs: a file or a hub id")
    parser.add_argument("--limit", type=int, help="train on the first so many; default: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), help="default: both")
    parser.add_argument("--plot", type=Path, help="where to draw the losses")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material"
        make_material(options.pairs, material, options.limit)
        arms: dict[str, Callable[[Path, int], Epoch]] = {
            "Trimtab, bfloat16": partial(ours, material, "bfloat16"),
            "TRL, its defaults": partial(theirs, material, {}),
            "TRL, its best settings": partial(theirs, material, BEST),
            "Trimtab, float32": partial(ours, material, "float32"),
            "TRL, float32": partial(theirs, material, FLOAT32),
            "TRL, its best settings, float32": partial(theirs, material, BEST | FLOAT32),
        }
        wanted = [name for name in arms if options.precision in (None, precision_of(name))]
        epochs: dict[str, list[Epoch]] = {name: [] for name in wanted}
        for turn in range(options.runs):
            for number, name in enumerate(wanted):
                work = Path(folder) / f"{turn}-{number}"
                work.mkdir()
                epochs[name].append(arms[name](work, turn))
                print(f"{turn} {name}: {epochs[name][-1].rate}", file=sys.stderr, flush=True)
        print(table(epochs, mean(map(training_work, rows_of(material)))))
    if options.plot:
        draw({n: [turn.losses for turn in turns] for n, turns in epochs.items()}, options.plot)


def ours(material: Path, precision: str, work: Path, seed: int) -> Epoch:
    """The stage `reward_model`, as a run starts it."""
    (work / "output").mkdir()
    train = {"batch_size": BATCH, "learning_rate": RATE, "num_ranks": 2, "precision": precision}
    job = {
        "stage": "reward_model",
        "config": {"seed": seed, "train": train},
        "inputs": {name: str(material / name) for name in ("policy", "preferences")},
        "workdir": str(work),
        "num_threads": 1,
        "num_ranks": 2,
    }
    (work / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "trimtab.models.training.entry", str(work / "job.json")]
    subprocess.run(command, check=True, cwd=ROOT)
    lines = map(json.loads, (work / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "metrics" in line]
    losses = [step["metrics"]["loss"] for step in steps]
    # Nothing tells when its first step began: what is counted is the tokens of the others.
    rows = rows_of(material)
    first, *_ = epoch_batches([row.num_tokens for row in rows], BATCH, seed, epoch=0)
    uncounted = sum(rows[index].num_tokens for index in first)
    share = 1 - uncounted / sum(row.num_tokens for row in rows)
    return epoch([step["time"] for step in steps], losses, share * len(rows))


def theirs(material: Path, more: Mapping[str, object], work: Path, seed: int) -> Epoch:
    """RewardTrainer, in a process of its own."""
    output = work / "steps.json"
    settings = {**SAME, **more, "seed": seed}
    command = [sys.executable, "-m", "trimtab.models.gpu_check.trl_trainers", "reward_model"]
    command += [str(material), str(output), json.dumps(settings)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    steps = json.loads(output.read_text())
    return epoch(steps["times"], steps["losses"], len(rows_of(material)))


def epoch(times: list[float], losses: list[float], num_pairs: float) -> Epoch:
    """`num_pairs` average pairs were passed from the first of the times to the last."""
    rate = num_pairs / (times[-1] - times[0])
    return Epoch(rate, losses, matrix_rate())


@cache
def rows_of(material: Path) -> Sequence[Candidates]:
    """The training pairs, packed."""
    tokenizer = load_tokenizer(material / "policy" / "model")
    return read_pairs(material / "preferences" / "train.jsonl", tokenizer, MAX_TOKENS).rows


def table(epochs: dict[str, list[Epoch]], work: float) -> str:
    """A row for each, with the ratio in the same turns of the first in its precision to it.

    work: of a pair, without padding and with its prompt once.
    """
    lines = ["| | pairs/s | least to most | Trimtab is faster by | of the machine's rate | loss |"]
    lines.append("|---|---|---|---|---|---|")
    for name, turns in epochs.items():
        first = epochs[f"Trimtab, {precision_of(name)}"]
        rates = [turn.rate for turn in turns]
        ratio = median(mine.rate / other.rate for mine, other in zip(first, turns, strict=True))
        share = median(turn.rate * work / turn.machine for turn in turns)
        spread = f"{min(rates):.2f} to {max(rates):.2f}"
        losses = [turn.loss for turn in turns]
        loss = f"{mean(losses):.3f}" + (f" ± {stdev(losses):.3f}" if losses[1:] else "")
        lines.append(
            f"| {name} | {median(rates):.2f} | {spread} | {ratio:.2f} | {share:.0%} | {loss} |"
        )
    return "\n".join(lines)


def precision_of(name: str) -> str:
    """In which an arm multiplies: TRL's default is bfloat16."""
    return "float32" if name.endswith("float32") else "bfloat16"


def draw(losses: dict[str, list[list[float]]], path: Path) -> None:
    """Each arm's mean loss over turns, and from the least to the most of them.

    Of a turn a step's is the mean of a window of a tenth of the steps around it.
    """
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="tight")
    for name, turns in losses.items():
        steps, window = np.arange(1, len(turns[0]) + 1), np.ones(max(1, len(turns[0]) // 10))
        counts = np.convolve(np.ones(len(steps)), window, "same")
        smooth = np.array([np.convolve(turn, window, "same") / counts for turn in turns])
        (line,) = axes.plot(steps, smooth.mean(0), label=name)
        axes.fill_between(steps, smooth.min(0), smooth.max(0), color=line.get_color(), alpha=0.15)
    axes.axhline(np.log(2), color="#888888", linestyle=":", label="chance, log 2")
    axes.set(xlabel="optimiser step", ylabel="ranking loss, nats")
    axes.legend(fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
