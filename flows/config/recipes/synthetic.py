"""Recipes of the synthetic world, and what a recipe compares PPO-max with at a budget like its."""

from __future__ import annotations

from typing import Any

from trimtab.flows.config.config import EnsembleConfig, RoundsConfig, RunConfig, with_changes
from trimtab.models.config.data import ComparisonsConfig, WorldConfig
from trimtab.models.config.judge import (
    AILabelsConfig,
    ChatModelConfig,
    JudgeConfig,
    JudgePreferencesConfig,
)
from trimtab.models.config.policy import (
    CollapseConfig,
    ConstitutionalSFTConfig,
    ConstitutionConfig,
    CPLConfig,
    DPOConfig,
    HIRConfig,
    HIRLoop,
    PPOConfig,
    RehearsalConfig,
    RejectionSamplingConfig,
    RejectionSamplingLoop,
    RestConfig,
    RestLoop,
    ReviseConfig,
    SampleResponsesConfig,
    ScorersConfig,
)
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import (
    AdvantageModelConfig,
    ContrastiveConfig,
    ExpectedRewardConfig,
    MetaRMConfig,
    RelabelConfig,
    RewardModelConfig,
)
from trimtab.models.config.training import ModelConfig, SFTConfig, TrainConfig

# Instructions of HIR in words that the synthetic world has.
HIR_INSTRUCTIONS = ("zero", "ten")
# SFT as the figures of the exhibits and of the recipes beside the demo were measured: a larger
# model from transformers' first weights, in three times the work.
LARGER_SFT: dict[str, Any] = {
    "model": {"num_layers": 4, "initialisation": "transformers"},
    "train": {"num_epochs": 6},
}


def default() -> RunConfig:
    """The demo: the synthetic world at the size two cores finish in minutes.

    docs/what-holds.md says what it turns on and why. Its settings were chosen on worlds 91 and 92
    without the gold scorer (docs/explanation/results.md says how).
    """
    scorer = TrainConfig(learning_rate=1e-3, batch_size=32)
    ppo = PPOConfig(
        num_steps=60,
        rollout_batch=64,
        policy_learning_rate=3e-4,
        critic_learning_rate=1e-3,
        kl_coef=0.2,
        ptx_coef=0.1,
        rehearsal_coef=0.5,
        temperature=1.0,
        top_p=1.0,
        scoring=ScorersConfig(safety_categories=("harmful",)),
        guard=CollapseConfig(max_kl=4.0),  # measured: docs/explanation/guard.md
    )
    return RunConfig(
        recipe="default",
        world=WorldConfig(num_demonstrations=8000, num_pair_prompts=5500, num_eval_prompts=400),
        sft=SFTConfig(
            model=ModelConfig(num_layers=3, initialisation="fan_in"),
            train=TrainConfig(learning_rate=2e-3, num_epochs=3, batch_size=32),
        ),
        ensemble=EnsembleConfig(
            size=5,
            votes=("in_sample", "cross_fitted"),
            member=RewardModelConfig(train=scorer),
        ),
        relabel=RelabelConfig(flip_below=0.0, smooth="all", smoothing=0.2),
        reward_model=RewardModelConfig(train=scorer),
        advantage_model=AdvantageModelConfig(train=scorer, margin_by="label"),
        rehearsal=RehearsalConfig(prompts="demonstrations", max_prompts=1600),
        ppo=ppo,
        **_sections_like_default(ppo),
        rounds=RoundsConfig(
            meta_rm=MetaRMConfig(
                train=TrainConfig(learning_rate=1e-4, batch_size=16), margin_by="label"
            )
        ),
        # Judged at the temperature PPO samples at: the distribution it optimises.
        evaluate=EvaluateConfig(has_gold=True, temperature=1.0),
    )


def _sections_like_default(ppo: PPOConfig) -> dict[str, Any]:
    """Sections of the other methods at the default's rates; they take as many samples as PPO."""
    return budget_matched_sections(
        ppo,
        pairs=TrainConfig(learning_rate=2e-4, batch_size=32),
        answers=TrainConfig(learning_rate=5e-4, batch_size=32, num_epochs=5),
        num_responses=8,
        instructions=HIR_INSTRUCTIONS,
    )


def papers() -> RunConfig:
    """The pipeline of the three papers as they print it, in the synthetic world.

    Labels flipped and with a margin, SimCSE and the imitation term, ten members, the Advantage
    Model with its expected reward and importance weights (SFT wrote all pairs, so that they come to
    the scale 1 - K / N), rehearsal of answers to PPO's prompts, PPO-max without normalised
    advantages and with the pre-training loss, MetaRM in each of four rounds. Sizes and rates are
    those of `default`, but for a larger SFT and smaller rounds, of which each leaves the next
    something to gain.
    Not as printed: rehearsal weighs .5 a token for .01 a response, as answers are short, and
    MetaRM's ascent has a length, as the printed eta moves nothing at these rates.
    """
    like = default()
    terms: dict[str, Any] = {
        "contrastive": ContrastiveConfig(kind="simcse", on="pairs"),
        "imitation_coef": 1.0,
        "train": with_changes(like.reward_model.train, {"dropout": 0.05}),
    }
    ppo = with_changes(
        like.ppo,
        {
            "num_steps": 20,
            "policy_learning_rate": 1e-4,
            "kl_coef": 0.05,
            "normalise_advantages": False,
            "guard": CollapseConfig(),
        },
    )
    changes: dict[str, Any] = {
        "recipe": "papers",
        "sft": LARGER_SFT,
        "ensemble": {"size": 10},
        "relabel": RelabelConfig(flip_below=0.0, margin_scale=0.3, margin_clip=1.0),
        "reward_model": RewardModelConfig(**terms),
        "advantage_model": AdvantageModelConfig(
            **terms,
            expected_reward=ExpectedRewardConfig(),
            use_importance_weights=True,
            importance_baseline="itself",
            num_policies=4.0,
        ),
        "rehearsal": RehearsalConfig(),
        "ppo": ppo,
        "arms": ("ppo_max_rm", "full"),
        "rounds": {
            "max_rounds": 4,
            "promote": "always",
            "meta_rm_from": 1,
            "meta_rm_start": "advantage_model",
            "meta_rm": {"redraw_prompts": True, "margin_by": "constant"},
        },
    }
    return with_changes(like, changes | _sections_like_default(ppo))


def constitutional() -> RunConfig:
    """The demo with Constitutional AI: a judge revises and labels harmful answers.

    SFT is larger. The judge is the gold scorer, right in nine of ten verdicts; all else is labelled
    by people, as in `default`.
    """
    like, gold = default(), {"gold_accuracy": 0.9}
    changes = {
        "recipe": "constitutional",
        "sft": LARGER_SFT,
        "constitution": ConstitutionConfig(
            revise=ReviseConfig(judge=ChatModelConfig(**gold), categories=("harmful",)),
            # Rejection sampling learns from as few answers.
            learn=ConstitutionalSFTConfig(train=like.rejection_sampling.fine_tune.train),
        ),
        "judge_preferences": JudgePreferencesConfig(
            judge=JudgeConfig(**gold, rubric="harmlessness", constitution="harmlessness"),
            splits=("train", "validation"),
            categories=("harmful",),
        ),
        "ai_labels": AILabelsConfig(),
    }
    return with_changes(like, changes)


def smoke() -> RunConfig:
    """Every stage, as small as it can be, for tests and for trying things out."""
    train = TrainConfig(learning_rate=1e-3, batch_size=16, checkpoint_every=20)
    ppo = PPOConfig(
        num_steps=4,
        critic_pretrain_steps=1,
        rollout_batch=16,
        train_batch=8,
        rehearsal_batch=8,
        policy_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        checkpoint_every=2,
        scoring=ScorersConfig(safety_categories=("harmful",)),
    )
    return RunConfig(
        recipe="smoke",
        world=WorldConfig(
            num_demonstrations=400,
            num_pair_prompts=200,
            num_policy_prompts=136,
            num_eval_prompts=24,
        ),
        comparisons=ComparisonsConfig(clear_gap=0.1),
        sft=SFTConfig(
            model=ModelConfig(hidden_size=32, num_layers=2, num_heads=2, max_length=64),
            train=TrainConfig(learning_rate=5e-3, num_epochs=2, batch_size=32),
        ),
        ensemble=EnsembleConfig(size=2, member=RewardModelConfig(train=train)),
        reward_model=RewardModelConfig(train=train),
        advantage_model=AdvantageModelConfig(train=train),
        rehearsal=RehearsalConfig(
            prompts="demonstrations", max_prompts=96, num_clusters=4, per_cluster=4
        ),
        ppo=ppo,
        **budget_matched_sections(
            ppo, pairs=train, answers=train, num_responses=4, instructions=HIR_INSTRUCTIONS
        ),
        rounds=RoundsConfig(
            max_rounds=2,
            promote="always",
            meta_rm=MetaRMConfig(train=train, num_prompts=16, num_responses=3, meta_batch=4),
        ),
        evaluate=EvaluateConfig(has_gold=True, num_resamples=100),
    )


def rlaif() -> RunConfig:
    """The demo with AI feedback: a judge, right four times in five, in place of people.

    SFT is larger. Labels are soft already, so that relabelling smooths none of them.
    """
    judge = JudgeConfig(gold_accuracy=0.8)
    changes = {
        "recipe": "rlaif",
        "sft": LARGER_SFT,
        "judge_preferences": JudgePreferencesConfig(judge=judge),
        "ai_labels": AILabelsConfig(),
        "relabel": RelabelConfig(flip_below=0.0, smooth="none"),
        "ppo": {"scoring": {"judge": judge}},
        "arms": ("full", "rlaif_direct"),
    }
    return with_changes(default(), changes)


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
