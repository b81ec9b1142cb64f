"""One of TRL's trainers on prepared material; notes when steps ended.

    python -m trimtab.models.gpu_check.trl_trainers reward_model MATERIAL OUTPUT SETTINGS
    python -m trimtab.models.gpu_check.trl_trainers grpo MATERIAL OUTPUT SETTINGS   # or rloo
    PYTHONPATH=FOLDER python -m trimtab.models.gpu_check.trl_trainers ppo MATERIAL OUTPUT SETTINGS

FOLDER holds release 1.10, the last with PPOTrainer (`pip install --no-deps --target FOLDER
trl==1.10.0`). MATERIAL has policy/model; preferences/train.jsonl, or scorer/model and
data/policy_prompts.jsonl. SETTINGS is JSON: fields of TRL's RewardConfig, GRPOConfig or RLOOConfig,
or the last arguments of `ppo_trainer`. OUTPUT gets `times` (not of ppo the first step's begin too),
`losses`, and on a GPU `gib`, the most that was in tensors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
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


def main(trainer: str, material: Path, output: Path, settings: dict[str, Any]) -> None:
    """Train, and write what was noted."""
    import torch
    from transformers import TrainerCallback

    times: list[float] = []
    losses: list[float] = []

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.extend([] if times or trainer == "ppo" else [time.time()])

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.time())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    torch.set_num_threads(2)
    has_gpu = torch.cuda.is_available()
    common = {
        "output_dir": str(output.with_suffix(".trl")),
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": not has_gpu,
    }
    trainers: dict[str, Callable[..., Any]] = {"reward_model": reward_trainer, "ppo": ppo_trainer}
    make = trainers.get(trainer, partial(group_trainer, trainer))
    make(material, common, callbacks=[Steps()], **settings).train()
    gib = torch.cuda.max_memory_allocated() / 2**30 if has_gpu else None
    output.write_text(json.dumps({"times": times, "losses": losses, "gib": gib}))


def reward_trainer(
    material: Path, common: dict[str, Any], callbacks: list[Any], **settings: Any
) -> Any:
    """A trainer of one epoch."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of

    torch.manual_seed(settings["seed"])  # of the head
    policy = material / "policy" / "model"
    rows = _rows(material / "preferences" / "train.jsonl")
    for row in rows:  # what it groups by, if asked to; characters do as well as tokens
        row["length"] = len(row["prompt"]) + max(len(row["chosen"]), len(row["rejected"]))
    return RewardTrainer(
        load_pretrained(
            AutoModelForSequenceClassification, policy, num_labels=1, dtype=torch.float32
        ),
        RewardConfig(logging_steps=1, **common, **settings),
        train_dataset=Dataset.from_list(rows).remove_columns("id"),
        processing_class=load_tokenizer_of(policy),
        callbacks=callbacks,
    )


def ppo_trainer(
    material: Path,
    common: dict[str, Any],
    callbacks: list[Any],
    num_steps: int,
    batch: int,
    response: int,
    precision: str,
) -> Any:
    """A trainer of so many steps, each on `batch` answers of `response` tokens."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of

    policy, scorer = material / "policy" / "model", material / "scorer" / "model"
    tokenizer = load_tokenizer_of(policy, padding_side="left")
    prompts = [row["prompt"] for row in _rows(material / "data" / "policy_prompts.jsonl")]
    data = Dataset.from_list([{"input_ids": tokenizer(text)["input_ids"]} for text in prompts])
    load = partial(load_pretrained, dtype=torch.float32)
    return PPOTrainer(
        PPOConfig(
            per_device_train_batch_size=batch,
            num_mini_batches=1,
            num_ppo_epochs=1,
            total_episodes=batch * num_steps,
            response_length=response,
            temperature=0.8,
            learning_rate=5e-7,
            num_sample_generations=0,
            gradient_checkpointing=False,
            bf16=precision == "bfloat16",
            **common,
        ),
        processing_class=tokenizer,
        model=load(AutoModelForCausalLM, policy),
        ref_model=load(AutoModelForCausalLM, policy),
        reward_model=load(AutoModelForSequenceClassification, scorer),
        value_model=load(AutoModelForSequenceClassification, scorer),
        train_dataset=data,
        eval_dataset=data.select(range(1)),
        callbacks=callbacks,
    )


def group_trainer(
    name: str, material: Path, common: dict[str, Any], callbacks: list[Any], **settings: Any
) -> Any:
    """The trainer of `grpo` or `rloo`, from float32 weights."""
    import trl
    from datasets import Dataset

    from trimtab.models.nets.pretrained import load_tokenizer_of

    policy, scorer = material / "policy" / "model", material / "scorer" / "model"
    prompts = [row["prompt"] for row in _rows(material / "data" / "policy_prompts.jsonl")]
    config = getattr(trl, f"{name.upper()}Config")(
        model_init_kwargs={"dtype": "float32"}, **common, **settings
    )
    return getattr(trl, f"{name.upper()}Trainer")(
        model=str(policy),
        reward_funcs=str(scorer),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=load_tokenizer_of(policy, padding_side="left"),
        reward_processing_classes=load_tokenizer_of(scorer),
        callbacks=callbacks,
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
