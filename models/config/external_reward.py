"""Rewards that somebody else brings: a reward model, a server, a Python function, a panel of them.

All of them are given text, and make their own tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from trimtab.models.config.base import Rows, StageConfig, Weight, last_part
from trimtab.models.config.judge import JudgeConfig, ServerConfig, Variable, plain_address, rating
from trimtab.models.config.training import Precision

# package.module:function
FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
KINDS = ("model", "server", "function", "judge", "panel")
WireFormat = Literal["openrlhf", "remote_rm", "classify", "classify_messages"]


class RewardServerConfig(ServerConfig):
    """A reward server in another project's wire format."""

    url: str
    """Whole address that requests are posted to, such as http://127.0.0.1:5000/get_reward"""
    format: WireFormat
    """openrlhf: OpenRLHF's /get_reward, several texts a request; remote_rm: the remote_rm of slime
    and miles, one answer a request; classify: /classify of vLLM, as verl asks it, several texts a
    request; classify_messages: the same of one dialogue, which the server's chat template writes"""
    model: str | None = Field(None, min_length=1)
    """Name of the model, as the server knows it (format=classify, classify_messages)"""
    end_text: str = ""
    """Sent behind each answer, such as </s>: what the server's model reads its score at, where the
    server does not append it, as OpenRLHF's (free)"""
    key_variable: Variable = "TRIMTAB_REWARD_KEY"
    """Environment variable that holds the key; unset, none is sent"""
    batch_size: Rows = 64
    """Answers in one request, where the format takes several (free)"""

    _is_plain_address = field_validator("url")(plain_address)

    @property
    def address(self) -> str:
        """As an operator allows it."""
        return self.url

    def _problems(self) -> Iterator[str]:
        is_named = self.format in ("classify", "classify_messages")
        if (self.model is None) == is_named:
            allowed = "a name" if is_named else "none"
            yield (
                f"model must be {allowed} where format is {self.format}, found "
                f"{self.model or 'none'}"
            )
        if self.end_text and self.format == "classify_messages":
            yield (
                "end_text must be empty where format is classify_messages, whose chat template "
                f"ends a dialogue, found {self.end_text!r}"
            )


class RewardMemberConfig(StageConfig):
    """One reward. Exactly one of model, server, function and judge is given."""

    model: str | None = Field(None, min_length=1)
    """Reward model of any family and size: folder or hub id of an
    AutoModelForSequenceClassification with one label, in safetensors; it reads answers by its own
    tokenizer and chat template"""
    server: RewardServerConfig | None = None
    """Reward server behind an HTTP address"""
    function: str | None = None
    """Python function `package.module:function`, called in the trainer's process with the prompts
    and the responses, two lists of text, and the columns of the prompts that it names; it returns a
    number for each"""
    judge: JudgeConfig | None = None
    """Language model that rates each answer [RLAIF 2.2.2]"""

    _rates = field_validator("judge")(rating)

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(FUNCTION, name):
            raise ValueError(f"found {name!r}; allowed: package.module:function")
        return name

    @property
    def kinds(self) -> list[str]:
        """What is given."""
        return [name for name in KINDS if getattr(self, name, None)]

    @property
    def label(self) -> str:
        """What it is called in errors and on pages."""
        if self.server is not None:
            return f"reward server {self.server.url}"
        if self.judge is not None:
            endpoint = self.judge.endpoint
            return f"judge {endpoint.model if endpoint else self.judge.local_model or 'gold'}"
        return f"reward {'model' if self.model else 'function'} {self.model or self.function}"

    @property
    def short_label(self) -> str:
        """The same without the folders that a model lies in, for pages that others may see."""
        return f"reward model {last_part(self.model)}" if self.model else self.label

    def _problems(self) -> Iterator[str]:
        if len(self.kinds) != 1:
            allowed = [name for name in type(self).model_fields if name in KINDS]
            yield (
                f"exactly one of {', '.join(allowed[:-1])} and {allowed[-1]} must be given, found "
                f"{' and '.join(self.kinds) or 'none'}"
            )


class RewardConfig(RewardMemberConfig):
    """A reward from outside. Exactly one of model, server, function, judge and panel is given.

    Policies are optimised against it, in place of scorers that the run would train.
    """

    panel: tuple[RewardMemberConfig, ...] = Field((), max_length=20)
    """Several rewards that become one. Each is standardised first: its mean over the answers of the
    validation pairs is taken off, and it is divided by its standard deviation over them"""
    combine: Literal["mean", "median"] = "mean"
    """What the panel's standardised scores become"""
    std_coef: Weight = 0.0
    """Times their standard deviation is taken off; raised, answers on which the panel disagrees
    score lower (free)"""

    @property
    def members(self) -> tuple[RewardMemberConfig, ...]:
        """Those of the panel, or the one reward."""
        return self.panel or (self,)

    @property
    def label(self) -> str:
        """What it is called in errors and on pages."""
        return f"panel of {len(self.panel)} rewards" if self.panel else super().label

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if len(self.panel) == 1:
            yield "panel must have 2 to 20 members, found 1: give it without a panel"


class ExternalRewardVotesConfig(StageConfig):
    """Scores of the pairs by a reward that the user has."""

    reward: RewardMemberConfig
    precision: Precision = "auto"
    """Data type of the products of a reward model's layers"""

    @property
    def members(self) -> tuple[RewardMemberConfig, ...]:
        """The one reward."""
        return (self.reward,)
