"""The base class of all stage configurations, and number types with bounds.

Bounds are wide: they refuse impossible values, not unusual ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema

# The largest seed that numpy and scikit-learn accept.
LARGEST_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
# 1,000 times a run's seed is added to the seeds of its stages (`seeded` of a run).
RunSeed = Annotated[int, Field(ge=0, le=4_000_000)]
# Rows, pairs, prompts or answers.
Rows = Annotated[int, Field(gt=0, le=10_000_000)]
# Answers to one prompt, bootstrap resamples, clusters.
Count = Annotated[int, Field(gt=0, le=100_000)]
Steps = Annotated[int, Field(gt=0, le=1_000_000)]
# Passes over the data, or repetitions of a procedure.
Passes = Annotated[int, Field(gt=0, le=10_000)]
# Tokens of one text.
Tokens = Annotated[int, Field(gt=0, le=1_048_576)]
Characters = Annotated[int, Field(gt=0, le=100_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1e6, le=1e6)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
# Of sampling, or of similarities. Logits are divided by it.
Temperature = Annotated[float, Field(ge=1e-4, le=100)]
# Weight of a term, or another number that may be 0.
Weight = Annotated[float, Field(ge=0, le=1e6)]
# Prompts that a policy is trained on.
PolicyPrompts = Annotated[
    Literal["policy", "held_out"],
    Field(
        description="Whose prompts are answered: those for training policies, or, to adapt to them "
        "without labels, those of the synthetic world's held-out family [RM figure 15]"
    ),
]
# Above 0: a scale, a clip or a slope. What is divided by it stays finite in float32.
Positive = Annotated[float, Field(ge=1e-6, le=1e6)]
# Type of a validation error whose message must not show the value, which may be a key.
MAY_BE_SECRET = "may_be_secret"
# Marks a field that decides whether a stage finishes, but not its result.
LIMIT = "limit"


class StageConfig(BaseModel):
    """Base of the settings of stages and runs: frozen, numbers finite, unknown keys refused.

    A field's description is the text below it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def _problems(self) -> Iterator[str]:
        """Mistakes in how values fit together, a sentence each; the first one is raised."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Descriptions are one line, however they are broken in the source."""
        for field in cls.__pydantic_fields__.values():
            if field.description is not None:
                field.description = " ".join(field.description.split())
        return handler(source)


def require_different(name: str, values: Sequence[str]) -> None:
    """Raise ValueError if the field `name` has a value twice, or an empty text."""
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{name} must differ, found {', '.join(twice)} more than once")
    if "" in values:
        raise ValueError(f"{name} must not be empty, found '' among {len(values)}")


def last_part(path: str) -> str:
    """The name of a file or folder, or of a model of the hub, without what stands before it."""
    return path.rstrip("/").rpartition("/")[2]


def values_in_key(config: BaseModel) -> dict[str, Any]:
    """The settings that enter the stage's key, as JSON values: all but the limits."""
    values = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if LIMIT in field.metadata:
            del values[name]
        elif isinstance(value, BaseModel):
            values[name] = values_in_key(value)
    return values
