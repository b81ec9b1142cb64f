"""TRL's experimental PPOTrainer on the benchmark's material; notes when each step ended.

python tests/bench/trl_ppo.py MATERIAL OUTPUT STEPS BATCH RESPONSE PRECISION
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer


class Steps(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.time())


def main(
    material: Path, output: Path, num_steps: int, batch: int, response: int, precision: str
) -> None:
    torch.set_num_threads(2)
    policy, scorer = material / "policy" / "model", material / "scorer" / "model"
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    lines = (material / "data" / "policy_prompts.jsonl").read_text().splitlines()
    prompts = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    data = Dataset.from_list([{"input_ids": ids} for ids in prompts])

    def scored() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(scorer, dtype=torch.float32)

    def written() -> Any:
        return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)

    steps = Steps()
    trainer = PPOTrainer(
        PPOConfig(
            output_dir=str(output.with_suffix(".trl")),
            per_device_train_batch_size=batch,
            num_mini_batches=1,
            num_ppo_epochs=1,
            total_episodes=batch * num_steps,
            response_length=response,
            temperature=0.8,
            learning_rate=5e-7,
            num_sample_generations=0,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=precision == "bfloat16",
        ),
        processing_class=tokenizer,
        model=written(),
        ref_model=written(),
        reward_model=scored(),
        value_model=scored(),
        train_dataset=data,
        eval_dataset=data.select(range(1)),
        callbacks=[steps],
    )
    trainer.train()
    output.write_text(json.dumps({"times": steps.times}))


if __name__ == "__main__":
    steps, batch, response = map(int, sys.argv[3:6])
    main(Path(sys.argv[1]), Path(sys.argv[2]), steps, batch, response, sys.argv[6])
