"""What PPO's responses are scored by: one scorer or an ensemble, and maybe one of safety."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config_parts import ZeroConfig
from models.config_ppo import ScoringConfig
from models.engine.data import one_or_several
from models.engine.learners import Held, Metrics, hold
from models.engine.scoring import score_rows
from models.functional.combination import ensemble_scores, safety_first
from models.nets.loading import load_scorer
from models.nets.packing import Candidates


@dataclass(frozen=True)
class Scorers:
    """members: one scorer, or an ensemble. safety: a reward model that has the first word."""

    members: list[Held]
    safety: Held | None

    @classmethod
    def load(cls, inputs: dict[str, Path], zero: ZeroConfig | None) -> Scorers:
        """Inputs: `scorer`, or `scorer_0`, `scorer_1` and so on; optionally `safety_scorer`.

        One after another is taken apart where ranks hold parts.
        """
        members = [_load(folder, zero) for folder in one_or_several(inputs, "scorer")]
        has_safety = "safety_scorer" in inputs
        return cls(members, _load(inputs["safety_scorer"], zero) if has_safety else None)

    @property
    def held(self) -> list[Held]:
        """All of them."""
        return [*self.members, *([self.safety] if self.safety else [])]

    def score(
        self,
        config: ScoringConfig,
        prompts: Sequence[dict[str, Any]],
        rows: Sequence[Candidates],
    ) -> tuple[Tensor, Metrics]:
        """Scores (N,) of N prompts with a response each, and what the combination reports.

        All read the same rows, lower layers' states included where these carry them.
        """
        found = torch.stack([_scores(member, rows) for member in self.members])
        scores = found[0]
        metrics: Metrics = {}
        if len(found) > 1:
            scores, metrics = ensemble_scores(found, config.std_coef)
        if self.safety is not None:
            tags = [prompt.get("category") in config.safety_categories for prompt in prompts]
            safety, threshold = _scores(self.safety, rows), config.safety_threshold
            scores, more = safety_first(scores, safety, torch.tensor(tags), threshold)
            metrics |= more
        return scores, metrics


def _load(folder: Path, zero: ZeroConfig | None) -> Held:
    return hold(load_scorer(folder / "model").eval(), zero)


def _scores(scorer: Held, rows: Sequence[Candidates]) -> Tensor:
    with scorer.whole() as model:
        return score_rows(model, rows)[:, 0]
