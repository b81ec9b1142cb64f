"""Artifacts of a run in a few rows, written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.studies.measures import SeedRun

Row = dict[str, Any]
Run = Callable[[dict[str, dict[str, Any]]], SeedRun]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Artifacts by role and file name: lists become JSON lines, dicts JSON."""

    def write(roles: dict[str, dict[str, Any]]) -> SeedRun:
        for role, files in ({"preferences": {}} | roles).items():
            folder = tmp_path / role
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                rows = content if isinstance(content, list) else [content]
                (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return SeedRun({path.name: path for path in tmp_path.iterdir()})

    return write


def pair(identifier: str, category: str = "count") -> Row:
    return {
        "id": identifier,
        "prompt": "p",
        "chosen": "a",
        "rejected": "b",
        "category": category,
    }


def truth(identifier: str, is_wrong: bool, kind: str = "clear") -> Row:
    gold = (
        {"gold_chosen": 0.0, "gold_rejected": 1.0}
        if is_wrong
        else {
            "gold_chosen": 1.0,
            "gold_rejected": 0.0,
        }
    )
    return {"id": identifier, "kind": kind, "is_wrong": is_wrong, **gold}


def score(identifier: str, gap: float, split: str = "test") -> Row:
    return {"id": identifier, "split": split, "chosen_score": gap, "rejected_score": 0.0}


def strength(identifier: str, mean: float, std: float = 1.0, split: str = "train") -> Row:
    row = {"id": identifier, "split": split, "strength_mean": mean, "strength_std": std}
    return row | {"num_members": 2}
