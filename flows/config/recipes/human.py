"""Recipes for people's preferences: give `preferences.sources`."""

from __future__ import annotations

from trimtab.flows.config.config import EnsembleConfig, RoundsConfig, RunConfig, with_changes
from trimtab.flows.config.recipes.synthetic import budget_matched_sections
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.config.policy import CollapseConfig, PPOConfig, RehearsalConfig, ScorersConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import (
    POLICY,
    AdvantageModelConfig,
    ContrastiveConfig,
    EmbeddingModelConfig,
    ExpectedRewardConfig,
    MetaRMConfig,
    RelabelConfig,
    RewardModelConfig,
)
from trimtab.models.config.training import (
    LoraConfig,
    ModelConfig,
    SFTConfig,
    TrainConfig,
    ZeroConfig,
)

SENTENCE_MODELS = (EmbeddingModelConfig(), EmbeddingModelConfig(kind="nearest"))


def audit() -> RunConfig:
    """Which labels of your pairs look wrong; give `preferences.sources`.

    For the flow label-audit, without a language model. Every pair is voted on by models that were
    not trained on it, and no label is changed; rows that cannot be read and ties are set aside.
    """
    return RunConfig(
        recipe="audit",
        preferences=PreferencesConfig(
            on_bad_rows="quarantine", on_ties="drop", validation_share=0, test_share=0
        ),
        ensemble=EnsembleConfig(votes=("embedding_models",), self_test_share=0.05),
        embedding_models=(
            EmbeddingModelConfig(kind="style", fold_by="pair"),
            EmbeddingModelConfig(fold_by="pair", with_style=True, second_fit=True),
            EmbeddingModelConfig(kind="nearest"),
            EmbeddingModelConfig(kind="ratings", fold_by="pair"),
        ),
        relabel=RelabelConfig(flip_below=None),
    )


def reward() -> RunConfig:
    """A reward model from your pairs; give `preferences.sources`.

    For the flow reward, and what `trimtab reward` runs: labels are audited as by the recipe
    `audit`, none is changed, and the six upper layers of the base model, which is not fine-tuned
    first, are trained on them. Rate and epochs are those of `hh_smollm2`.
    """
    return with_changes(
        audit(),
        {
            "recipe": "reward",
            "preferences": PreferencesConfig(
                on_bad_rows="quarantine", on_ties="drop", max_tokens=1024
            ),
            "sft": SFTConfig(
                model=ModelConfig(base="smollm2-135m-instruct", max_length=1025), fine_tune=False
            ),
            "reward_model": RewardModelConfig(train=_scorer_on_two_cores()),
            "scorers": ("reward_model",),
        },
    )


def _on_two_cores() -> TrainConfig:
    return TrainConfig(
        learning_rate=5e-5,
        batch_size=16,
        micro_batch_tokens=4096,
        checkpoint_every=25,
        trainable_layers=6,
    )


def _scorer_on_two_cores() -> TrainConfig:
    return _on_two_cores().model_copy(update={"learning_rate": 3e-4, "num_epochs": 2})


def hh_smollm2() -> RunConfig:
    """Anthropic's HH pairs with SmolLM2-135M; give `preferences.sources`.

    Six of thirty layers are trained, on dialogues of at most 160 tokens: 90 minutes on two cores.
    Scorers' rate and epochs are from validation pairs: 5e-5 for one epoch does not leave chance.
    Every round runs, as in the paper's table, and the last is registered whatever its judges say.
    Helpful and harmless pairs contradict each other, and one score for both is what the papers
    have: `{ensemble.member,reward_model,advantage_model}.category_heads=true` gives each its own,
    and .663 of the test labels in place of .553.
    """
    train = _on_two_cores()
    scorer = _scorer_on_two_cores()
    meta = train.model_copy(update={"learning_rate": 1e-4})
    ppo = _ppo_on_two_cores()
    return RunConfig(
        recipe="hh-smollm2",
        preferences=PreferencesConfig(
            sources=("hh-helpful.jsonl.gz", "hh-harmless.jsonl.gz"),
            categories=("helpful", "harmless"),
            on_bad_rows="quarantine",
            max_tokens=160,
            max_pairs=1500,
        ),
        sft=SFTConfig(model=ModelConfig(base="smollm2-135m-instruct", max_length=256), train=train),
        ensemble=EnsembleConfig(size=3, member=RewardModelConfig(train=scorer)),
        embedding_models=(EmbeddingModelConfig(encoder=POLICY), *SENTENCE_MODELS),
        relabel=RelabelConfig(flip_fraction=0.1, flip_below=0.0),
        reward_model=RewardModelConfig(train=scorer),
        advantage_model=AdvantageModelConfig(train=scorer),
        rehearsal=RehearsalConfig(
            max_prompts=192, max_new_tokens=48, num_clusters=8, per_cluster=4
        ),
        ppo=ppo,
        **budget_matched_sections(
            ppo,
            pairs=train.model_copy(update={"learning_rate": 2e-5}),
            answers=train.model_copy(update={"num_epochs": 4}),
            num_responses=4,
        ),
        arms=("full",),
        rounds=RoundsConfig(
            max_rounds=2,
            promote="always",
            meta_rm=MetaRMConfig(
                train=meta, num_prompts=32, num_responses=4, meta_batch=4, max_new_tokens=48
            ),
        ),
        evaluate=EvaluateConfig(max_new_tokens=48),
    )


def _ppo_on_two_cores() -> PPOConfig:
    """Gentle, by its rollouts on training prompts: at 2e-5 and 0.05 answers dwindle to nothing."""
    return PPOConfig(
        num_steps=12,
        critic_pretrain_steps=2,
        rollout_batch=16,
        train_batch=8,
        rehearsal_unit="response",
        rehearsal_batch=8,
        policy_learning_rate=1e-5,
        critic_learning_rate=1e-4,
        kl_coef=0.2,
        ptx_coef=0.1,
        max_new_tokens=48,
        checkpoint_every=4,
        trainable_layers=6,
        guard=CollapseConfig(window=4),
        scoring=ScorersConfig(safety_categories=("harmless",)),
    )


def ukp_smollm2() -> RunConfig:
    """UKP's argument pairs, five votes each, SmolLM2-135M; give `preferences.sources`.

    A label audit: does strength follow the votes?

    Everything but the data is as in `hh_smollm2`. Whole topics are held out: few arguments make
    all the pairs, and other splits would test on arguments that were trained on.
    """
    changes = {
        "recipe": "ukp-smollm2",
        "preferences": PreferencesConfig(
            sources=("ukp-arguments.jsonl.gz",),
            on_bad_rows="quarantine",
            on_ties="drop",
            max_tokens=160,
            max_pairs=2000,
            split_by="category",
            test_share=0.25,
        ),
        "sft": {"model": {"max_length": 160}},
    }
    return with_changes(hh_smollm2(), changes)


MISTRAL = "mistralai/Mistral-7B-v0.1"
HH_PARTS = ("helpful-base", "helpful-online", "helpful-rejection-sampled", "harmless-base")


def hh_7b() -> RunConfig:
    """Anthropic's HH pairs with Mistral-7B at the papers' constants; never run.

    A published constant says from where; the rest is free. Batches are those of the papers in
    pairs and responses; `micro_batch_tokens` holds two pairs of the greatest length, of whose
    layers only the input is kept. Trainers take all eight GPUs, in parts; reward models and
    Advantage Model four each, so that two train at once. Four sample for rehearsal and evaluation.

    Scorers have the terms of their papers: the reward model, for the arm `ppo_max_rm`, margins,
    SimCSE and imitation; the Advantage Model, for `full`, eq. 7. Left out are importance weights,
    as who wrote HH's answers is not published, and eta [META: 5e-6], which moves next to nothing.
    """
    # [RM, AM]: 5e-6, 1 epoch, warm-up 10 %, cosine to 10 %; batch 128 [PPO: at most 128 pairs].
    scorer = TrainConfig(
        learning_rate=5e-6,
        batch_size=128,
        micro_batch_tokens=2052,
        gradient_checkpointing=True,
        precision="bfloat16",
        num_ranks=8,
        zero=ZeroConfig(stage=2),
    )
    half = {"num_ranks": 4}
    reward = scorer.model_copy(update={"dropout": 0.05} | half)  # [RM: 0.05]
    # [PPO]: 9.5e-6, 2 epochs; its batch of 1,024 was for a million instructions.
    sft = scorer.model_copy(update={"learning_rate": 9.5e-6, "num_epochs": 2})
    ppo = _ppo_of_the_papers(scorer)
    return RunConfig(
        recipe="hh-7b",
        preferences=_all_of_hh(),
        sft=SFTConfig(model=ModelConfig(base=MISTRAL, max_length=513), train=sft),
        ensemble=EnsembleConfig(size=10, member=RewardModelConfig(train=reward)),  # [RM: M = 10]
        embedding_models=SENTENCE_MODELS,
        # [RM: 10 % and 20 %, a quarter of its strengths being below 0; margins by strength]
        relabel=RelabelConfig(flip_fraction=0.1, flip_below=0.0, margin_scale=0.3, margin_clip=1.0),
        reward_model=RewardModelConfig(
            train=reward, contrastive=ContrastiveConfig(), imitation_coef=1.0
        ),
        advantage_model=AdvantageModelConfig(
            train=scorer.model_copy(update={"batch_size": 180} | half),  # [AM: HH 180]
            expected_reward=ExpectedRewardConfig(max_new_tokens=128),
        ),
        rehearsal=RehearsalConfig(max_new_tokens=128, num_ranks=4),
        ppo=ppo,
        **budget_matched_sections(
            ppo,
            pairs=scorer.model_copy(update={"learning_rate": 1e-6, "batch_size": 64}),  # [DPO]
            answers=sft.model_copy(update={"batch_size": ppo.train_batch, "num_epochs": 5}),
            num_responses=8,
        ),
        arms=("ppo_max_rm", "full"),
        rounds=RoundsConfig(
            max_rounds=4,  # [META: Harmless is best in round 3 of 4]
            meta_rm=_meta_rm(scorer).model_copy(update={"redraw_prompts": True}),
            meta_rm_from=1,
            meta_rm_start="advantage_model",
        ),
        evaluate=EvaluateConfig(max_new_tokens=128, temperature=0.8, num_ranks=4),
    )


def hh_qwen_0_5b() -> RunConfig:
    """Anthropic's HH pairs with Qwen2.5-0.5B on one GPU of 24 GB, all layers; never run.

    Rates are those of TRL's examples for Qwen2-0.5B, but for PPO's, those of its example for a
    Pythia of 1 B and the papers' three times that for the critic; epochs and batches the papers'.
    Moments of 8 bits leave room to keep the activations of four pairs of the greatest length.
    """
    scorer = TrainConfig(
        learning_rate=1e-5,  # [TRL: reward_modeling.py]
        batch_size=64,  # half the papers' 128, as these are a quarter of their pairs
        micro_batch_tokens=4104,
        precision="bfloat16",
        optimiser="adamw_8bit",
    )
    return _single_gpu_recipe(
        "hh-qwen-0.5b",
        "Qwen/Qwen2.5-0.5B",
        scorer,
        sft=2e-5,  # [TRL: sft.py]
        dpo=5e-7,  # [TRL: dpo.py]
        ppo=3e-6,  # [TRL: ppo_tldr.py]
    )


def hh_qwen_1_5b_lora() -> RunConfig:
    """Anthropic's HH pairs with Qwen2.5-1.5B on one GPU of 24 GB, by adapters; never run.

    As `hh_qwen_0_5b`, but for rates ten times its own, as TRL's examples have them with LoRA.
    Layers are computed again: their activations would take what the models' weights leave.
    """
    scorer = _adapters(1e-4)  # [TRL: reward_modeling.py with LoRA]
    return _single_gpu_recipe(
        "hh-qwen-1.5b-lora",
        "Qwen/Qwen2.5-1.5B",
        scorer,
        sft=2e-4,  # [TRL: sft.py with LoRA]
        dpo=5e-6,  # [TRL: dpo.py with LoRA]
        ppo=3e-5,
    )


def hh_7b_lora() -> RunConfig:
    """Anthropic's HH pairs with Mistral-7B on one GPU of 80 GB, by adapters; never run.

    Rates are ten times the papers', which is about what adapters take in place of all weights
    (Schulman et al. 2025, LoRA Without Regret). Five members, 40,000 pairs, one round, and scorers
    without further terms.
    """
    return _single_gpu_recipe(
        "hh-7b-lora", MISTRAL, _adapters(5e-5), sft=9.5e-5, dpo=1e-5, ppo=5e-6
    )


def _adapters(learning_rate: float) -> TrainConfig:
    """LoRA, two pairs of the greatest length at once, of whose layers only the input is kept."""
    return TrainConfig(
        learning_rate=learning_rate,
        batch_size=64,
        micro_batch_tokens=2052,
        gradient_checkpointing=True,
        precision="bfloat16",
        lora=LoraConfig(),
    )


def _single_gpu_recipe(
    recipe: str, base: str, scorer: TrainConfig, *, sft: float, dpo: float, ppo: float
) -> RunConfig:
    """HH with every stage on one GPU; `sft`, `dpo`, `ppo`: learning rates."""
    reward = scorer.model_copy(update={"dropout": 0.05})  # [RM: 0.05]
    imitation = scorer.model_copy(update={"learning_rate": sft, "num_epochs": 2})  # [PPO: 2 epochs]
    policy = _ppo_of_the_papers(scorer).model_copy(
        update={"policy_learning_rate": ppo, "critic_learning_rate": 3.3 * ppo}
    )
    return RunConfig(
        recipe=recipe,
        preferences=_all_of_hh().model_copy(update={"max_pairs": 40_000}),
        sft=SFTConfig(model=ModelConfig(base=base, max_length=513), train=imitation),
        ensemble=EnsembleConfig(size=5, member=RewardModelConfig(train=reward)),
        embedding_models=SENTENCE_MODELS,
        relabel=RelabelConfig(flip_fraction=0.1, flip_below=0.0),
        reward_model=RewardModelConfig(train=reward),
        advantage_model=AdvantageModelConfig(train=scorer),
        rehearsal=RehearsalConfig(max_new_tokens=128, max_prompts=2048),
        ppo=policy,
        **budget_matched_sections(
            policy,
            pairs=scorer.model_copy(update={"learning_rate": dpo}),
            answers=imitation.model_copy(
                update={"batch_size": policy.train_batch, "num_epochs": 5}
            ),
            num_responses=8,
        ),
        arms=("full",),
        rounds=RoundsConfig(meta_rm=_meta_rm(scorer)),
        evaluate=EvaluateConfig(max_new_tokens=128, temperature=0.8),
    )


def _meta_rm(like: TrainConfig) -> MetaRMConfig:
    train = like.model_copy(update={"batch_size": 16})  # [META: batches 16, at 5e-6]
    return MetaRMConfig(train=train, max_new_tokens=128)


def _all_of_hh() -> PreferencesConfig:
    return PreferencesConfig(
        sources=tuple(f"Anthropic/hh-rlhf/{part}" for part in HH_PARTS),
        categories=tuple(part.partition("-")[0] for part in HH_PARTS),
        on_bad_rows="quarantine",
        max_tokens=512,
        validation_share=0.02,
        test_share=0.05,
        num_eval_prompts=400,
    )


def _ppo_of_the_papers(like: TrainConfig) -> PPOConfig:
    return PPOConfig(
        num_steps=100,  # [AM: 100]
        rehearsal_unit="response",
        rollout_batch=128,
        train_batch=32,
        policy_learning_rate=5e-7,
        critic_learning_rate=1.65e-6,
        ptx_coef=0.1,  # [PPO 6.4], measured in part-1, alignment-tax
        repetition_penalty=1.1,  # [PPO: 1.1]
        max_new_tokens=128,
        micro_batch_tokens=like.micro_batch_tokens,
        gradient_checkpointing=like.gradient_checkpointing,
        precision=like.precision,
        lora=like.lora,
        optimiser=like.optimiser,
        num_ranks=like.num_ranks,
        zero=None if like.zero is None else ZeroConfig(stage=3),
        scoring=ScorersConfig(safety_categories=("harmless",)),
    )
