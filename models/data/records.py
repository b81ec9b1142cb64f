"""Records that stages exchange: preference pairs, votes and references to artifacts."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RecordError(ValueError):
    """A record that does not hold what its class demands."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file."""
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


@dataclass(frozen=True, slots=True)
class Votes:
    """How many annotators preferred the chosen answer, the rejected one, or neither."""

    chosen: int
    rejected: int
    equal: int = 0

    def __post_init__(self) -> None:
        if min(self.chosen, self.rejected, self.equal) < 0:
            raise RecordError(f"Votes: found {self!r}, allowed: counts of 0 or more")


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one annotator said about a pair. prefers: "chosen", "rejected" or "equal"."""

    annotator: str
    prefers: str

    def swapped(self) -> Opinion:
        """The same opinion of the pair with the other label."""
        other = {"chosen": "rejected", "rejected": "chosen"}
        return Opinion(self.annotator, other.get(self.prefers, self.prefers))


@dataclass(frozen=True, slots=True)
class PairMessages:
    """The messages that a pair's texts were made of, each {role, content} and what else it came
    with (`tool_calls`, `name`)."""

    prompt: list[dict[str, Any]]
    chosen: list[dict[str, Any]]
    rejected: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One comparison as it was given; no stage changes it.

    prompt: the whole dialogue up to the last assistant turn; chosen, rejected: only the answer.
    rating: 1 (barely better) to 4 (much better). source: "file:line". opinions: who voted
    how, where that is known. group: id shared by the pairs of one ranking. messages: the original
    messages; None where the pair came as text. columns: of the user's, for reward functions; None
    where the settings name none.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str
    category: str | None = None
    rating: int | None = None
    votes: Votes | None = None
    group: str | None = None
    source: str = ""
    opinions: tuple[Opinion, ...] | None = None
    messages: PairMessages | None = None
    columns: dict[str, Any] | None = None

    @property
    def columns_entry(self) -> dict[str, Any]:
        """Its columns as an entry of a row; empty where there are none."""
        return {} if self.columns is None else {"columns": self.columns}

    def swapped(self) -> PreferencePair:
        """The pair with the other label."""
        votes, messages = self.votes, self.messages
        return dataclasses.replace(
            self,
            chosen=self.rejected,
            rejected=self.chosen,
            votes=votes and Votes(votes.rejected, votes.chosen, votes.equal),
            opinions=self.opinions and tuple(opinion.swapped() for opinion in self.opinions),
            messages=messages and PairMessages(messages.prompt, messages.rejected, messages.chosen),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields, in order of declaration, as values that `json.dumps` takes.

        Without `opinions` where nobody's are known, `messages` where it came as text, `columns`
        where none are wanted.
        """
        values = dataclasses.asdict(self)
        for name in ("opinions", "messages", "columns"):
            if values[name] is None:
                del values[name]
        return values


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Names one published artifact; `digest` is the sha256 over its files."""

    stage: str
    key: str
    digest: str
