"""Sections for what PPO-max is compared with, at a budget like its own."""

from __future__ import annotations

from typing import Any

from trimtab.models.config.policy import (
    CPLConfig,
    DPOConfig,
    HIRConfig,
    HIRLoop,
    PPOConfig,
    RejectionSamplingConfig,
    RejectionSamplingLoop,
    RestConfig,
    RestLoop,
    SampleResponsesConfig,
)
from trimtab.models.config.training import TrainConfig


def budget_matched_sections(
    ppo: PPOConfig,
    pairs: TrainConfig,
    answers: TrainConfig,
    *,
    num_responses: int,
    instructions: tuple[str, ...] = HIRConfig().instructions,
) -> dict[str, Any]:
    """Sections by their names in a run's configuration.

    Each arm that samples takes as many responses as `ppo` in all, sampled as PPO does, so many a
    prompt. `pairs`: how DPO and CPL train; `answers`: how those train that sample, whose
    `num_epochs` decides how many updates they come to.
    """
    sampled = (ppo.critic_pretrain_steps + ppo.num_steps) * ppo.rollout_batch
    once = SampleResponsesConfig(
        num_prompts=sampled // num_responses,
        num_responses=num_responses,
        temperature=ppo.temperature,
        top_p=ppo.top_p,
        max_new_tokens=ppo.max_new_tokens,
    )
    half = once.model_copy(update={"num_prompts": sampled // num_responses // 2})
    every = answers.model_copy(update={"num_epochs": 1})  # not only the best answers
    # HIR passes the first half of them twice, and none of them is left out.
    large = every.model_copy(update={"batch_size": 2 * every.batch_size})
    return {
        "dpo": DPOConfig(train=pairs),
        "cpl": CPLConfig(train=pairs),
        "rejection_sampling": RejectionSamplingLoop(
            answers=half, fine_tune=RejectionSamplingConfig(train=answers)
        ),
        "rest": RestLoop(answers=once, improve=RestConfig(train=every)),
        "hir": HIRLoop(answers=half, learn=HIRConfig(train=large, instructions=instructions)),
    }
