"""Comparing an audited set with that of an earlier audit, pair by pair.

Pairs are known by their texts, not by ids or places: prompt, answer labelled better, other answer.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.models.data.files import SourceError, read_file
from trimtab.models.data.problems import shorten
from trimtab.models.data.summary import content_digest

TEXTS: Final = ("prompt", "chosen", "rejected")
STRENGTH: Final = "mean preference difference"
ALLOWED: Final = "audited.parquet or audited.jsonl.gz of a label audit"


class BaselineError(ValueError):
    """A file that is no audited set."""


@dataclass(frozen=True)
class Difference:
    """How the labels of an audit differ from those of an earlier one.

    Every label is in one of three parts. num_common: it was in the earlier audit; of these
    num_newly_wrong look wrong now and did not, num_no_longer_wrong did and do not. num_turned: the
    earlier audit has the pair with the other label. num_new: it has no such pair. Of the latter two
    num_turned_wrong and num_new_wrong look wrong. num_gone: labels of the earlier audit that are
    neither the same here nor turned round.
    """

    num_common: int
    num_newly_wrong: int
    num_no_longer_wrong: int
    num_turned: int
    num_turned_wrong: int
    num_new: int
    num_new_wrong: int
    num_gone: int

    @property
    def num_changed(self) -> int:
        """Labels that the earlier audit does not have."""
        return self.num_new + self.num_turned

    @property
    def num_changed_wrong(self) -> int:
        """Of these the ones that look wrong."""
        return self.num_new_wrong + self.num_turned_wrong

    def numbers(self) -> dict[str, int]:
        """All of them by name."""
        sums = {name: getattr(self, name) for name in ("num_changed", "num_changed_wrong")}
        return asdict(self) | sums

    def lines(self) -> list[str]:
        """For people."""
        share = f" ({self.num_changed_wrong / self.num_changed:.1%})" if self.num_changed else ""
        return [
            f"Of {self.num_common:,} labels that are in the baseline too, {self.num_newly_wrong:,} "
            f"newly look wrong, and {self.num_no_longer_wrong:,} no longer do.",
            f"Of {self.num_changed:,} that are not in it ({self.num_new:,} new pairs, "
            f"{self.num_turned:,} labels turned round), {self.num_changed_wrong:,} look "
            f"wrong{share}. {self.num_gone:,} of its labels are gone.",
        ]


def read_baseline(path: Path) -> dict[bytes, bool]:
    """Whether each label of an audited set looks wrong, by its texts; BaselineError for others."""
    found = dict(_labels(path))
    if not found:
        raise BaselineError(f"{path} has no pairs; allowed: {ALLOWED}")
    return found


@dataclass(frozen=True)
class Votes:
    """Of each of N labels its strength, and whether an earlier audit lacks it."""

    strengths: list[float]
    is_changed: list[bool]


def votes_beside(baseline: dict[bytes, bool], audited: Path) -> Votes:
    """The votes on an audited set, beside the labels of `read_baseline`."""
    found = Votes([], [])
    for row in _rows(audited):
        found.strengths.append(row[STRENGTH])
        found.is_changed.append(_key(row) not in baseline)
    return found


def compare(baseline: dict[bytes, bool], audited: Path) -> Difference:
    """Compare an audited set with `read_baseline`'s; BaselineError where no pair is in both."""
    counts = dict.fromkeys(Difference.__dataclass_fields__, 0)
    seen: set[bytes] = set()
    for row in _rows(audited):
        label, other = _key(row), _key(row, is_turned=True)
        is_wrong = row[STRENGTH] < 0
        if label in baseline:
            seen.add(label)
            counts["num_common"] += 1
            counts["num_newly_wrong"] += is_wrong and not baseline[label]
            counts["num_no_longer_wrong"] += baseline[label] and not is_wrong
            continue
        part = "num_turned" if other in baseline else "num_new"
        if other in baseline:
            seen.add(other)
        counts[part] += 1
        counts[f"{part}_wrong"] += is_wrong
    if not seen:
        raise BaselineError(
            f"none of the {len(baseline):,} labels of the baseline is of a pair of this audit; "
            "allowed: an earlier audit of some of the same pairs"
        )
    return Difference(**counts | {"num_gone": len(baseline.keys() - seen)})


def _labels(path: Path) -> Iterator[tuple[bytes, bool]]:
    for row in _rows(path):
        yield _key(row), row[STRENGTH] < 0


def _key(row: dict[str, Any], *, is_turned: bool = False) -> bytes:
    names = ("prompt", "rejected", "chosen") if is_turned else TEXTS
    return content_digest(*(row[name] for name in names))[:16]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of an audited set; BaselineError for the first that is none."""
    if not path.is_file():
        raise BaselineError(f"found no file {path}; allowed: {ALLOWED}")
    try:
        for raw in read_file(path, str(path)):
            row = raw.value
            if raw.is_blank:
                continue
            if not isinstance(row, dict) or not _is_audited(row):
                found = shorten(list(row) if isinstance(row, dict) else row)
                raise BaselineError(
                    f"{path}:{raw.line} is no row of an audit (found {found}); allowed: {ALLOWED}"
                )
            yield row
    except SourceError as error:
        raise BaselineError(f"{error}; allowed: {ALLOWED}") from error


def _is_audited(row: dict[str, Any]) -> bool:
    strength = row.get(STRENGTH)
    has_texts = all(isinstance(row.get(name), str) for name in TEXTS)
    return has_texts and isinstance(strength, float | int) and math.isfinite(strength)
