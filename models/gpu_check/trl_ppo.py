"""TRL's PPOTrainer, which release 1.10 is the last to have; notes when each step ended.

    PYTHONPATH=FOLDER python -m trimtab.models.gpu_check.trl_ppo MATERIAL OUTPUT STEPS BATCH \
RESPONSE PRECISION

FOLDER holds that release (`pip install --no-deps --target FOLDER trl==1.10.0`). MATERIAL has
policy/model, scorer/model and data/policy_prompts.jsonl.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any


def main(
    material: Path, output: Path, num_steps: int, batch: int, response: int, precision: str
) -> None:
    """Train, and write `times`."""
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        TrainerCallback,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of

    times: list[float] = []

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.time())

    torch.set_num_threads(2)
    policy, scorer = material / "policy" / "model", material / "scorer" / "model"
    tokenizer = load_tokenizer_of(policy, padding_side="left")
    lines = (material / "data" / "policy_prompts.jsonl").read_text().splitlines()
    encoded = (tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines)
    data = Dataset.from_list([{"input_ids": ids} for ids in encoded])

    written = partial(load_pretrained, AutoModelForCausalLM, policy, dtype=torch.float32)
    scored = partial(
        load_pretrained, AutoModelForSequenceClassification, scorer, dtype=torch.float32
    )
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
            use_cpu=not torch.cuda.is_available(),
            bf16=precision == "bfloat16",
        ),
        processing_class=tokenizer,
        model=written(),
        ref_model=written(),
        reward_model=scored(),
        value_model=scored(),
        train_dataset=data,
        eval_dataset=data.select(range(1)),
        callbacks=[Steps()],
    )
    trainer.train()
    output.write_text(json.dumps({"times": times}))


if __name__ == "__main__":
    steps, batch, response = map(int, sys.argv[3:6])
    main(Path(sys.argv[1]), Path(sys.argv[2]), steps, batch, response, sys.argv[6])
