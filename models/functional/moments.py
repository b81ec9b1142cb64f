"""Running mean and variance of a history of scores, exact whatever the batching.

[PPO] Secrets of RLHF Part I, arXiv 2307.04964. [CHAN] Chan, Golub and LeVeque, Updating Formulae
and a Pairwise Algorithm for Computing Sample Variances, 1979.

Deviations
1. [PPO section 5.4] keeps "historical mean and variance records" and gives no formula. Batches are
   merged in float64 [CHAN, pairwise update], which equals the moments of all scores at once to
   rounding, and ranks can be merged alike. Every score weighs the same; nothing is forgotten.
2. Variance is the population form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass
class RunningMoments:
    """Count, mean and population variance of every score seen so far.

    count, mean, var: Python floats (float64), so they survive a checkpoint bit for bit.
    Before any data mean is 0 and var 1, so that normalising changes nothing.
    """

    count: float = 0.0
    mean: float = 0.0
    var: float = 1.0

    @property
    def std(self) -> float:
        """Population standard deviation, in the scores' unit."""
        return math.sqrt(self.var)

    def update(self, x: Tensor) -> None:
        """Merge the elements of x, any shape; an empty x changes nothing.

        Raises ValueError if x holds NaN or infinity, which would poison the whole history.
        """
        if x.numel() == 0:
            return
        flat = x.detach().double().flatten()
        if not bool(flat.isfinite().all()):
            raise ValueError(
                "RunningMoments.update: scores hold NaN or infinity; check the reward model"
            )
        self.merge(float(flat.numel()), flat.mean().item(), flat.var(correction=0).item())

    def merge(self, count: float, mean: float, var: float) -> None:
        """Merge another set's moments: another rank's, or a batch's [CHAN, pairwise update].

        n = n_a + n_b; mean = mean_a + delta n_b / n; M2 = M2_a + M2_b + delta^2 n_a n_b / n.
        """
        if count == 0:
            return
        if self.count == 0:
            self.count, self.mean, self.var = count, mean, var
            return
        total = self.count + count
        delta = mean - self.mean
        squares = self.count * self.var + count * var + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.var = squares / total
        self.count = total

    def state_dict(self) -> dict[str, float]:
        """The three moments, JSON-ready."""
        return {"count": self.count, "mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the moments of `state_dict`. Raises KeyError if one is missing."""
        self.count, self.mean, self.var = state["count"], state["mean"], state["var"]
