"""The configuration of an endpoint that answers. Imports no torch, as `models.config` does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from models.config_numbers import Scale, Weight
from models.config_parts import LIMIT, MAY_BE_SECRET, StageConfig

ConfigT = TypeVar("ConfigT", bound=BaseModel)

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
BLOCK = r"^[a-z0-9]+(-[a-z0-9]+)*$"


def _checked(pattern: str, whose: str) -> AfterValidator:
    """A pattern of pydantic's own would show what it found, which may be the key itself."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError(MAY_BE_SECRET, f"must be the name of {whose}, not the key")
        return value

    return AfterValidator(check)


_OF_VARIABLES = WithJsonSchema({"type": "string", "pattern": VARIABLE})
_OF_BLOCKS = WithJsonSchema({"type": "string", "pattern": BLOCK})
Variable = Annotated[str, _checked(VARIABLE, "an environment variable"), _OF_VARIABLES]
Block = Annotated[str, _checked(BLOCK, "a Secret block (small letters, digits, -)"), _OF_BLOCKS]


class EndpointConfig(StageConfig):
    """An OpenAI-compatible endpoint. Its key is in the environment or a block, never here."""

    base_url: str = Field(
        "https://api.openai.com/v1", description="Address up to and including /v1"
    )
    model: str = Field(min_length=1, description="Name of the model, as the endpoint knows it")
    key_variable: Variable = Field(
        "OPENAI_API_KEY",
        description="Environment variable that holds the key; unset, none is sent",
    )
    key_block: Block | None = Field(
        None,
        description="Prefect's Secret block that holds the key, in place of the variable",
    )
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="What the endpoint calls the limit of an answer's tokens"
    )
    max_concurrency: int = Field(8, gt=0, le=256, description="Requests under way at once (free)")
    timeout_seconds: Scale = Field(120.0, description="Longest wait for one answer (free)")
    max_retries: int = Field(6, ge=0, le=1000, description="Further tries of one request (free)")
    first_wait_seconds: Scale = Field(
        1.0, description="Wait before the first further try; it doubles from try to try"
    )
    max_wait_seconds: Scale = Field(
        60.0, description="Longest such wait; an endpoint that asks for more ends the stage"
    )
    input_price: Weight = Field(0.0, description="Price of a million tokens of requests")
    output_price: Weight = Field(0.0, description="Price of a million tokens of answers")
    max_cost: Annotated[float | None, LIMIT] = Field(
        None,
        gt=0,
        le=1e9,
        description="Most that a run spends here, in the prices' currency; its stages that ask "
        "have a share each; none: no limit",
    )
    max_total_tokens: Annotated[int | None, LIMIT] = Field(
        None,
        gt=0,
        le=10**15,
        description="Most tokens of requests and answers together, shared out alike; none: no "
        "limit",
    )

    @field_validator("base_url")
    @classmethod
    def _is_plain_address(cls, value: str) -> str:
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

    @model_validator(mode="after")
    def _a_cost_has_prices(self) -> Self:
        if self.max_cost is not None and not self.input_price and not self.output_price:
            raise ValueError(
                f"max_cost is {self.max_cost}, but input_price and output_price are 0: the cost "
                "could not be told; give the prices of a million tokens, or max_total_tokens"
            )
        return self


def endpoints_of(config: BaseModel) -> Iterator[EndpointConfig]:
    """The endpoints in a configuration, itself or anywhere below."""
    if isinstance(config, EndpointConfig):
        yield config
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from endpoints_of(value)


def with_share(config: ConfigT, number: int) -> ConfigT:
    """A configuration with an even share, one of so many, of its endpoints' limits."""
    changes: dict[str, Any] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            changes[name] = with_share(value, number)
    if isinstance(config, EndpointConfig):
        if config.max_cost is not None:
            changes["max_cost"] = config.max_cost / number
        if config.max_total_tokens is not None:
            changes["max_total_tokens"] = config.max_total_tokens // number
    return config.model_copy(update=changes)
