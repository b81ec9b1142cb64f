"""The Advantage Model with the further terms of a reward model's loss, and pairs together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from trimtab.models.config.reward import ContrastiveConfig
from trimtab.models.stages.advantage_model import advantage_of_pairs
from trimtab.models.training.pair_batches import ComparedPairs
from trimtab.models.training.progress import read_metrics


def test_pairs_of_one_prompt_take_the_loss_of_each_by_hand(smoke_config: Any) -> None:
    """Three responses, a = 1, 0, -1, e = 0, m = 2.5; the pairs (0, 1), (2, 0) with weights 3, 1."""
    compared = ComparedPairs(
        torch.tensor([4, 1]),
        torch.tensor([0, 2]),
        torch.tensor([1, 0]),
        torch.tensor([1.0, 0.25]),
        torch.zeros(2),
        torch.tensor([3.0, 1.0]),
    )
    loss, _ = advantage_of_pairs(
        smoke_config.advantage_model.model_copy(update={"margin": 2.5}),
        None,
        None,
        torch.tensor([1.0, 0.0, -1.0]),
        torch.zeros(3),
        compared,
    )

    def pair(better: float, worse: float) -> float:
        parts = (better - worse, 2.5 - better, 2.5 + worse)
        return sum(math.log1p(math.exp(-part)) for part in parts)

    second = 0.25 * pair(-1, 1) + 0.75 * pair(1, -1)
    assert float(loss) == pytest.approx((3 * pair(1, 0) + second) / 4, abs=1e-6)


@pytest.mark.slow
def test_terms_are_added_and_leave_no_heads(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    config = smoke_config.advantage_model
    train = config.train.model_copy(update={"dropout": 0.05})
    config = config.model_copy(
        update={
            "train": train,
            "ranking": "k_wise",
            "imitation_coef": 0.5,
            "contrastive": ContrastiveConfig(coef=0.25),
        }
    )
    output = run_stage("advantage_model", config, tmp_path, policy=policy, preferences=comparisons)
    for row in read_metrics(tmp_path / "metrics.jsonl"):
        terms = row["ranking_loss"] + row["bounding_loss"]
        terms += 0.5 * row["imitation_loss"] + 0.25 * row["contrastive_loss"]
        assert row["loss"] == pytest.approx(terms, rel=1e-4)
    assert not [name for name in load_file(output / "model/model.safetensors") if "lm_head" in name]
