"""What PPO's responses are scored by: a scorer, an ensemble or a reward from outside, such as a
judge; maybe safety first.

Held-out scorers score the same responses for the collapse guard, and no reward depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.external_reward import RewardConfig
from trimtab.models.config.policy import PPOConfig, ScorersConfig
from trimtab.models.config.training import ZeroConfig
from trimtab.models.functional.combination import ensemble_scores, safety_first
from trimtab.models.nets.loading import load_scorer
from trimtab.models.nets.packing import Candidates
from trimtab.models.rewards.reward import ExternalReward, is_external, reward_in
from trimtab.models.training.learner import Metrics, ModelHandle, model_handle
from trimtab.models.training.scoring import other_tokenizer, score_samples
from trimtab.models.training.stage import Stage


@dataclass(frozen=True)
class Scorer:
    """A scorer; tokenizer: the one by which it reads texts, None where it reads the policy's tokens
    (trimtab.models.training.scoring)."""

    handle: ModelHandle
    tokenizer: PreTrainedTokenizerBase | None

    @property
    def model(self) -> PreTrainedModel:
        """The handle's."""
        return self.handle.model

    def score(
        self,
        prompts: Sequence[dict[str, Any]],
        rows: Sequence[Candidates],
        responses: Sequence[str],
    ) -> Tensor:
        """Scores (N,) of N prompts with a response each."""
        answers = [[response] for response in responses]
        with self.handle.gathered() as model:
            return score_samples(model, self.tokenizer, rows, prompts, answers)[:, 0]


@dataclass(frozen=True)
class Scorers:
    """members: one scorer, or an ensemble. external: rates responses if there are no members.

    safety: a reward model that is considered first. held_out: scorers that are not optimised."""

    members: list[Scorer]
    external: ExternalReward | None
    safety: Scorer | None
    held_out: Sequence[Scorer] = ()

    @classmethod
    def load(cls, config: PPOConfig, stage: Stage) -> Scorers:
        """Inputs: `scorer`, or `scorer_0` and so on; optionally `safety_scorer`, `held_out_scorer`.

        A scorer may be a reward from outside, alone; without one the configuration's judge rates,
        ValueError where there is none.
        Under ZeRO stage 3 each scorer is sharded before the next is loaded, but for a reward model
        from outside, which each rank has whole.
        """
        policy, folders = stage.inputs["policy"], stage.several("scorer")
        external = _external(config, stage, folders)
        members = [] if external else [_load(folder, policy, config.zero) for folder in folders]
        if config.critic_init == "scorer" and members and members[0].tokenizer is not None:
            raise ValueError(
                "critic_init must be policy if the scorer has another tokenizer than the policy, "
                "or takes fewer tokens, found scorer: a critic reads the policy's tokens"
            )
        has_safety = "safety_scorer" in stage.inputs
        safety = _load(stage.inputs["safety_scorer"], policy, config.zero) if has_safety else None
        held_out = [
            _load(folder, policy, config.zero) for folder in stage.several("held_out_scorer")
        ]
        return cls(members, external, safety, held_out)

    @property
    def models(self) -> list[Scorer]:
        """The members, the safety scorer and those held out."""
        return [*self.members, *([self.safety] if self.safety else []), *self.held_out]

    def score(
        self,
        config: ScorersConfig,
        prompts: Sequence[dict[str, Any]],
        rows: Sequence[Candidates],
        responses: Sequence[str],
    ) -> tuple[Tensor, Metrics]:
        """Scores (N,) of N prompts with a response each, and what the combination reports.

        Scorers read the same rows, with cached trunk activations if there are any; one of another
        tokenizer, and a reward from outside, read the texts.
        """
        metrics: Metrics = {}
        if self.external is not None:
            scores, metrics = self.external.rate(prompts, responses)
        elif len(self.members) == 1:
            scores = self.members[0].score(prompts, rows, responses)
        else:
            votes = [member.score(prompts, rows, responses) for member in self.members]
            scores, metrics = ensemble_scores(torch.stack(votes), config.std_coef)
        if self.safety is not None:
            is_safety_prompt = [
                prompt.get("category") in config.safety_categories for prompt in prompts
            ]
            safety = self.safety.score(prompts, rows, responses)
            threshold = config.safety_threshold
            scores, more = safety_first(scores, safety, torch.tensor(is_safety_prompt), threshold)
            metrics |= more
        return scores, metrics

    def held_out_scores(
        self,
        prompts: Sequence[dict[str, Any]],
        rows: Sequence[Candidates],
        responses: Sequence[str],
    ) -> Tensor | None:
        """Scores (H, N) of N responses by the H held-out scorers; None where there are none."""
        if not self.held_out:
            return None
        return torch.stack([scorer.score(prompts, rows, responses) for scorer in self.held_out])


def _external(config: PPOConfig, stage: Stage, folders: Sequence[Path]) -> ExternalReward | None:
    """The reward from outside that the scorer is, or the configuration's judge without a scorer."""
    judge = config.scoring.judge
    if folders and not any(map(is_external, folders)):
        return None
    if len(folders) > 1:
        raise ValueError(
            f"found {len(folders)} scorers, one of them a reward from outside; allowed: it alone, "
            "or a panel of rewards from outside"
        )
    if not folders and judge is None:
        raise ValueError("PPO needs the input scorer or, without one, scoring.judge; found neither")
    if config.critic_init == "scorer":
        what = "a reward from outside scores" if folders else "scoring.judge rates"
        raise ValueError(
            f"critic_init must be policy if {what} the responses, found scorer: there is no scorer "
            "that the critic could start from"
        )
    if folders:
        return reward_in(folders[0], stage.workdir, config.seed)
    return ExternalReward(RewardConfig(judge=judge), stage.workdir, config.seed)


def _load(folder: Path, policy: Path, zero: ZeroConfig | None) -> Scorer:
    handle = model_handle(load_scorer(folder / "model", is_frozen=True).eval(), zero)
    return Scorer(handle, other_tokenizer(folder / "model", policy / "model"))
