"""Where each row of people's preferences went: used, quarantined or left out. Loads no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_NAMES, MAX_CHARACTERS = 12, 60


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows. Every row that was read is in exactly one place:

    read = used + quarantined + ties_dropped + over_limit + unpaired.

    used: at least one of the row's pairs is in a split (a ranking gives several). quarantined:
    refused, kept aside with the reasons. ties_dropped: nobody won, and `on_ties` drops such rows.
    over_limit: good, but `max_pairs` left out all of its pairs. unpaired: one answer to a
    prompt, which has none of the other kind. Blank lines are no rows.
    """

    read: int
    used: int
    quarantined: int
    ties_dropped: int
    over_limit: int
    unpaired: int = 0

    def __post_init__(self) -> None:
        places = dataclasses.astuple(self)[1:]
        if self.read != sum(places) or min(places) < 0:
            raise ValueError(f"rows do not add up: {self}")


@dataclass(frozen=True)
class RowAccount:
    """The account of what stage `preferences` read.

    quarantined_by_reason: rows by their first reason (`trimtab.models.data.problems.REASONS`).
    by_source: the same counts of every source. max_pairs: the limit, None without one.
    pairs_found: of all good rows; pairs_used: of them those in a split.

    Of the used pairs, all of which stay in use: repeated, whose three texts an earlier used pair
    has, in order of reading; contradicting, whose answers an earlier used pair has the other way
    round; with_votes, that carry several people's votes; against_votes, of these the ones where
    more people preferred the answer labelled worse; with_scores, whose rows hold scores of both
    answers, or a margin; against_scores, of these the ones whose own scores prefer the answer
    labelled worse.

    ignored_fields: fields that mean nothing here, and in how many good rows; ignored_files: files
    of folders that hold no data. demonstrations: read = learned + held_out + quarantined; empty
    where none were given.
    """

    rows: RowCounts
    by_source: dict[str, RowCounts]
    quarantined_by_reason: dict[str, int]
    max_pairs: int | None
    pairs_found: int
    pairs_used: int
    repeated: int
    contradicting: int
    with_votes: int
    against_votes: int
    ignored_fields: dict[str, int] = field(default_factory=dict)
    ignored_files: list[str] = field(default_factory=list)
    demonstrations: dict[str, int] = field(default_factory=dict)
    with_scores: int = 0
    against_scores: int = 0

    def __post_init__(self) -> None:
        for name in (item.name for item in dataclasses.fields(RowCounts)):
            parts = sum(getattr(counts, name) for counts in self.by_source.values())
            if parts != getattr(self.rows, name):
                raise ValueError(f"sources' {name} rows come to {parts}, not {self.rows}")
        if sum(self.quarantined_by_reason.values()) != self.rows.quarantined:
            raise ValueError(f"reasons {self.quarantined_by_reason} do not add up: {self.rows}")

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RowAccount:
        """The inverse of `dataclasses.asdict`."""
        by_source = {key: RowCounts(**counts) for key, counts in values["by_source"].items()}
        return RowAccount(**{**values, "rows": RowCounts(**values["rows"]), "by_source": by_source})

    @property
    def num_refused(self) -> int:
        """Lines of the quarantine's file: rows, and demonstrations."""
        return self.rows.quarantined + self.demonstrations.get("quarantined", 0)

    def numbers(self) -> dict[str, Any]:
        """For scripts: rows that were read, used and not used, and why."""
        rows = self.rows
        return {
            "read": rows.read,
            "used": rows.used,
            "refused": rows.quarantined,
            "refused_by_reason": self.quarantined_by_reason,
            "tied": rows.ties_dropped,
            "over_limit": rows.over_limit,
            "unpaired": rows.unpaired,
            "duplicates": self.repeated,
            "contradicting": self.contradicting,
        }

    def sentence(self) -> str:
        """All rows in one line, as a sum."""
        rows = self.rows
        parts = [f"{rows.used:,} used"]
        if rows.quarantined:
            parts.append(f"{rows.quarantined:,} quarantined ({self.reasons()})")
        if rows.ties_dropped:
            parts.append(f"{rows.ties_dropped:,} ties dropped")
        if rows.over_limit:
            parts.append(f"{rows.over_limit:,} left out by max_pairs={self.max_pairs}")
        if rows.unpaired:
            parts.append(f"{rows.unpaired:,} without an answer of the other kind")
        return f"{rows.read:,} rows read = {' + '.join(parts)}"

    def reasons(self) -> str:
        """Why rows were quarantined, the most frequent reason first."""
        ordered = sorted(self.quarantined_by_reason.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count:,} {reason}" for reason, count in ordered)

    def details(self) -> list[str]:
        """Sentences about the used rows, and about what was ignored."""
        found = []
        if self.pairs_used != self.rows.used:
            found.append(f"the used rows give {self.pairs_used:,} pairs")
        found.append(f"used pairs that repeat an earlier one: {self.repeated:,}")
        found.append(
            "used pairs that contradict an earlier one (the same answers the other way round): "
            f"{self.contradicting:,}"
        )
        if self.with_votes:
            found.append(
                "used pairs with a label against most of people's votes: "
                f"{self.against_votes:,} of {self.with_votes:,} that have votes"
            )
        if self.with_scores:
            found.append(
                "used pairs with a label against their own scores or margin: "
                f"{self.against_scores:,} of {self.with_scores:,} that have some"
            )
        if self.ignored_fields:
            names = [f"{_cut(name)} ({rows:,})" for name, rows in self.ignored_fields.items()]
            found.append(f"fields that were ignored, and in how many rows: {_listed(names)}")
        if self.ignored_files:
            found.append(f"files that were ignored: {_listed(self.ignored_files)}")
        if self.demonstrations:
            parts = {name.replace("_", " "): number for name, number in self.demonstrations.items()}
            read = parts.pop("read")
            told = " + ".join(f"{number:,} {name}" for name, number in parts.items())
            found.append(f"{read:,} demonstrations read = {told}")
        return found

    def warnings(self) -> list[str]:
        """What is missing of the data, and what to do about it."""
        found, rows = [], self.rows
        if self.pairs_used < self.pairs_found:
            found.append(
                f"preferences.max_pairs={self.max_pairs} left out "
                f"{self.pairs_found - self.pairs_used:,} of {self.pairs_found:,} good pairs, drawn "
                "at random: they are in no split. preferences.max_pairs=null uses all."
            )
        if 2 * self.against_scores > self.with_scores:
            found.append(
                f"{self.against_scores:,} of {self.with_scores:,} labels are against the scores of "
                "their own rows: are chosen and rejected, or the scores, the wrong way round?"
            )
        if self.num_refused:
            read = rows.read + self.demonstrations.get("read", 0)
            found.append(
                f"{self.num_refused:,} of {read:,} rows were refused and are not used: "
                "quarantine.jsonl has each with its file, its line and what is wrong."
            )
        return found


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - MAX_NAMES
    return ", ".join([*names[:MAX_NAMES], *([f"and {more:,} more"] if more > 0 else [])])


def _cut(name: str) -> str:
    return name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}…"
