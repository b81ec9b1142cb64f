"""What the samples of one question come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.functional.verdicts import label_probabilities
from models.judging.chat import Usage


@dataclass(frozen=True)
class Finding:
    """The mean distribution (L,) of the samples that were understood, float64."""

    probabilities: Tensor
    num_unparsed: int
    usage: Usage

    @classmethod
    def of(
        cls, logprobs: Sequence[list[float] | None], usages: Sequence[Usage], num_labels: int
    ) -> Finding:
        """Of each sample, its labels' log-probabilities; None for one not understood."""
        understood = [each for each in logprobs if each is not None]
        if understood:
            rows = torch.tensor(understood, dtype=torch.float64, device="cpu")
            mean = label_probabilities(rows).mean(0)
        else:
            even = 1 / num_labels
            mean = torch.full((num_labels,), even, dtype=torch.float64, device="cpu")
        return cls(mean, len(logprobs) - len(understood), sum(usages, Usage()))
