"""Comparing an audited set with that of an earlier audit, pair by pair.

Pairs are known by their texts, not by ids or places: prompt, answer labelled better, other answer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.models.data.files import SourceError, read_file
from trimtab.models.data.problems import shorten
from trimtab.models.data.row_account import content_digest

TEXTS: Final = ("prompt", "chosen", "rejected")
STRENGTH: Final = "mean preference difference"
NUMBERS: Final = (
    "num_common", "num_newly_wrong", "num_no_longer_wrong", "num_turned", "num_turned_wrong",
    "num_new", "num_new_wrong", "num_gone", "num_changed", "num_changed_wrong",
)  # fmt: skip
ALLOWED: Final = "audited.parquet or audited.jsonl.gz of a label audit"


class BaselineError(ValueError):
    """A file that is no audited set."""


@dataclass(frozen=True)
class Comparison:
    """The labels of an audit beside those of an earlier one.

    numbers: Every label is in one of three parts. num_common: it was in the earlier audit; of these
    num_newly_wrong look wrong now and did not, num_no_longer_wrong did and do not. num_turned: the
    earlier audit has the pair with the other label. num_new: it has no such pair. Of the latter two
    num_turned_wrong and num_new_wrong look wrong; num_changed and num_changed_wrong are their sums.
    num_gone: labels of the earlier audit that are neither the same here nor flipped.
    strengths, is_changed: of each label, and whether it is flipped or new.
    """

    numbers: dict[str, int]
    strengths: list[float]
    is_changed: list[bool]

    def lines(self) -> list[str]:
        """For people."""
        n = self.numbers
        changed, wrong = n["num_changed"], n["num_changed_wrong"]
        share = f" ({wrong / changed:.1%})" if changed else ""
        return [
            f"Of {n['num_common']:,} labels that are in the baseline too, "
            f"{n['num_newly_wrong']:,} newly look wrong, and {n['num_no_longer_wrong']:,} no "
            "longer do.",
            f"Of {changed:,} that are not in it ({n['num_new']:,} new pairs, {n['num_turned']:,} "
            f"labels turned round), {wrong:,} look wrong{share}. {n['num_gone']:,} of its labels "
            "are gone.",
        ]


def read_baseline(path: Path) -> dict[bytes, bool]:
    """Whether each label of an audited set looks wrong, by its texts; BaselineError for others."""
    looks_wrong = {_key(row): row[STRENGTH] < 0 for row in _rows(path)}
    if not looks_wrong:
        raise BaselineError(f"{path} has no pairs; allowed: {ALLOWED}")
    return looks_wrong


def compare(baseline: dict[bytes, bool], audited: Path) -> Comparison:
    """Compare an audited set with `read_baseline`'s; BaselineError where no pair is in both."""
    comparison = Comparison(dict.fromkeys(NUMBERS, 0), [], [])
    numbers, missing = comparison.numbers, set(baseline)
    for row in _rows(audited):
        label, flipped, is_wrong = _key(row), _key(row, is_flipped=True), row[STRENGTH] < 0
        comparison.strengths.append(row[STRENGTH])
        comparison.is_changed.append(label not in baseline)
        if label in baseline:
            numbers["num_common"] += 1
            numbers["num_newly_wrong"] += is_wrong and not baseline[label]
            numbers["num_no_longer_wrong"] += baseline[label] and not is_wrong
            missing.discard(label)
            continue
        part = "num_turned" if flipped in baseline else "num_new"
        for name in (part, "num_changed"):
            numbers[name] += 1
            numbers[f"{name}_wrong"] += is_wrong
        missing.discard(flipped)
    numbers["num_gone"] = len(missing)
    if len(missing) == len(baseline):
        raise BaselineError(
            f"none of the {len(baseline):,} labels of the baseline is of a pair of this audit; "
            "allowed: an earlier audit of some of the same pairs"
        )
    return comparison


def _key(row: dict[str, Any], *, is_flipped: bool = False) -> bytes:
    names = ("prompt", "rejected", "chosen") if is_flipped else TEXTS
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
                shown = shorten(list(row) if isinstance(row, dict) else row)
                raise BaselineError(
                    f"{path}:{raw.line} is no row of an audit (found {shown}); allowed: {ALLOWED}"
                )
            yield row
    except SourceError as error:
        raise BaselineError(f"{error}; allowed: {ALLOWED}") from error


def _is_audited(row: dict[str, Any]) -> bool:
    strength = row.get(STRENGTH)
    has_texts = all(isinstance(row.get(name), str) for name in TEXTS)
    return has_texts and isinstance(strength, float | int) and math.isfinite(strength)
