"""The configuration of PPO-max. Imports no torch, as `models.config` does not."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from models.config_judge import JudgeConfig, rating
from models.config_numbers import (
    LearningRate,
    Passes,
    Rows,
    Scale,
    Seed,
    Steps,
    Temperature,
    Tokens,
    Weight,
)
from models.config_parts import StageConfig, TrainerConfig, ranks_within


class CollapseConfig(StageConfig):
    """When the collapse guard speaks up: thresholds on the PPO monitors."""

    action: Literal["stop", "rollback", "warn"] = Field("rollback", description="What it does")
    window: int = Field(10, gt=1, le=1_000_000, description="Steps averaged before comparing")
    max_kl: float = Field(
        20.0, gt=0, le=1e6, description="Most nats per response away from reference"
    )
    length_growth: float = Field(
        1.5, gt=1, le=1e6, description="Length over its start that is suspicious"
    )
    length_drop: float = Field(0.6, gt=0, lt=1, description="The same where answers get shorter")
    perplexity_drop: float = Field(0.6, gt=0, lt=1, description="Perplexity over its start")


class ScoringConfig(StageConfig):
    """What scores: several scorers become one, one of safety has the first word; or a judge."""

    std_coef: Weight = Field(
        1.0, description="An ensemble's score: the mean less this times the spread (free)"
    )
    safety_threshold: float = Field(
        0.15, gt=0, lt=1, description="Sigmoid of a safety score that decides below [Llama 2: 0.15]"
    )
    safety_categories: tuple[str, ...] = Field(
        (), description="Categories of prompts on which safety always decides"
    )
    judge: JudgeConfig | None = Field(
        None,
        description="Who rates the responses of the arm rlaif_direct, which has no scorer [RLAIF]",
    )

    _rates = field_validator("judge")(rating)


class VllmConfig(StageConfig):
    """vLLM samples, in a process beside the trainer."""

    cache_gib: Scale = Field(1.0, description="Keys and values that it keeps, GiB")


class PPOConfig(TrainerConfig):
    """PPO-max [PPO section 5.4]; every component is a switch."""

    seed: Seed = Field(0, description="Seed of prompt order and sampling")
    num_steps: Steps = Field(80, description="Rollout and update rounds [AM: 100]")
    rollout_batch: Rows = Field(128, description="Responses sampled per step [PPO: 128]")
    train_batch: Rows = Field(32, description="Responses per update [PPO: 32]")
    num_epochs: Passes = Field(1, description="Passes over a rollout batch [PPO: 1]")
    policy_learning_rate: LearningRate = Field(5e-7, description="[PPO: 5e-7]")
    critic_learning_rate: LearningRate = Field(1.65e-6, description="[PPO: 1.65e-6]")
    kl_coef: Weight = Field(0.05, description="beta of the token KL penalty [PPO: 0.05]")
    scoring: ScoringConfig = ScoringConfig()
    score_treatment: Literal["raw", "scaled", "normalised"] = Field(
        "normalised",
        description="Scores as they are, over their running deviation, or their mean off as well",
    )
    score_clip: Scale | None = Field(0.8, description="delta of clipped scores [PPO: 0.8]")
    normalise_advantages: bool = Field(True, description="Whiten advantages within a rollout batch")
    advantage_clip: Scale | None = Field(
        None, description="Clip of advantages [PPO: 0.12, 0.5]; none switches off"
    )
    gamma: float = Field(1.0, gt=0, le=1, description="Discount [PPO: 1]")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="GAE lambda [PPO: 0.95]")
    policy_clip: Scale | None = Field(0.2, description="Ratio clip [PPO: 0.2], none switches off")
    ratio_denominator: Literal["sampling", "reference"] = Field(
        "sampling", description="The ratio is over the policy that sampled, or over the reference"
    )
    entropy_coef: Weight = Field(0.0, description="Weight of the entropy bonus (free)")
    entropy_clip: Scale | None = Field(
        None, description="Nats a token that the bonus leads to [PPO code: 35]; none: ever up"
    )
    value_clip: Scale | None = Field(0.2, description="Value clip, none switches off")
    critic_init: Literal["scorer", "policy"] = Field(
        "scorer", description="Critic from the reward model, or from the policy with a random head"
    )
    critic_pretrain_steps: int = Field(
        10, ge=0, le=1_000_000, description="Value-only steps before the policy"
    )
    ptx_coef: Weight = Field(0.0, description="Weight of the pre-training loss (PPO-ptx)")
    rehearsal_coef: Weight = Field(0.01, description="gamma of eq. 9 [AM: 0.01]")
    rehearsal_batch: Rows = Field(32, description="Rehearsal or ptx examples per update")
    temperature: Temperature = Field(0.8, description="Sampling temperature [PPO: 0.8]")
    top_p: float = Field(0.9, gt=0, le=1, description="Nucleus [PPO: 0.9]")
    repetition_penalty: float = Field(1.0, ge=1, le=100, description="[PPO: 1.1]")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")
    vllm: VllmConfig | None = Field(
        None, description="Sample with vLLM, which TRIMTAB_VLLM_PYTHON has; none: our own loop"
    )
    checkpoint_every: Steps = Field(20, description="Steps between checkpoints")
    guard: CollapseConfig = CollapseConfig()

    @model_validator(mode="after")
    def _every_rank_has_a_row(self) -> Self:
        return ranks_within(self, "train_batch", min(self.train_batch, self.rollout_batch))

    @model_validator(mode="after")
    def _clip_has_a_bonus(self) -> Self:
        if self.entropy_clip is not None and self.entropy_coef == 0:
            raise ValueError(
                f"entropy_clip must be none where entropy_coef is 0, found {self.entropy_clip}: "
                "there is no bonus to clip"
            )
        return self
