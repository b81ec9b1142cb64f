"""How well PPO's monitors tell a collapse: hits, false alarms and lead of the guard's rules.

    python -m tests.bench.guard --folder .bench/guard --runs docs/explanation/guard.jsonl
    python -m tests.bench.guard --runs docs/explanation/guard.jsonl --page docs/explanation

The first trains what is missing of forty short PPO runs in each of four small synthetic worlds, on
one core in forty minutes, and notes each step's monitors beside the gold score, which no run
sees. Runs differ in KL coefficient, learning rate, treatment of scores and in how many pairs their
scorers learned from. The second chooses limits on the first half of the worlds, and writes tables
and figure of guard.md from the other half.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch

from tests.bench.guard_page import WINDOW, Row, write_page
from trimtab.models.config.arms import vanilla
from trimtab.models.config.data import ComparisonsConfig, WorldConfig
from trimtab.models.config.policy import CollapseConfig, PPOConfig
from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.config.training import ModelConfig, SFTConfig, TrainConfig
from trimtab.models.data.records import read_rows
from trimtab.models.synthetic.gold import quality
from trimtab.models.training.data import write_rows
from trimtab.models.training.stage import Stage

WORLDS = (91, 92, 93, 94)
RUNS = 40
NUM_HELD_OUT = 2
# What runs differ in.
PAIRS = (100, 400, 1200)
KL_COEFFICIENTS = (0.0, 0.02, 0.1, 0.3)
LEARNING_RATES = (2e-4, 5e-4, 1e-3)
TREATMENTS = ("raw", "scaled", "normalised")
MONITORS = (
    *("kl", "response_length", "perplexity", "entropy", "score", "score_std"),
    *("held_out_score", "held_out_std", "held_out_disagreement", "held_out_agreement"),
)
SCORER = TrainConfig(learning_rate=2e-3, batch_size=32)
SFT = SFTConfig(
    model=ModelConfig(hidden_size=64, num_layers=2, num_heads=4, max_length=64),
    train=TrainConfig(learning_rate=4e-3, num_epochs=4, batch_size=32),
)
PPO = PPOConfig(
    num_steps=36,
    rollout_batch=64,
    critic_pretrain_steps=3,
    critic_learning_rate=1e-3,
    rehearsal_coef=0.0,
    temperature=1.0,
    top_p=1.0,
    max_new_tokens=16,
    checkpoint_every=1000,
    guard=CollapseConfig(action="warn", window=WINDOW),
)


@dataclass(frozen=True)
class World:
    """The stages' outputs that all runs of a world share, in one folder; made where missing."""

    seed: int
    folder: Path

    def _made(self, name: str, stage: str, config: Any, **inputs: Path) -> Path:
        output = self.folder / str(self.seed) / name
        if not output.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                run_stage(stage, config, Path(work), **inputs).rename(output)
        return output

    @property
    def data(self) -> Path:
        """Prompts and demonstrations."""
        sizes = {"num_demonstrations": 2000, "num_pair_prompts": 1500, "num_eval_prompts": 100}
        return self._made("data", "world", WorldConfig(seed=self.seed, **sizes))

    @property
    def policy(self) -> Path:
        """SFT."""
        return self._made("sft", "sft", _seeded(SFT, self.seed), data=self.data)

    @property
    def pairs(self) -> Path:
        """Its answers, compared."""
        config = _seeded(ComparisonsConfig(), self.seed)
        inputs = {"data": self.data, "policy": self.policy}
        return self._made("pairs", "comparisons", config, **inputs)

    def scorer(self, num_pairs: int, number: int) -> Path:
        """A reward model on the first pairs; those of other numbers differ in their seeds."""
        chosen = self.folder / str(self.seed) / f"pairs-{num_pairs}"
        if not chosen.exists():
            write_rows(chosen / "train.jsonl", read_rows(self.pairs / "train.jsonl")[:num_pairs])
        config = RewardModelConfig(train=SCORER, seed=1000 * number + self.seed)
        inputs = {"policy": self.policy, "preferences": self.pairs, "pairs": chosen}
        return self._made(f"scorer-{num_pairs}-{number}", "reward_model", config, **inputs)


def run_stage(stage: str, config: Any, workdir: Path, **inputs: Path) -> Path:
    """Run a stage in this process; returns its output."""
    workdir.mkdir(exist_ok=True)
    import_module(f"trimtab.models.stages.{stage}").run(config, Stage(inputs, workdir))
    return workdir / "output"


def _seeded(config: Any, seed: int) -> Any:
    return config.model_copy(update={"seed": seed})


def settings_of(world: int, number: int) -> dict[str, Any]:
    """What a run is trained with, drawn at random."""
    rng = random.Random(f"guard/{world}/{number}")
    return {
        "num_pairs": rng.choice(PAIRS),
        "kl_coef": rng.choice(KL_COEFFICIENTS),
        "learning_rate": rng.choice(LEARNING_RATES),
        "treatment": rng.choice(TREATMENTS),
    }


def ppo_config(settings: dict[str, Any], seed: int) -> PPOConfig:
    """raw: raw scores and none of PPO-max's tricks but the KL penalty."""
    treatment = settings["treatment"]
    ppo = vanilla(PPO) if treatment == "raw" else PPO
    changes = {"kl_coef": settings["kl_coef"], "policy_learning_rate": settings["learning_rate"]}
    if treatment != "raw":
        changes["score_treatment"] = treatment
    return ppo.model_copy(update={**changes, "seed": seed})


def measured(world: World, number: int) -> dict[str, Any]:
    """A run's settings, its monitors and gold by step, and its answers' gold at the start."""
    settings = settings_of(world.seed, number)
    scorer, *held_out = (
        world.scorer(settings["num_pairs"], index) for index in range(1 + NUM_HELD_OUT)
    )
    inputs = {"policy": world.policy, "reference": world.policy, "data": world.data}
    inputs |= {f"held_out_scorer_{index}": path for index, path in enumerate(held_out)}
    work = Path(tempfile.mkdtemp(dir=world.folder))
    config = ppo_config(settings, 100 * world.seed + number)
    output = run_stage("ppo_max", config, work, scorer=scorer, **inputs)
    metrics, answers = (read_rows(output / f"{name}.jsonl") for name in ("metrics", "rollouts"))
    shutil.rmtree(work)
    curves = {
        name: [row["metrics"][name] for row in metrics if "metrics" in row] for name in MONITORS
    }
    golds = [quality(row["prompt"], row["response"]) for row in answers]
    curves["gold"] = [
        fmean(values) for _, values in sorted(grouped(answers, golds, "step").items())
    ]
    curves |= worst_categories(answers)
    short = {name: [float(f"{value:.4g}") for value in values] for name, values in curves.items()}
    return {"world": world.seed, "run": number, **settings, **short}


def worst_categories(answers: Sequence[Row]) -> dict[str, list[float]]:
    """By step, from the window's last on, in the category where it is largest: the fall of the
    held-out score from its highest, and what the score gained beyond it; as in `guard.readings`."""
    last = answers[-1]["step"]
    falls, gaps = np.full((2, last - WINDOW + 1), -np.inf)
    for category in {row["category"] for row in answers}:
        rows = [row for row in answers if row["category"] == category]
        gains = []
        for name in ("score", "held_out_score"):
            by_step = grouped(rows, [row[name] for row in rows], "step")
            windows = [
                [value for step in range(end - WINDOW, end) for value in by_step.get(step + 1, [])]
                for end in range(WINDOW, last + 1)
            ]
            means = np.array([fmean(values) for values in windows])
            gains.append((means - means[0]) / pstdev(windows[0]))
        score, held_out = gains
        falls = np.maximum(falls, np.maximum.accumulate(held_out) - held_out)
        gaps = np.maximum(gaps, score - held_out)
    return {"category_fall": falls.tolist(), "category_gap": gaps.tolist()}


def grouped(rows: Sequence[Row], values: Sequence[float], key: str) -> dict[Any, list[float]]:
    """The values by what their rows have under a key."""
    groups: dict[Any, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        groups.setdefault(row[key], []).append(value)
    return groups


@cache
def world_of(seed: int, folder: Path) -> World:
    """The world, in its folder."""
    (folder / str(seed)).mkdir(parents=True, exist_ok=True)
    return World(seed, folder)


def main() -> None:
    """Train what is missing, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.guard")
    parser.add_argument("--folder", type=Path, default=Path(".bench/guard"))
    parser.add_argument("--runs", type=Path, required=True, help="the file of what was measured")
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS)
    parser.add_argument("--count", type=int, default=RUNS, help="runs in each world")
    parser.add_argument("--page", type=Path, help="the folder of guard.md")
    options = parser.parse_args()
    rows = read_rows(options.runs) if options.runs.exists() else []
    if options.page:
        write_page(rows, options.page)
        return
    torch.set_num_threads(1)
    done = {(row["world"], row["run"]) for row in rows}
    for number in range(options.count):
        for seed in options.worlds:
            if (seed, number) in done:
                continue
            start = time.process_time()
            row = measured(world_of(seed, options.folder), number)
            with options.runs.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{seed}/{number}: {time.process_time() - start:.1f} s", file=sys.stderr, flush=True
            )


if __name__ == "__main__":
    main()
