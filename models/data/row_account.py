"""Where each row of people's preferences went: used, quarantined or left out; and what the pairs
that are left look like. Loads no torch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.models.data.records import PreferencePair

MAX_NAMES, MAX_CHARACTERS = 12, 60


@dataclass
class RowCounts:
    """Counts of rows. Every row that was read is in exactly one place:

    read = used + quarantined + ties_dropped + over_limit + unpaired.

    used: at least one of the row's pairs is in a split (a ranking gives several). quarantined:
    refused, kept aside with the reasons. ties_dropped: nobody won, and `on_ties` drops such rows.
    over_limit: good, but `max_pairs` left out all of its pairs. unpaired: one answer to a
    prompt, which has none of the other kind. Blank lines are no rows.
    """

    read: int = 0
    used: int = 0
    quarantined: int = 0
    ties_dropped: int = 0
    over_limit: int = 0
    unpaired: int = 0

    def check(self) -> None:
        """Raise ValueError where a row was lost."""
        places = dataclasses.astuple(self)[1:]
        if self.read != sum(places) or min(places) < 0:
            raise ValueError(f"rows do not add up: {self}")

    @staticmethod
    def total(parts: Iterable[RowCounts]) -> RowCounts:
        """The sums of counts."""
        return RowCounts(*map(sum, zip(*map(dataclasses.astuple, parts), strict=True)))


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
        for counts in (self.rows, *self.by_source.values()):
            counts.check()
        total = RowCounts.total(self.by_source.values())
        for name, count in dataclasses.asdict(total).items():
            if count != getattr(self.rows, name):
                raise ValueError(f"sources' {name} rows come to {count}, not {self.rows}")
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
        sentences = []
        if self.pairs_used != self.rows.used:
            sentences.append(f"the used rows give {self.pairs_used:,} pairs")
        sentences.append(f"used pairs that repeat an earlier one: {self.repeated:,}")
        sentences.append(
            "used pairs that contradict an earlier one (the same answers the other way round): "
            f"{self.contradicting:,}"
        )
        if self.with_votes:
            sentences.append(
                "used pairs with a label against most of people's votes: "
                f"{self.against_votes:,} of {self.with_votes:,} that have votes"
            )
        if self.with_scores:
            sentences.append(
                "used pairs with a label against their own scores or margin: "
                f"{self.against_scores:,} of {self.with_scores:,} that have some"
            )
        if self.ignored_fields:
            names = [f"{_cut(name)} ({rows:,})" for name, rows in self.ignored_fields.items()]
            sentences.append(f"fields that were ignored, and in how many rows: {_listed(names)}")
        if self.ignored_files:
            sentences.append(f"files that were ignored: {_listed(self.ignored_files)}")
        if self.demonstrations:
            parts = {name.replace("_", " "): number for name, number in self.demonstrations.items()}
            read = parts.pop("read")
            sums = " + ".join(f"{number:,} {name}" for name, number in parts.items())
            sentences.append(f"{read:,} demonstrations read = {sums}")
        return sentences

    def warnings(self) -> list[str]:
        """What is missing of the data, and what to do about it."""
        sentences, rows = [], self.rows
        if self.pairs_used < self.pairs_found:
            sentences.append(
                f"preferences.max_pairs={self.max_pairs} left out "
                f"{self.pairs_found - self.pairs_used:,} of {self.pairs_found:,} good pairs, drawn "
                "at random: they are in no split. preferences.max_pairs=null uses all."
            )
        if 2 * self.against_scores > self.with_scores:
            sentences.append(
                f"{self.against_scores:,} of {self.with_scores:,} labels are against the scores of "
                "their own rows: are chosen and rejected, or the scores, the wrong way round?"
            )
        if self.num_refused:
            read = rows.read + self.demonstrations.get("read", 0)
            sentences.append(
                f"{self.num_refused:,} of {read:,} rows were refused and are not used: "
                "quarantine.jsonl has each with its file, its line and what is wrong."
            )
        return sentences


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - MAX_NAMES
    return ", ".join([*names[:MAX_NAMES], *([f"and {more:,} more"] if more > 0 else [])])


def _cut(name: str) -> str:
    return name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}…"


@dataclass(slots=True)
class PreferenceReport:
    """The account of one `load_preferences`.

    by_source: no row is over the limit yet. rows_by_format: used rows; bad_rows_by_reason:
    quarantined rows by their first reason; pairs_by_rating: pairs. num_repeated_pairs: pairs whose
    three texts an earlier pair has; num_contradicting_pairs: pairs whose answers an earlier pair
    has the other way round. num_pairs_with_votes, num_against_votes: pairs with counts, and those
    where more annotators preferred the rejected answer. share_chosen_longer: by Unicode code
    points. is_against_scores: by the ids of pairs whose rows have scores of both answers, or a
    margin, whether these prefer the rejected answer. row_of: by a pair's id the key of its source
    and the numbers of its rows, from 1, of two rows first that of the chosen answer.
    ignored_fields: fields of used rows that mean nothing here, and in how many rows;
    ignored_files: files of folders that are no data.
    """

    by_source: dict[str, RowCounts] = field(default_factory=dict)
    rows_by_format: Counter[str] = field(default_factory=Counter)
    bad_rows_by_reason: Counter[str] = field(default_factory=Counter)
    pairs_by_rating: Counter[int] = field(default_factory=Counter)
    ignored_fields: Counter[str] = field(default_factory=Counter)
    ignored_files: list[str] = field(default_factory=list)
    num_pairs: int = 0
    num_repeated_pairs: int = 0
    num_contradicting_pairs: int = 0
    num_pairs_with_votes: int = 0
    num_against_votes: int = 0
    share_chosen_longer: float = 0.0
    row_of: dict[str, tuple[str | int, ...]] = field(default_factory=dict, repr=False)
    is_against_scores: dict[str, bool] = field(default_factory=dict, repr=False)

    @property
    def total(self) -> RowCounts:
        """The counts of all sources."""
        return RowCounts.total(self.by_source.values())

    def check(self) -> None:
        """Raise ValueError where a row was lost, or where counts by format or reason differ."""
        for counts in self.by_source.values():
            counts.check()
        parts = self.rows_by_format.total(), self.bad_rows_by_reason.total()
        if parts != (self.total.used, self.total.quarantined):
            raise ValueError(f"used and refused rows come to {parts}, not {self.total}")

    def account(
        self,
        pairs: Sequence[PreferencePair],
        used: Sequence[PreferencePair],
        max_pairs: int | None,
        demonstrations: Mapping[str, int],
    ) -> RowAccount:
        """Return where the rows went once some of all `pairs` were taken to be `used`."""
        identities = {pair.id for pair in used}
        against = [value for name, value in self.is_against_scores.items() if name in identities]
        rows_used: Counter[str | int] = Counter()
        for key, *rows in {self.row_of[name] for name in identities}:
            rows_used[key] += len(rows)
        by_source = {
            key: dataclasses.replace(
                counts, used=rows_used[key], over_limit=counts.used - rows_used[key]
            )
            for key, counts in self.by_source.items()
        }
        described = PreferenceReport()
        described.describe_pairs([pair for pair in pairs if pair.id in identities])
        return RowAccount(
            rows=RowCounts.total(by_source.values()),
            by_source=by_source,
            quarantined_by_reason=dict(sorted(self.bad_rows_by_reason.items())),
            max_pairs=max_pairs,
            pairs_found=self.num_pairs,
            pairs_used=len(used),
            repeated=described.num_repeated_pairs,
            contradicting=described.num_contradicting_pairs,
            with_votes=described.num_pairs_with_votes,
            against_votes=described.num_against_votes,
            with_scores=len(against),
            against_scores=sum(against),
            ignored_fields={_printable(k): n for k, n in sorted(self.ignored_fields.items())},
            ignored_files=list(self.ignored_files),
            demonstrations=dict(demonstrations),
        )

    def describe_pairs(self, pairs: list[PreferencePair]) -> None:
        """Fill in what is counted over pairs rather than rows."""
        self.num_pairs = len(pairs)
        forward: set[bytes] = set()
        for pair in pairs:
            if pair.rating is not None:
                self.pairs_by_rating[pair.rating] += 1
            if pair.votes is not None:
                self.num_pairs_with_votes += 1
                self.num_against_votes += pair.votes.rejected > pair.votes.chosen
            digest = content_digest(pair.prompt, pair.chosen, pair.rejected)
            reverse = content_digest(pair.prompt, pair.rejected, pair.chosen)
            self.num_repeated_pairs += digest in forward
            self.num_contradicting_pairs += reverse in forward
            forward.add(digest)
        num_longer = sum(len(pair.chosen) > len(pair.rejected) for pair in pairs)
        self.share_chosen_longer = num_longer / max(1, len(pairs))


def _printable(text: str) -> str:
    """A name that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def content_digest(*texts: str) -> bytes:
    """Return a sha256 over texts that tells apart where one ends and the next begins."""
    digests = (hashlib.sha256(text.encode("utf-8")).digest() for text in texts)
    return hashlib.sha256(b"".join(digests)).digest()
