"""DPO's loss and gradients on a batch are those of TRL's DPOTrainer on the same batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from trimtab.models.config.policy import DPOConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import pack
from trimtab.models.stages.dpo import _pair_arguments, _pair_loss
from trimtab.models.training.data import read_pairs
from trimtab.models.training.scoring import logprob_rows

BETA = 1.0


@pytest.fixture
def folder(comparisons: Path) -> Path:
    return comparisons / "train.jsonl"


@pytest.fixture
def reference(policy: Path) -> PreTrainedModel:
    return load_policy(policy / "model").eval()


@pytest.fixture
def model(policy: Path) -> PreTrainedModel:
    """The reference, moved: at its start every pair's loss is log 2."""
    moved = load_policy(policy / "model").eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for value in moved.parameters():
            value += 0.5 * value.std() * torch.randn_like(value)
    return moved


# TRL 1.16's plain loss takes no heed of label_smoothing; its `robust` one is another: with L that
# of right labels and W that of wrong ones, R = ((1 - e) L - e W) / (1 - 2 e). So the
# smoothed one, (1 - e) L + e W, is 2 (1 - e) L - (1 - 2 e) R, a weighting that TRL takes.
SMOOTHED = {"loss_type": ["sigmoid", "robust"], "loss_weights": [1.6, -0.6]}


@pytest.mark.slow
@pytest.mark.parametrize(("smoothing", "how"), [(0.0, {}), (0.2, SMOOTHED)])
def test_loss_and_gradients_are_trls(
    tmp_path: Path,
    folder: Path,
    policy: Path,
    model: PreTrainedModel,
    reference: PreTrainedModel,
    smoothing: float,
    how: dict[str, Any],
) -> None:
    from datasets import Dataset  # which take seconds to load: not where tests are collected
    from trl import DPOConfig as TheirConfig
    from trl import DPOTrainer

    tokenizer = load_tokenizer(policy / "model")
    pairs = read_pairs(folder, tokenizer, None)
    config = DPOConfig(beta=BETA, label_smoothing=smoothing)
    arguments = _pair_arguments(
        pairs, logprob_rows(reference, pairs.rows), list(range(len(pairs.rows)))
    )
    loss, _ = _pair_loss(model, config)(pack(pairs.rows), arguments)
    loss.backward()
    ours = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()

    rows = [
        {"prompt": row["prompt"], "chosen": f" {row['chosen']}", "rejected": f" {row['rejected']}"}
        for row in read_rows(folder)
    ]
    trainer = DPOTrainer(
        model,
        reference,
        TheirConfig(
            output_dir=str(tmp_path),
            beta=BETA,
            label_smoothing=smoothing,
            **how,
            per_device_train_batch_size=len(rows),
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    (batch,) = trainer.get_train_dataloader()
    theirs = trainer.compute_loss(trainer.model.eval(), batch)
    theirs.backward()
    assert abs(theirs.item() - math.log(2)) > 0.01
    assert loss.item() == pytest.approx(theirs.item(), abs=1e-5)
    for name, value in model.named_parameters():
        torch.testing.assert_close(ours[name], value.grad, rtol=1e-5, atol=2e-6, msg=name)
