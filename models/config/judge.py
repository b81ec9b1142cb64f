"""Judges: the language model that answers, its endpoint, and what it is asked.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267.
[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from trimtab.models.config.base import (
    LIMIT,
    MAY_BE_SECRET,
    Characters,
    Positive,
    Rows,
    Seed,
    Share,
    StageConfig,
    Tokens,
    Weight,
)

ConfigT = TypeVar("ConfigT", bound=BaseModel)
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
BLOCK = r"^[a-z0-9]+(-[a-z0-9]+)*$"


def _checked(pattern: str, whose: str) -> AfterValidator:
    """A check that does not show the value, which may be the key itself, as pydantic's would."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError(MAY_BE_SECRET, f"must be the name of {whose}, not the key")
        return value

    return AfterValidator(check)


_OF_VARIABLES = WithJsonSchema({"type": "string", "pattern": VARIABLE})
_OF_BLOCKS = WithJsonSchema({"type": "string", "pattern": BLOCK})
Variable = Annotated[str, _checked(VARIABLE, "an environment variable"), _OF_VARIABLES]
Block = Annotated[str, _checked(BLOCK, "a Secret block (small letters, digits, -)"), _OF_BLOCKS]


def plain_address(value: str) -> str:
    """An address without what may be a secret, and without a slash at its end; else ValueError."""
    parts = urlsplit(value)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise PydanticCustomError(
            MAY_BE_SECRET,
            "must hold no user, password, query or fragment: a key belongs in the environment "
            "variable that key_variable names",
        )
    is_usable = value.isprintable() and " " not in value and parts.port != 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_usable:
        raise ValueError("must be an http:// or https:// address")
    return value.rstrip("/")


class ServerConfig(StageConfig):
    """How a server is asked. Its key is in the environment or a block, never here."""

    key_variable: Variable
    key_block: Block | None = None
    """Prefect's Secret block that holds the key, in place of the variable"""
    max_concurrency: int = Field(8, gt=0, le=256)
    """Requests under way at once (free)"""
    timeout_seconds: Positive = 120.0
    """Longest wait for one answer (free)"""
    max_retries: int = Field(6, ge=0, le=1000)
    """Retries of a failed request (free)"""
    first_wait_seconds: Positive = 1.0
    """Wait before the first retry; it doubles from retry to retry"""
    max_wait_seconds: Positive = 60.0
    """Longest wait before a retry; an endpoint that asks for more ends the stage"""

    @property
    def address(self) -> str:
        """As an operator allows it."""
        raise NotImplementedError


class EndpointConfig(ServerConfig):
    """An OpenAI-compatible endpoint. Its key is in the environment or a block, never here."""

    base_url: str = "https://api.openai.com/v1"
    """Address up to and including /v1"""
    model: str = Field(min_length=1)
    """Name of the model, as the endpoint knows it"""
    key_variable: Variable = "OPENAI_API_KEY"
    """Environment variable that holds the key; unset, none is sent"""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the request's field that limits an answer's tokens"""
    input_price: Weight = 0.0
    """Price of a million tokens of requests"""
    output_price: Weight = 0.0
    """Price of a million tokens of answers"""
    max_cost: Annotated[float | None, LIMIT] = Field(None, gt=0, le=1e9)
    """Most that all stages of a run may spend on this endpoint, in the prices' currency; none: no
    limit"""
    max_total_tokens: Annotated[int | None, LIMIT] = Field(None, gt=0, le=10**15)
    """Most tokens, in requests and answers together, that all stages of a run may use; none: no
    limit"""

    @property
    def is_limited(self) -> bool:
        """Whether cost or tokens are limited."""
        return self.max_cost is not None or self.max_total_tokens is not None

    @property
    def limits_in_words(self) -> str:
        """`max_cost = 5 and max_total_tokens = 1000`; empty without a limit."""
        limits = {name: getattr(self, name) for name in ("max_cost", "max_total_tokens")}
        return " and ".join(f"{k} = {v:.6g}" for k, v in limits.items() if v is not None)

    @property
    def address(self) -> str:
        """As an operator allows it."""
        return self.base_url

    _is_plain_address = field_validator("base_url")(plain_address)

    def _problems(self) -> Iterator[str]:
        if self.max_cost is not None and not self.input_price and not self.output_price:
            yield (
                f"max_cost is {self.max_cost}, but input_price and output_price are 0: the cost "
                "would be unknown; give the prices of a million tokens, or max_total_tokens"
            )


def servers_of(config: BaseModel) -> Iterator[ServerConfig]:
    """The servers in a configuration, itself or anywhere below."""
    if isinstance(config, ServerConfig):
        yield config
    for name in type(config).model_fields:
        value = getattr(config, name)
        for section in value if isinstance(value, tuple) else (value,):
            if isinstance(section, BaseModel):
                yield from servers_of(section)


def endpoints_of(config: BaseModel) -> Iterator[EndpointConfig]:
    """Those of them that are endpoints of chat models, which may cost money."""
    return (server for server in servers_of(config) if isinstance(server, EndpointConfig))


Rubric = Literal["helpfulness", "harmlessness", "summarisation"]


class ChatModelConfig(StageConfig):
    """A chat model. Exactly one of endpoint, local_model and gold_accuracy is given."""

    endpoint: EndpointConfig | None = None
    """Judge behind an HTTP address"""
    local_model: str | None = Field(None, min_length=1)
    """Judge in this process: packaged model, folder or hub id"""
    gold_accuracy: float | None = Field(None, ge=0.5, le=1)
    """The synthetic world's gold scorer as judge, right in this share of verdicts"""
    temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature of the judge's answers"""
    max_characters: Characters = 6000
    """Longest dialogue, and longest response, shown to the judge (free)"""

    def _problems(self) -> Iterator[str]:
        names = ("endpoint", "local_model", "gold_accuracy")
        judges = [name for name in names if getattr(self, name) is not None]
        if len(judges) != 1:
            yield (
                "exactly one of endpoint, local_model and gold_accuracy must be given, found "
                f"{' and '.join(judges) or 'none'}"
            )


class JudgeConfig(ChatModelConfig):
    """A judge and how it is asked. Exactly one of endpoint, local_model, gold_accuracy is given."""

    rubric: Rubric = "helpfulness"
    """Criteria that the judge is given"""
    constitution: str | None = Field(None, min_length=1)
    """Principles; one, drawn at random for each comparison, decides it: `harmlessness`, a file, a
    folder or an s3:// address; none: the rubric alone"""
    num_examples: int = Field(0, ge=0, le=8)
    """Worked comparisons shown first [RLAIF: 0-8]"""
    chain_of_thought: bool = False
    """Let the judge write its reasoning before it answers [RLAIF: helps]"""
    num_samples: int = Field(1, gt=0, le=1000)
    """Answers sampled for each question, whose mean is used (self-consistency) [RLAIF: 1 is
    best]"""
    top_logprobs: int = Field(20, ge=0, le=20)
    """Likeliest tokens requested, from which the verdict's probabilities are read; 0: the answer's
    text is read instead"""
    min_mass: float = Field(0.1, ge=0, lt=1)
    """Least probability that A and B, or all ratings, must have together for token probabilities to
    be used; below it the answer's text is read (free)"""
    max_answer_tokens: int = Field(16, gt=1, le=1_048_576)
    """Longest answer in tokens (free)"""
    max_thought_tokens: Tokens = 256
    """Longest reasoning in tokens (free)"""
    clamp: tuple[Share, Share] | None = None
    """Bounds to which the preference probability is clamped [CAI: .4, .6 with chain_of_thought];
    none: not clamped"""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.num_samples > 1 and self.temperature == 0:
            yield (
                f"num_samples is {self.num_samples} at temperature 0, where all samples are "
                "equal: raise temperature, or set num_samples to 1"
            )
        if self.num_samples > 1 and self.top_logprobs and not self.chain_of_thought:
            yield (
                f"num_samples is {self.num_samples}, but without chain_of_thought all samples "
                "have the same token probabilities: set chain_of_thought, or top_logprobs to 0"
            )
        if self.clamp is not None and not 0 <= self.clamp[0] <= 0.5 <= self.clamp[1] <= 1:
            yield (
                f"clamp must be two bounds with 0 <= low <= 0.5 <= high <= 1, found {self.clamp}"
            )


def rating(judge: JudgeConfig | None) -> JudgeConfig | None:
    """A judge of single responses; ValueError where it has settings of comparisons."""
    for name in ("constitution", "clamp", "num_examples"):
        if judge is not None and getattr(judge, name):
            raise ValueError(
                f"{name} is {getattr(judge, name)!r}, but this judge rates single responses and "
                f"{name} is about comparisons of two: leave it out"
            )
    return judge


class JudgedPairsConfig(StageConfig):
    """A judge, and which preference pairs it compares."""

    judge: JudgeConfig
    categories: tuple[str, ...] | None = Field(None, min_length=1)
    """Categories whose pairs are judged; none: all"""
    max_pairs: Rows | None = None
    """Largest number of pairs of each split; the first are taken; none: all"""
    pairs_at_once: Rows = 256
    """Pairs between two reports and checkpoints"""
    seed: Seed = 0
    """Seed of sampled answers and of the gold judge's errors"""


class JudgePreferencesConfig(JudgedPairsConfig):
    """A judge compares the two answers of preference pairs [RLAIF section 2.1]."""

    splits: tuple[Literal["train", "validation", "test"], ...] = Field(("train",), min_length=1)
    """Splits whose pairs are judged"""


class HarmlessConfig(StageConfig):
    """The judge that says whether answers to harmful requests are harmless [RLAIF 2.3]."""

    judge: JudgeConfig
    categories: tuple[str, ...] = Field(min_length=1)
    """Categories of the harmful prompts"""

    _rates = field_validator("judge")(rating)

    def _problems(self) -> Iterator[str]:
        if self.judge.rubric != "harmlessness":
            yield (
                f"judge.rubric must be harmlessness, found {self.judge.rubric}: this judge is "
                "asked whether answers do harm"
            )


class AILabelsConfig(StageConfig):
    """A judge's preferences as labels of the training pairs that it compared [RLAIF section 2.1].

    All other pairs keep their labels.
    """

    soft: bool = True
    """Labels are the judge's probabilities [RLAIF]; if off, 1 for what it prefers"""


MAX_NAME = 40
JudgeName = Annotated[
    str,
    Field(
        max_length=MAX_NAME,
        pattern=r"^[a-z0-9]([a-z0-9_.-]*[a-z0-9])?$",
        description="Name of the judge in results: small letters, digits, `_`, `.` and `-`",
    ),
]


class VotingJudgeConfig(JudgedPairsConfig):
    """A judge that votes on labels: the log-odds of its preference are its vote."""

    name: JudgeName

    def comparing(self) -> JudgePreferencesConfig:
        """What it is asked: to compare the pairs of all splits."""
        return JudgePreferencesConfig(
            **{name: getattr(self, name) for name in JudgedPairsConfig.model_fields},
            splits=("train", "validation", "test"),
        )


class JudgeAnswersConfig(StageConfig):
    """A judge compares the answers of every two policies to the same prompts."""

    name: JudgeName
    judge: JudgeConfig
    sets: tuple[str, ...] | None = Field(None, min_length=1)
    """Prompt sets whose answers are judged; none: all but `validation`"""
    categories: tuple[str, ...] | None = Field(None, min_length=1)
    """Categories of prompts whose answers are judged; none: all"""
    max_prompts: Rows | None = None
    """Most prompts of each set and seed; the first are taken; none: all"""
    pairs_at_once: Rows = 256
    """Pairs between two reports and checkpoints"""
    seed: Seed = 0
    """Seed of sampled answers, principles and the gold judge's errors"""

    @field_validator("name")
    @classmethod
    def _is_its_own(cls, value: str) -> str:
        if value == "gold" or value.startswith("judge_"):
            raise ValueError(
                f"must not be gold and not begin with judge_, found {value}: these names are those "
                "of the gold scorer and of held-out reward models"
            )
        return value
