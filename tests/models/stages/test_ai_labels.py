"""Stage ai_labels: the judge's labels, everything that follows them, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from trimtab.models.config.judge import AILabelsConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.reward import RelabelConfig, RewardModelConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.training.data import read_pairs, write_rows

# id: what the judge says of the answer labelled better (in both orders), answers not understood.
JUDGED = {
    "agrees": (0.9, 0.9, 0),
    "swapped": (0.3, 0.1, 0),
    "tied": (0.7, 0.3, 0),
    "half": (0.9, 0.5, 1),
    "repaired": (0.9, 0.8, 1),
}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    votes = {"chosen": 4, "rejected": 1, "equal": 0}
    train = [
        {"id": name, "prompt": "sort the list", "chosen": "a b", "rejected": "b a"}
        | {"category": "harmless", "rating": 3, "votes": votes}
        | {"opinions": [{"annotator": "a", "prefers": "chosen"}]}
        for name in (*JUDGED, "unasked")
    ]
    given, told = tmp_path / "given", tmp_path / "told"
    write_rows(given / "train.jsonl", train)
    write_rows(given / "test.jsonl", [{**train[0], "id": "held out"}])
    write_rows(given / "eval" / "main.jsonl", [{"prompt": "sort the list"}])
    (given / "summary.json").write_text('{"num_pairs": 9}')
    kinds = {"swapped": "clear", "tied": "ambiguous", "agrees": "flipped"}
    truth = [
        {"id": row["id"], "kind": kinds.get(row["id"], "clear"), "is_wrong": row["id"] == "agrees"}
        | {"gold_chosen": 0.2 if row["id"] == "agrees" else 0.8, "gold_rejected": 0.5}
        for row in [*train, {"id": "held out"}]
    ]
    write_rows(given / "truth.jsonl", truth)
    judgements = [
        {"id": name, "split": split, "preference": (first + second) / 2}
        | {"shown_first": first, "shown_second": second, "num_unparsed": unparsed}
        for split, judged in (("train", JUDGED), ("test", {"held out": (0.0, 0.0, 0)}))
        for name, (first, second, unparsed) in judged.items()
    ]
    write_rows(told / "judgements.jsonl", judgements)
    return {"preferences": given, "judgements": told}


def _run(folder: Path, inputs: dict[str, Path], **config: Any) -> Path:
    return run_stage("ai_labels", AILabelsConfig(**config), folder / "w", **inputs)


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(path)}


def test_labels_and_what_follows_them(tmp_path: Path, inputs: dict[str, Path]) -> None:
    output = _run(tmp_path, inputs)
    before, rows = (_rows(folder / "train.jsonl") for folder in (inputs["preferences"], output))
    assert list(rows) == list(before)
    # .2 for the one labelled better: the other one is, with .8, and has the votes that it had.
    assert rows["swapped"] == {
        "id": "swapped",
        "prompt": "sort the list",
        "chosen": "b a",
        "rejected": "a b",
        "category": "harmless",
        "rating": None,
        "votes": {"chosen": 1, "rejected": 4, "equal": 0},
        "opinions": [{"annotator": "a", "prefers": "rejected"}],
        "label": pytest.approx(0.8),
    }
    assert rows["agrees"] == before["agrees"] | {"label": pytest.approx(0.9)}
    assert rows["tied"] == before["tied"] | {"label": 0.5}
    assert rows["repaired"] == before["repaired"] | {"label": pytest.approx(0.85)}
    for name in ("half", "unasked"):
        assert rows[name] == before[name]
    summary = json.loads((output / "summary.json").read_text())
    assert summary == {
        "num_pairs": 6,
        "num_labelled": 4,
        "num_turned": 1,
        "num_tied": 1,
        "num_unasked": 1,
        "num_unparsed": 1,
        "mean_label": pytest.approx((0.9 + 0.8 + 0.5 + 0.85) / 4),
    }
    for name in ("test.jsonl", "eval/main.jsonl"):
        assert (output / name).read_bytes() == (inputs["preferences"] / name).read_bytes()


def test_messages_follow_their_label(tmp_path: Path, inputs: dict[str, Path]) -> None:
    path = inputs["preferences"] / "train.jsonl"
    said = {"prompt": [], "chosen": [{"content": "a b"}], "rejected": [{"content": "b a"}]}
    write_rows(path, [row | {"messages": said} for row in read_rows(path)])
    rows = _rows(_run(tmp_path, inputs) / "train.jsonl")
    for row in rows.values():
        assert row["messages"]["chosen"] == [{"content": row["chosen"]}]
        assert row["messages"]["rejected"] == [{"content": row["rejected"]}]
    assert rows["swapped"]["chosen"] == "b a"


def test_hard_labels(tmp_path: Path, inputs: dict[str, Path]) -> None:
    rows = _rows(_run(tmp_path, inputs, soft=False) / "train.jsonl")
    found = {name: (row["chosen"], row.get("label", 1)) for name, row in rows.items()}
    assert found == {
        "agrees": ("a b", 1),
        "swapped": ("b a", 1),
        "tied": ("a b", 0.5),
        "half": ("a b", 1),
        "repaired": ("a b", 1),
        "unasked": ("a b", 1),
    }


def test_the_truth_is_about_the_new_labels(tmp_path: Path, inputs: dict[str, Path]) -> None:
    before = _rows(inputs["preferences"] / "truth.jsonl")
    truth = _rows(_run(tmp_path, inputs) / "truth.jsonl")
    assert truth["swapped"] == {
        "id": "swapped",
        "kind": "flipped",
        "is_wrong": True,
        "gold_chosen": 0.5,
        "gold_rejected": 0.8,
    }
    assert {name for name in truth if truth[name] != before[name]} == {"swapped"}
    assert truth["agrees"]["kind"] == "flipped"  # the judge is as wrong as its annotator


def test_a_judge_who_labels_nothing_is_an_error(tmp_path: Path, inputs: dict[str, Path]) -> None:
    rows = read_rows(inputs["judgements"] / "judgements.jsonl")
    write_rows(
        inputs["judgements"] / "judgements.jsonl",
        [row | {"shown_first": 0.5, "num_unparsed": 2} for row in rows if row["id"] != "tied"],
    )
    reasons = r"none of 6 training pairs .*'unparsed': 4, 'unasked': 2"
    with pytest.raises(ValueError, match=reasons):
        _run(tmp_path, inputs)


def test_soft_labels_come_through_to_who_learns_from_them(
    tmp_path: Path, inputs: dict[str, Path], policy: Path
) -> None:
    """Raw to the ensemble; smoothed by .1 and flipped to the reward model."""
    output = _run(tmp_path, inputs)
    tokenizer = load_tokenizer(policy / "model")
    labels = read_pairs(output / "train.jsonl", tokenizer).label.tolist()
    assert labels == pytest.approx([0.9, 0.8, 0.5, 1.0, 0.85, 1.0])
    strength = [
        {"id": row["id"], "strength_mean": -1.0 if row["id"] == "swapped" else 1.0}
        for row in read_rows(output / "train.jsonl")
    ]
    write_rows(tmp_path / "strength" / "strength.jsonl", strength)
    treated = run_stage(
        "relabel",
        RelabelConfig(flip_below=0.0, smooth="all", smoothing=0.1),
        tmp_path / "r",
        preferences=output,
        strength=tmp_path / "strength",
    )
    pairs = read_pairs(treated / "train.jsonl", tokenizer)
    # p becomes .9 p + .1 (1 - p), flipped or not.
    assert pairs.label.tolist() == pytest.approx([0.82, 0.74, 0.5, 0.9, 0.78, 0.9])
    flipped = read_rows(treated / "train.jsonl")[1]
    assert (flipped["is_flipped"], flipped["chosen"]) == (True, "b a")
    flips = RelabelConfig(flip_below=0.0, smooth="none")
    inputs = {"preferences": output, "strength": tmp_path / "strength"}
    treated = run_stage("relabel", flips, tmp_path / "flips", **inputs)
    # Three labels came soft, and nothing was smoothed.
    assert json.loads((treated / "summary.json").read_text())["share_smoothed"] == 0.0


@pytest.mark.slow
def test_gold_at_its_best_puts_every_label_right_and_a_reward_model_learns_them(
    tmp_path: Path, smoke_config: Any, comparisons: Path, policy: Path
) -> None:
    judged = run_stage(
        "judge_preferences",
        JudgePreferencesConfig(judge=JudgeConfig(gold_accuracy=1.0)),
        tmp_path / "judged",
        preferences=comparisons,
    )
    inputs = {"preferences": comparisons, "judgements": judged}
    output = _run(tmp_path, inputs)
    before, truth = (_rows(folder / "truth.jsonl") for folder in (comparisons, output))
    train = _rows(output / "train.jsonl")
    assert any(before[name]["is_wrong"] for name in train)
    assert not any(truth[name]["is_wrong"] for name in train)
    kinds = {truth[name]["kind"] for name in train}
    assert kinds == {"clear", "ambiguous"}
    held_out = before.keys() - train.keys()
    assert {name: truth[name] for name in held_out} == {name: before[name] for name in held_out}
    config: RewardModelConfig = smoke_config.reward_model
    many = config.train.model_copy(update={"num_epochs": 12})
    scored = run_stage(
        "reward_model",
        config.model_copy(update={"train": many}),
        tmp_path / "rm",
        policy=policy,
        preferences=output,
    )
    rows = [row for row in read_rows(scored / "scores.jsonl") if row["split"] == "train"]
    right = [row["chosen_score"] > row["rejected_score"] for row in rows]
    assert sum(right) / len(right) > 0.8
