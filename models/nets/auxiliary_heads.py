"""Heads that a reward model has while it is trained and not when it is saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.models.functional.contrastive import prototype_scores
from trimtab.models.nets.device import current_device
from trimtab.models.nets.loading import load_policy


class Prototypes(nn.Module):
    """SwAV's prototypes (K, H), drawn from `seed`; maps features to their cosines (N, K)."""

    def __init__(self, num_prototypes: int, hidden_size: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(num_prototypes, hidden_size, generator=generator, device="cpu")
        self.weight = nn.Parameter(drawn.to(current_device()))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, H) -> cosines (N, K)."""
        return prototype_scores(features, self.weight)


@contextmanager
def auxiliary_heads(
    model: PreTrainedModel, policy: Path | None, num_prototypes: int | None, seed: int
) -> Iterator[None]:
    """Inside, `model` has what is given: a language-model head, SwAV's prototypes.

    policy: the folder that its trunk came from, whose head it is; where that is tied to the
    embeddings it is tied to the model's own. They are modules of the model, so that they are
    trained, checkpointed and held in parts as the rest of it is.
    """
    if policy is not None:
        model.lm_head = _language_head(policy, model)
    if num_prototypes is not None:
        model.prototypes = Prototypes(num_prototypes, model.config.hidden_size, seed)
    try:
        yield
    finally:
        for name in ("lm_head", "prototypes"):
            if hasattr(model, name):
                delattr(model, name)


def _language_head(folder: Path, model: PreTrainedModel) -> nn.Module:
    policy = load_policy(folder)
    head: nn.Module = policy.get_output_embeddings()
    if head.weight is policy.get_input_embeddings().weight:
        head.weight = model.get_input_embeddings().weight
    return head
