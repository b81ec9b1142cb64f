"""Reading what the stages left: one object that knows which roles are there."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.data.records import read_rows
from trimtab.models.data.row_account import RowAccount

SPLITS = ("train", "validation", "test")
Row = dict[str, Any]


class ReportInputError(ValueError):
    """Artifacts that do not belong together."""


@dataclass(frozen=True)
class ScoredPairs:
    """N pairs with a scorer's verdict; better is the labelled or the truly better answer.

    gap: (N,) float64, score of the better answer minus that of the other.
    """

    rows: list[Row]
    gap: Tensor


@dataclass
class Artifacts:
    """The inputs of the report by role. Every role but `preferences` is optional."""

    inputs: dict[str, Path]
    _cache: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "preferences" not in self.inputs:
            raise ReportInputError(
                f"the report needs the role 'preferences', found {sorted(self.inputs)}"
            )

    def has(self, role: str) -> bool:
        """Whether the role was handed in."""
        return role in self.inputs

    def rows(self, role: str, name: str) -> list[Row]:
        """Rows of one file of a role; empty where role or file is absent."""
        if (role, name) not in self._cache:
            path = self._path(role, name)
            self._cache[role, name] = read_rows(path) if path.is_file() else []
        return self._cache[role, name]

    def metrics(self, role: str) -> list[Row]:
        """What training measured, each with its `step`, as `progress.read_metrics`."""
        rows = self.rows(role, "metrics.jsonl")
        return [{"step": row["step"], **row["metrics"]} for row in rows if "metrics" in row]

    def document(self, role: str, name: str) -> Row:
        """One JSON file of a role; empty where role or file is absent."""
        path = self._path(role, name)
        document: Row = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return document

    def _path(self, role: str, name: str) -> Path:
        return self.inputs.get(role, Path("/nonexistent")) / name

    def pairs(self, split: str) -> list[Row]:
        """Raw pairs of a split."""
        return self.rows("preferences", f"{split}.jsonl")

    @cached_property
    def truth(self) -> dict[str, Row]:
        """What the synthetic world knows of each pair, by id; empty for real data."""
        return {row["id"]: row for row in self.rows("preferences", "truth.jsonl")}

    @cached_property
    def row_account(self) -> RowAccount | None:
        """Where the rows of the preferences went; None where pairs were not read but made."""
        document = self.document("preferences", "rows.json")
        return RowAccount.from_json(document) if document else None

    @cached_property
    def members(self) -> list[str]:
        """Roles of the ensemble's members, in order."""
        names = [name for name in self.inputs if name.startswith("member_")]
        return sorted(names, key=lambda name: int(name.removeprefix("member_")))

    def scores(self, role: str, split: str) -> dict[str, Row]:
        """A scorer's rows on one split, by pair id."""
        return {r["id"]: r for r in self.rows(role, "scores.jsonl") if r["split"] == split}

    def labelled_gaps(self, role: str) -> ScoredPairs:
        """Test pairs with the annotators' label as the better answer."""
        return self._gaps(role, self.pairs("test"), ())

    def clean_gaps(self, role: str) -> ScoredPairs:
        """Test pairs that are no near-ties, label put right by the gold scorer."""
        clear = [row for row in self.pairs("test") if is_clear(self.truth.get(row["id"]))]
        wrong = {row["id"] for row in clear if self.truth[row["id"]]["is_wrong"]}
        return self._gaps(role, clear, wrong)

    def _gaps(self, role: str, pairs: Sequence[Row], flipped_ids: Collection[str]) -> ScoredPairs:
        scores = self.scores(role, "test")
        missing = [row["id"] for row in pairs if row["id"] not in scores]
        if missing:
            raise ReportInputError(
                f"{role} scored other pairs than `preferences` holds: {len(missing)} test pairs "
                f"have no score, the first {missing[0]!r}; pass the scorer trained on these pairs"
            )
        gaps = [
            (scores[row["id"]]["chosen_score"] - scores[row["id"]]["rejected_score"])
            * (-1.0 if row["id"] in flipped_ids else 1.0)
            for row in pairs
        ]
        return ScoredPairs(list(pairs), torch.tensor(gaps, dtype=torch.float64))


def is_clear(truth: Row | None) -> bool:
    """Whether a pair has a truth and is no near-tie."""
    return truth is not None and truth["kind"] != "ambiguous"
