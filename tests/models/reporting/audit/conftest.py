"""A small audit written by hand, whose numbers can be derived on paper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.models.reporting.audit.pairs import AuditedPair, audited_pairs
from trimtab.models.reporting.kit.artifacts import Artifacts

Row = dict[str, Any]
Inputs = dict[str, Path]
HOSTILE = (
    '</script><script>alert(1)</script>"><img src=x onerror=alert(2)> <!-- {{ 7 * 7 }} é\u2028👩‍🔬'
)

# id, split, category, the two members' differences, flipped, label, wrong by truth
PAIRS = [
    ("t0", "train", "a", (-1.0, -3.0), True, 1.0, True),
    ("t1", "train", "a", (1.0, -2.0), False, 0.9, False),
    ("t2", "train", "b", (2.0, 4.0), False, 1.0, False),
    ("t3", "train", None, (-1.0, 3.0), False, 1.0, True),
    ("v0", "validation", "b", (-0.5, -0.5), False, 1.0, True),
    ("e0", "test", "a", (0.0, 0.0), False, 1.0, False),
]

# A pair that two members find right.
PAIR = AuditedPair(
    id="", prompt="Q", chosen="A", rejected="B", category="a", split="train", strength_mean=1.0,
    strength_std=0.5, differences=(0.5, 1.5), label_given=1.0, is_flipped=False, label=1.0,
    margin=0.0, weight=1.0, review=None, votes=None, truth=None,
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """The artifacts of an in-sample vote of two members, with truth."""
    root = tmp_path / "artifacts"
    _write_preferences(root)
    _write_votes(root)
    return {folder.name: folder for folder in root.iterdir()}


def _write_preferences(root: Path) -> None:
    """The pairs as they came, as treated, and which labels are wrong."""
    for split in ("train", "validation", "test"):
        raw = [
            {
                "id": identifier,
                "prompt": f"prompt of {identifier} {HOSTILE}",
                "chosen": f"the better one {HOSTILE}",
                "rejected": f"the worse one {HOSTILE}",
                "category": category,
            }
            for identifier, where, category, *_ in PAIRS
            if where == split
        ]
        _write(root / "preferences" / f"{split}.jsonl", raw)
        if split == "train":
            treatments = [
                {"is_flipped": f, "label": label, "margin": 0.0, "weight": 1.0, "review": None}
                for _, _, _, _, f, label, _ in PAIRS
            ]
            _write(
                root / "relabelled" / "train.jsonl",
                ({**row, **treated} for row, treated in zip(raw, treatments, strict=False)),
            )
    truths = [
        {"id": identifier, "kind": "flipped" if wrong else "clear", "is_wrong": wrong}
        for identifier, *_, wrong in PAIRS
    ]
    _write(root / "preferences" / "truth.jsonl", truths)


def _write_votes(root: Path) -> None:
    """Two members' scores, and the strength that is their mean."""
    for member in range(2):
        _write(
            root / f"member_{member}" / "scores.jsonl",
            (
                {
                    "id": identifier,
                    "split": split,
                    "chosen_score": votes[member] + 1.0,
                    "rejected_score": 1.0,
                    "was_trained_on": split == "train",
                }
                for identifier, split, _, votes, *_ in PAIRS
            ),
        )
    _write(
        root / "strength" / "strength.jsonl",
        (
            {
                "id": identifier,
                "split": split,
                "strength_mean": (first + second) / 2,
                "strength_std": abs(first - second) / 2,
                "num_members": 2,
            }
            for identifier, split, _, (first, second), *_ in PAIRS
        ),
    )


@pytest.fixture
def pairs(inputs: Inputs) -> list[AuditedPair]:
    return audited_pairs(Artifacts(inputs))


@pytest.fixture
def edit() -> Callable[..., None]:
    """Change some rows of a JSON-lines file, by id."""

    def change(path: Path, **by_id: Row) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        _write(path, ({**row, **by_id.get(row["id"], {})} for row in rows))

    return change
