"""MetaRM's ascent: the gradient of J over all rows, however they are cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.functional.meta_rm import difference_objective
from trimtab.models.nets.loading import load_scorer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_scores
from trimtab.models.stages.meta_rm import MetaAscent


def test_micro_batches_add_up_to_one(smoke_config: Any, advantage_model: Path) -> None:
    rng = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [rng.randrange(5, 50) for _ in range(length)]

    rows = [
        Candidates(tokens(4 + number), tuple(tokens(2 + answer) for answer in range(3)))
        for number in range(7)
    ]
    moved, metrics = [], []
    for max_tokens in (10_000, 40, 1):
        train = smoke_config.rounds.meta_rm.train.model_copy(
            update={"micro_batch_tokens": max_tokens}
        )
        config = smoke_config.rounds.meta_rm.model_copy(
            update={"train": train, "meta_batch": 7, "meta_learning_rate": 1.0}
        )
        model = load_scorer(advantage_model / "model")
        before = _copied(model)
        with MetaAscent(config, model, rows)(0) as found:
            metrics.append(found)
            moved.append(_copied(model))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, before[name])

    model = load_scorer(advantage_model / "model")
    objective, _ = difference_objective(response_scores(model, pack(rows)).view(7, 3))
    objective.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        for found in moved:
            torch.testing.assert_close(found[name], parameter + parameter.grad)
    for each in metrics:
        torch.testing.assert_close(each["meta_objective"], objective.detach())


def _copied(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
