"""A person's review in the stages: it overrules the vote, and a dropped pair is not trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from trimtab.models.config.reward import RelabelConfig
from trimtab.models.data.external_votes import ReviewError
from trimtab.models.data.records import read_rows
from trimtab.models.training.data import write_rows

CONFIG = RelabelConfig(flip_below=0.0, smooth="all", smoothing=0.2, margin_scale=1.0)
STRENGTH = {"p0": -0.5, "p1": -0.5, "p2": 0.5, "p3": 0.5, "v0": -2.0, "t0": 2.0}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """Four training pairs, two flipped by the vote, and a held-out pair of each kind."""
    folder = tmp_path / "preferences"
    for split, letter in (("train", "p"), ("validation", "v"), ("test", "t")):
        rows = [
            {"id": name, "prompt": "Q", "chosen": "A", "rejected": "B", "category": None}
            for name in STRENGTH
            if name[0] == letter
        ]
        write_rows(folder / f"{split}.jsonl", rows)
    votes = [{"id": name, "strength_mean": mean} for name, mean in STRENGTH.items()]
    write_rows(tmp_path / "strength" / "strength.jsonl", votes)
    return {"preferences": folder, "strength": tmp_path / "strength"}


def _review(tmp_path: Path, **verdicts: str) -> Path:
    rows = [{"id": name, "verdict": verdict, "note": None} for name, verdict in verdicts.items()]
    write_rows(tmp_path / "given" / "review.jsonl", rows)
    return tmp_path / "given"


def _relabelled(tmp_path: Path, inputs: dict[str, Path]) -> tuple[list[dict[str, Any]], Any]:
    config = CONFIG.model_copy(update={"review": "review.jsonl"})
    output = run_stage("relabel", config, tmp_path / "work", **inputs)
    summary = json.loads((output / "summary.json").read_text())
    return read_rows(output / "train.jsonl"), summary


def test_verdicts_overrule_the_vote(tmp_path: Path, inputs: dict[str, Path]) -> None:
    inputs["review"] = _review(tmp_path, p0="keep", p2="flip", p3="drop")
    rows, summary = _relabelled(tmp_path, inputs)
    names = ("id", "is_flipped", "label", "margin", "weight", "review")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("p0", False, 1.0, 0.0, 1.0, "keep"),
        ("p1", True, 0.8, 0.25, 1.0, None),
        ("p2", True, 1.0, 0.0, 1.0, "flip"),
        ("p3", False, 1.0, 0.0, 0.0, "drop"),
    ]
    raw = read_rows(inputs["preferences"] / "train.jsonl")
    assert all(before.items() <= after.items() for before, after in zip(raw, rows, strict=True))
    assert (summary["num_reviewed"], summary["num_reviewed_held_out"]) == (3, 0)
    assert summary["share_flipped"] == 0.5


def test_a_verdict_keeps_what_would_be_left_out(tmp_path: Path, inputs: dict[str, Path]) -> None:
    inputs["review"] = _review(tmp_path, p0="keep", p1="unsure")
    changes = {"review": "review.jsonl", "drop_below": 0.0, "weights": "probability"}
    config = CONFIG.model_copy(update=changes)
    output = run_stage("relabel", config, tmp_path / "work", **inputs)
    weights = [row["weight"] for row in read_rows(output / "train.jsonl")]
    assert weights == pytest.approx([1.0, 0.0, *[1 / (1 + math.exp(-0.5))] * 2])


def test_unsure_leaves_the_pair_to_the_vote(tmp_path: Path, inputs: dict[str, Path]) -> None:
    plain = run_stage("relabel", CONFIG, tmp_path / "plain", **inputs)
    inputs["review"] = _review(tmp_path, p0="unsure", p3="unsure")
    rows, _ = _relabelled(tmp_path, inputs)
    assert [row["review"] for row in rows] == ["unsure", None, None, "unsure"]
    without = read_rows(plain / "train.jsonl")
    assert [{**row, "review": None} for row in rows] == without


def test_verdicts_on_held_out_pairs_are_told_of(tmp_path: Path, inputs: dict[str, Path]) -> None:
    inputs["review"] = _review(tmp_path, p0="keep", v0="flip", t0="drop")
    with pytest.warns(UserWarning, match="2 of 3 verdicts are on validation and test pairs"):
        _, summary = _relabelled(tmp_path, inputs)
    assert (summary["num_reviewed"], summary["num_reviewed_held_out"]) == (1, 2)


def test_a_review_of_other_pairs_is_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    inputs["review"] = _review(tmp_path, p0="keep", q0="flip", q1="flip")
    with pytest.raises(ReviewError, match="2 refused") as caught:
        _relabelled(tmp_path, inputs)
    assert "review.jsonl:2: unknown_id in field 'id': found 'q0'" in str(caught.value)


@pytest.mark.parametrize("stage", ["reward_model", "advantage_model"])
def test_training_with_a_dropped_pair_is_training_without_it(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path, stage: str
) -> None:
    rows = read_rows(comparisons / "train.jsonl")
    treatment = {"is_flipped": False, "label": 1.0, "margin": 0.0}
    treated = [
        {**row, **treatment, "weight": float(at not in (0, 7))} for at, row in enumerate(rows)
    ]
    write_rows(tmp_path / "dropped" / "train.jsonl", treated)
    without = [row for row in treated if row["weight"]]
    write_rows(tmp_path / "without" / "train.jsonl", without)
    outputs = [
        run_stage(
            stage,
            getattr(smoke_config, stage),
            tmp_path / f"{name}_{stage}",
            policy=policy,
            preferences=comparisons,
            pairs=tmp_path / name,
        )
        for name in ("dropped", "without")
    ]
    one, other = (load_file(output / "model" / "model.safetensors") for output in outputs)
    assert all(bool((one[name] == other[name]).all()) for name in one)
    summary = json.loads((outputs[0] / "summary.json").read_text())
    assert summary["num_trained_pairs"] == len(rows) - 2


def test_a_review_that_drops_all_pairs_is_refused(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    rows = [{**row, "weight": 0.0} for row in read_rows(comparisons / "train.jsonl")]
    write_rows(tmp_path / "pairs" / "train.jsonl", rows)
    with pytest.raises(ValueError, match="all .* pairs have weight 0"):
        run_stage(
            "reward_model",
            smoke_config.reward_model,
            tmp_path / "work",
            policy=policy,
            preferences=comparisons,
            pairs=tmp_path / "pairs",
        )
