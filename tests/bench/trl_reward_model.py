"""One epoch of TRL's RewardTrainer on the benchmark's material; notes when steps began and ended.

python tests/bench/trl_reward_model.py MATERIAL OUTPUT '{"learning_rate": 0.0005, ...}'
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl import RewardConfig, RewardTrainer


class Steps(TrainerCallback):
    """When the first step began and each ended; losses."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.times = self.times or [time.time()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.time())

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def main(material: Path, output: Path, settings: dict[str, Any]) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(settings["seed"])  # of the head
    policy = material / "policy" / "model"
    lines = (material / "preferences" / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:  # what it groups by, if asked to; characters do as well as tokens
        row["length"] = len(row["prompt"]) + max(len(row["chosen"]), len(row["rejected"]))
    steps = Steps()
    trainer = RewardTrainer(
        AutoModelForSequenceClassification.from_pretrained(
            policy, num_labels=1, dtype=torch.float32
        ),
        RewardConfig(
            output_dir=str(output.with_suffix(".trl")),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            **settings,
        ),
        train_dataset=Dataset.from_list(rows).remove_columns("id"),
        processing_class=AutoTokenizer.from_pretrained(policy),
        callbacks=[steps],
    )
    trainer.train()
    output.write_text(json.dumps({"times": steps.times, "losses": steps.losses}))
    if torch.cuda.is_available():
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB in tensors at the most")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
