"""One epoch of TRL's RewardTrainer on prepared pairs; notes when steps began and ended.

    python -m trimtab.models.gpu_check.trl_reward_model MATERIAL OUTPUT '{"learning_rate": 5e-4}'

MATERIAL has policy/model and preferences/train.jsonl. OUTPUT gets `times`, of the first step's
begin and of all ends, `losses`, and on a GPU `gib`, the most that was in tensors.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

# The schedule and optimiser of trimtab.models.training.optimiser in TRL's words.
SCHEDULE = {
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_steps": 0.1,
    "adam_beta2": 0.95,
    "num_train_epochs": 1,
}
# What else makes it faster: no recomputation of activations, rows of like length in a batch.
BEST = {
    "gradient_checkpointing": False,
    "train_sampling_strategy": "group_by_length",
    "remove_unused_columns": False,  # the lengths
}


def main(material: Path, output: Path, settings: dict[str, Any]) -> None:
    """Train, and write what was noted."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, TrainerCallback
    from trl import RewardConfig, RewardTrainer

    from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of

    times: list[float] = []
    losses: list[float] = []

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.extend([] if times else [time.time()])

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.time())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    torch.set_num_threads(2)
    torch.manual_seed(settings["seed"])  # of the head
    policy = material / "policy" / "model"
    lines = (material / "preferences" / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:  # what it groups by, if asked to; characters do as well as tokens
        row["length"] = len(row["prompt"]) + max(len(row["chosen"]), len(row["rejected"]))
    has_gpu = torch.cuda.is_available()
    trainer = RewardTrainer(
        load_pretrained(
            AutoModelForSequenceClassification, policy, num_labels=1, dtype=torch.float32
        ),
        RewardConfig(
            output_dir=str(output.with_suffix(".trl")),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not has_gpu,
            **settings,
        ),
        train_dataset=Dataset.from_list(rows).remove_columns("id"),
        processing_class=load_tokenizer_of(policy),
        callbacks=[Steps()],
    )
    trainer.train()
    gib = torch.cuda.max_memory_allocated() / 2**30 if has_gpu else None
    output.write_text(json.dumps({"times": times, "losses": losses, "gib": gib}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
