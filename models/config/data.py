"""Where prompts, demonstrations and preference pairs come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trimtab.models.config.base import (
    Characters,
    Positive,
    Rows,
    Seed,
    StageConfig,
    Temperature,
    Tokens,
    require_different,
)
from trimtab.models.config.sampling import SamplingStageConfig

# Of a pair, where flips depend on how hard it is to judge: a label that is more often wrong than
# right would be one of another preference.
MAX_FLIP_PROBABILITY = 0.45
# Raised when the synthetic world's families, prompt sets or gold scorer change: figures of
# different versions are not comparable.
WORLD_VERSION = 2
# The task families of `trimtab.models.synthetic.tasks` have some 1,269,000 different prompts; the
# held-out family is drawn at most 40,500 times.
MAX_PROMPTS = 1_200_000
# Names of what a reward function is given, whatever columns the user names.
GIVEN_TO_REWARDS = frozenset(
    "prompt prompts response responses completions category messages columns".split()
)


def share_problems(config: ComparisonsConfig | PreferencesConfig) -> Iterator[str]:
    """Held-out shares that leave nothing to train on."""
    validation, test = config.validation_share, config.test_share
    if validation + test >= 1:
        yield (
            "validation_share and test_share must add up to less than 1, found "
            f"{validation:g} + {test:g}"
        )


class WorldConfig(StageConfig):
    """The synthetic world of the default recipe: its prompts and demonstrations."""

    seed: Seed = 0
    """Seed of prompts, demonstrations and corruption"""
    num_demonstrations: Rows = 6000
    """SFT examples"""
    corrupted_share: float = Field(0.45, ge=0, le=1)
    """Share of corrupted demonstrations outside expert families"""
    num_pair_prompts: Rows = 3500
    """Prompts that receive comparisons"""
    num_policy_prompts: Rows = 1500
    """Prompts PPO trains on"""
    num_policy_experts: int = Field(0, ge=0, le=10_000)
    """Demonstrated prompts of expert families that PPO trains on beside these, where so many are
    demonstrated; raised, rehearsed answers to PPO's prompts have more of what SFT is expert at"""
    num_eval_prompts: int = Field(300, gt=0, le=10_000)
    """Prompts per test and validation set"""

    def _problems(self) -> Iterator[str]:
        drawn = self.num_demonstrations + self.num_pair_prompts + self.num_policy_prompts
        drawn += 2 * self.num_eval_prompts
        if drawn > MAX_PROMPTS:
            yield (
                "num_demonstrations, num_pair_prompts, num_policy_prompts and twice "
                f"num_eval_prompts must add up to at most {MAX_PROMPTS:,}, found {drawn:,}: the "
                "world has hardly more different prompts"
            )


class ComparisonsConfig(SamplingStageConfig):
    """Sampling the SFT policy, and labelling pairs by simulated annotators."""

    seed: Seed = 0
    """Seed of sampling and of the annotators"""
    num_prompts: Rows | None = None
    """Prompts compared, drawn at random; none: all"""
    num_responses: int = Field(4, ge=2, le=9)
    """Responses sampled per prompt"""
    pairs_per_prompt: int = Field(1, ge=1, le=36)
    """Most pairs of a prompt's responses that are labelled"""
    temperature: Temperature = 1.0
    """Sampling temperature"""
    expert_temperature: Temperature = 1.5
    """Sampling temperature on prompts of the expert families, where SFT's answers at 1 hardly
    differ"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""
    flip_share: float = Field(0.2, ge=0, lt=0.5)
    """Share of clear pairs whose label is flipped"""
    noise: Literal["uniform", "by_difficulty"] = "uniform"
    """Which clear pairs are flipped: all with one probability, or the harder ones (close answers,
    hard task families) more often"""
    ambiguous_share: float = Field(0.1, ge=0, le=1)
    """Share of pairs that are near-ties, labelled at random"""
    clear_gap: float = Field(0.2, gt=0, le=1)
    """Smallest difference in quality of a clear pair"""
    sharpness: Positive = 12.0
    """Slope of the Bradley-Terry model over differences in raw score; raised, annotators err
    less"""
    validation_share: float = Field(0.1, gt=0, lt=1)
    """Share of prompts held out for validation"""
    test_share: float = Field(0.15, gt=0, lt=1)
    """Share of prompts held out for testing"""

    def _problems(self) -> Iterator[str]:
        if self.noise == "by_difficulty" and self.flip_share > MAX_FLIP_PROBABILITY:
            yield (
                f"flip_share must be at most {MAX_FLIP_PROBABILITY} with noise=by_difficulty, "
                f"found {self.flip_share}: no pair is flipped more often"
            )
        yield from share_problems(self)


class PreferencesConfig(StageConfig):
    """Reading people's preference data."""

    sources: tuple[str, ...] = ()
    """Files, folders, hub ids or s3:// addresses"""
    categories: tuple[str, ...] = ()
    """Category of each source, in order; a recipe's categories apply only if as many sources are
    given as it has"""
    format: str = Field("auto", min_length=1)
    """Preset that reads the rows, as in docs/how-to/own-preferences.md; auto: by the names of the
    columns"""
    columns: dict[str, str] = Field({})
    """What the sources call a column, by the name that Trimtab or a preset has for it, such as
    {prompt: question, chosen: better, rejected: worse}"""
    prompt_columns: tuple[str, ...] = ()
    """Columns that a reward function is given with the prompt, such as the answer that is right;
    all rows of a prompt must have the same there"""
    demonstrations: tuple[str, ...] = ()
    """Sources that SFT learns from in place of the chosen answers: rows of prompt + completion,
    messages, or text, as for TRL's SFTTrainer"""
    on_bad_rows: Literal["fail", "quarantine"] = "fail"
    """What happens to rows that cannot be read: fail the stage, or set them aside"""
    on_ties: Literal["fail", "drop"] = "fail"
    """What happens to tied comparisons: fail the stage, or leave them out"""
    max_characters: Characters = 20_000
    """Longest dialogue in characters"""
    max_tokens: int = Field(512, gt=1, le=1_048_576)
    """Longest prompt plus response in tokens"""
    tokenizer: str | None = Field(None, min_length=1)
    """Tokenizer that counts tokens and renders message lists; the run sets that of its base
    model"""
    max_pairs: Rows | None = None
    """Largest number of pairs used; none: all"""
    split_by: Literal["prompt", "category"] = "prompt"
    """What stays in one split: all pairs of a prompt, or of a category"""
    validation_share: float = Field(0.1, ge=0, lt=1)
    """Share held out for validation; 0 only where embedding models vote"""
    test_share: float = Field(0.15, ge=0, lt=1)
    """Share held out for testing; 0 only where embedding models vote"""
    num_eval_prompts: Rows = 64
    """Prompts on which policies are compared, in each set"""
    written_prompts: bool = False
    """Also compare policies on Trimtab's own prompts: sets `helpful` and `harmless`, with
    categories of these names"""
    flip_share: float = Field(0.0, ge=0, lt=0.5)
    """Share of clear training labels (all votes agree) flipped on purpose, to measure how many of
    them the audit finds"""
    annotator_labels: bool = False
    """Train on how likely a label is right (Dawid-Skene), where it is known who labelled what and
    several people labelled the pair"""
    seed: Seed = 0
    """Seed of the split"""

    def _problems(self) -> Iterator[str]:
        yield from share_problems(self)
        if self.categories and len(self.categories) != len(self.sources):
            yield (
                "categories must be empty or one for each source, found "
                f"{len(self.categories)} for {len(self.sources)} sources"
            )
        for name in ("sources", "demonstrations", "prompt_columns"):
            require_different(name, getattr(self, name))
        if taken := sorted({*self.prompt_columns} & GIVEN_TO_REWARDS):
            yield (
                f"prompt_columns must not be {', '.join(sorted(GIVEN_TO_REWARDS))}, names of "
                f"Trimtab's own, found {taken[0]}"
            )
        if self.prompt_columns and self.written_prompts:
            yield (
                "prompt_columns must be empty with written_prompts, found "
                f"{', '.join(self.prompt_columns)}: those prompts have no columns"
            )
