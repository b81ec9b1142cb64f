"""Configurations of what PPO-max is compared with. Imports no torch, as `models.config` does not.

Budgets are counted as PPO's: responses sampled to train on, and gradient updates of the policy.
PPO-max samples (critic_pretrain_steps + num_steps) * rollout_batch responses, and updates its
policy num_steps * num_epochs * ceil(rollout_batch / train_batch) times.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from models.config_numbers import Passes, Rows, Scale, Score, Seed, Temperature, Tokens, Weight
from models.config_parts import StageConfig, TrainConfig


class PolicyConfig(StageConfig):
    """How a policy is trained on what was sampled or compared before.

    Rehearsal adds to the loss what SFT's own best answers are worth, as PPO-max does [AM eq. 9].
    """

    seed: Seed = Field(0, description="Seed of data order and of what is rehearsed")
    train: TrainConfig = TrainConfig()
    rehearsal_coef: Weight = Field(
        0.0, description="gamma of eq. 9 [AM: 0.01, beside PPO]; 0 rehearses nothing"
    )
    rehearsal_batch: Rows = Field(32, description="Rehearsed answers per update")


class DPOConfig(PolicyConfig):
    """Direct preference optimisation [DPO eq. 7] on the relabelled pairs.

    Budget: no response is sampled, as the pairs were compared for all arms;
    num_epochs * ceil(pairs / batch_size) updates.
    """

    train: TrainConfig = TrainConfig(learning_rate=1e-6, batch_size=64)  # [DPO: both]
    beta: Scale = Field(0.1, description="Weight of the KL to the reference [DPO: 0.1]")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Share of wrong labels assumed, beyond soft labels [cDPO]"
    )


class CPLConfig(PolicyConfig):
    """Contrastive preference learning [CPL] on the relabelled pairs, without a reference.

    Budget: as DPO's.
    """

    train: TrainConfig = TrainConfig(learning_rate=1e-6, batch_size=64)
    alpha: Scale = Field(0.1, description="Temperature of the policy [CPL: 0.1]")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount a token [CPL: 1]")
    conservative_bias: float = Field(
        0.5, gt=0, le=1, description="lambda; below 1 keeps to what was compared [CPL: 0.5]"
    )


class BestOfNConfig(StageConfig):
    """The best of n answers of the SFT policy, by the scorer; nothing is trained.

    Budget: none for training; n responses for every prompt that is answered.
    """

    num_responses: int = Field(16, ge=2, le=1024, description="n, answers sampled a prompt")


class AnswersConfig(StageConfig):
    """Several answers of a policy to each prompt, all scored.

    Budget: num_prompts * num_responses responses.
    """

    seed: Seed = Field(0, description="Seed of prompts and sampling")
    num_prompts: Rows = Field(256, description="Prompts drawn to answer")
    num_responses: int = Field(4, gt=0, le=1024, description="K, answers sampled a prompt")
    temperature: Temperature = Field(1.0, description="Sampling temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")
    instruction: str = Field("", description="Stands behind every prompt")


class RejectionSamplingConfig(PolicyConfig):
    """Fine-tuning on the best answer to each prompt.

    Budget: num_epochs * ceil(prompts / batch_size) updates.
    """


class RejectionSamplingLoop(StageConfig):
    """Rejection-sampling fine-tuning [Llama 2, section 3.2.3]: sample, keep the best, learn, again.

    Budget: that of `answers` and of `fine_tune`, num_iterations times.
    """

    num_iterations: Passes = Field(2, description="Times the policy is sampled and fine-tuned")
    from_all_iterations: bool = Field(
        True, description="Learn the best of all samples so far, not of the newest [Llama 2: so]"
    )
    answers: AnswersConfig = AnswersConfig()
    fine_tune: RejectionSamplingConfig = RejectionSamplingConfig()


class RestConfig(PolicyConfig):
    """The Improve steps of ReST: fine-tuning on answers above thresholds that rise.

    Budget: num_epochs * ceil(answers that are left / batch_size) updates a threshold.
    """

    threshold_kind: Literal["quantile", "value"] = Field(
        "quantile", description="Whether thresholds are quantiles of the scores or scores"
    )
    thresholds: tuple[Score, ...] = Field(
        (0.5, 0.7, 0.9),
        min_length=1,
        max_length=100,
        description="Least score in each Improve step, rising (free)",
    )

    @model_validator(mode="after")
    def _thresholds_rise(self) -> RestConfig:
        found = list(self.thresholds)
        if found != sorted(set(found)):
            raise ValueError(f"thresholds must rise from one to the next, found {found}")
        if self.threshold_kind == "quantile" and not 0 <= found[0] <= found[-1] < 1:
            raise ValueError(
                f"thresholds must be in [0, 1) where threshold_kind is 'quantile', found {found}"
            )
        return self


class RestLoop(StageConfig):
    """ReST [REST]: Grow samples the policy, Improve learns from the better part, again.

    Budget: that of `answers` and of `improve`, num_grow_steps times.
    """

    num_grow_steps: Passes = Field(1, description="Times the policy is sampled [ReST: 1, 2]")
    answers: AnswersConfig = AnswersConfig()
    improve: RestConfig = RestConfig()


class HIRConfig(PolicyConfig):
    """Hindsight instruction relabelling: answers are learnt behind the instruction they satisfy.

    Budget: num_epochs * ceil(answers / batch_size) updates, each answer passed once for every
    instruction.
    """

    instructions: tuple[str, ...] = Field(
        ("Give a bad answer.", "Give a good answer."),
        min_length=2,
        max_length=100,
        description="Worst first; the policy is asked to follow the last",
    )
    contrastive_coef: Weight = Field(
        1.0, description="Weight of telling instructions apart [HIR code: 1]"
    )
    entropy_coef: Weight = Field(0.001, description="Weight of the entropy [HIR code: 0.001]")

    @field_validator("instructions")
    @classmethod
    def _instructions_differ(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(found)) < len(found) or not all(found):
            raise ValueError(f"instructions must differ and not be empty, found {list(found)}")
        return found


class HIRLoop(StageConfig):
    """HIR [HIR algorithm 1]: sample the policy, relabel and learn all samples so far, again.

    Budget: that of `answers` and of `learn`, num_iterations times.
    """

    num_iterations: Passes = Field(2, description="Times the policy is sampled and trained")
    answers: AnswersConfig = AnswersConfig()
    learn: HIRConfig = HIRConfig()

    @model_validator(mode="after")
    def _instruction_is_its_own(self) -> HIRLoop:
        if self.answers.instruction:
            raise ValueError(
                f"answers.instruction of HIR must be empty, found {self.answers.instruction!r}: it "
                "is the last of learn.instructions, once the policy has learnt them"
            )
        return self
