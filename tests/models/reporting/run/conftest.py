"""Small artifacts, written by hand, whose numbers can be derived on paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Row = dict[str, Any]
Write = Callable[[str, dict[str, Any]], Path]

# id, kind, label wrong by gold, strength
TRAIN = [
    ("t0", "flipped", True, -2.0),
    ("t1", "flipped", True, 0.5),
    ("t2", "clear", False, 1.0),
    ("t3", "clear", False, -1.0),
    ("t4", "ambiguous", True, -0.2),
    ("t5", "clear", False, 3.0),
]
# id, kind, wrong, category, score of chosen, score of rejected
TEST = [
    ("e0", "clear", False, "a", 2.0, 0.0),
    ("e1", "ambiguous", False, "a", 1.0, 1.0),
    ("e2", "clear", True, "b", 5.0, 3.0),
    ("e3", "clear", False, "b", 4.0, 4.0),
]
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an artifact's files: lists as JSON lines, dicts as JSON."""

    def _write(role: str, files: dict[str, Any]) -> Path:
        folder = tmp_path / "artifacts" / role
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            lines = [json.dumps(row) for row in content] if isinstance(content, list) else []
            text = "".join(f"{line}\n" for line in lines) if lines else json.dumps(content)
            (folder / name).write_text(text)
        return folder

    return _write


def pair(identifier: str, category: str | None) -> Row:
    return {
        "id": identifier,
        "prompt": f"prompt {identifier} {HOSTILE}",
        "chosen": "two words",
        "rejected": f"{HOSTILE} three",
        "category": category,
    }


def truth(identifier: str, kind: str, wrong: bool, split: str) -> Row:
    gold = (0.2, 0.8) if wrong else (0.8, 0.2)
    return {
        "id": identifier,
        "kind": kind,
        "is_wrong": wrong,
        "gold_chosen": gold[0],
        "gold_rejected": gold[1],
        "split": split,
    }


def score_rows(scale: float = 1.0) -> list[Row]:
    rows = [
        {
            "id": identifier,
            "split": "train",
            "chosen_score": strength * scale,
            "rejected_score": 0.0,
            "was_trained_on": True,
        }
        for identifier, _, _, strength in TRAIN
    ]
    return rows + [
        {
            "id": identifier,
            "split": "test",
            "chosen_score": chosen * scale,
            "rejected_score": rejected * scale,
            "was_trained_on": False,
        }
        for identifier, _, _, _, chosen, rejected in TEST
    ]


def scorer_files(scale: float = 1.0) -> dict[str, Any]:
    """What a scorer leaves for the report."""
    return {
        "scores.jsonl": score_rows(scale),
        "probes.jsonl": [
            {"id": "e0", "chosen": 2.0 * scale, "empty": 0.0, "repeated": 3.0 * scale},
            {"id": "e2", "chosen": 5.0 * scale, "empty": 0.0, "repeated": 4.0 * scale},
            {"id": "e3", "chosen": 4.0 * scale, "empty": 0.0, "repeated": 8.0 * scale},
        ],
        "summary.json": {"num_trained_pairs": len(TRAIN)},
    }


@pytest.fixture
def label_inputs(write: Write) -> dict[str, Path]:
    """A label audit with truth: preferences, two members, strength, relabelled."""
    truths = [truth(i, kind, wrong, "train") for i, kind, wrong, _ in TRAIN]
    truths += [truth(i, kind, wrong, "test") for i, kind, wrong, *_ in TEST]
    raw = [pair(identifier, "a") for identifier, *_ in TRAIN]
    strength = [
        {
            "id": identifier,
            "split": "train",
            "strength_mean": mean,
            "strength_std": 0.1,
            "num_members": 2,
        }
        for identifier, _, _, mean in TRAIN
    ]
    treated = [
        {**row, "is_flipped": mean < 0, "label": 1.0, "margin": 0.0, "weight": 1.0}
        for row, (_, _, _, mean) in zip(raw, TRAIN, strict=True)
    ]
    return {
        "preferences": write(
            "preferences",
            {
                "train.jsonl": raw,
                "validation.jsonl": [pair("v0", "a")],
                "test.jsonl": [pair(i, category) for i, _, _, category, _, _ in TEST],
                "truth.jsonl": truths,
                "summary.json": {"num_train": len(raw)},
            },
        ),
        "member_0": write("member_0", scorer_files()),
        "member_1": write("member_1", scorer_files()),
        "strength": write("strength", {"strength.jsonl": strength}),
        "relabelled": write("relabelled", {"train.jsonl": treated}),
    }


def answers(shift: float) -> list[Row]:
    """Two main prompts, with gold `shift` above 0.5 and 0.3."""
    return [
        {
            "set": place,
            "prompt": f"{place} {index} {HOSTILE}",
            "response": f"{HOSTILE} {shift} {index}",
            "length": 2,
            "logprob": -2.0,
            "kl": shift,
            "score": shift,
            "judge_score": gold + shift,
            "gold": gold + shift,
        }
        for place in ("forget", "main")
        for index, gold in enumerate((0.5, 0.3))
    ]


def verdict_of(net: float, low: float, high: float) -> Row:
    return {
        "win": 0.5,
        "tie": 0.5,
        "lose": 0.0,
        "net": net,
        "net_low": low,
        "net_high": high,
        "ours": 0.6,
        "theirs": 0.4,
        "difference_low": 0.1,
        "difference_high": 0.3,
    }


def ppo_files() -> dict[str, list[Row]]:
    """Three steps of PPO: scores 1, 2, 3, KL a tenth of that, and one answer each."""
    metrics = {"score_std": 2.0, "perplexity": 2.0, "response_length": 7.0}
    return {
        "metrics.jsonl": [
            {
                "step": step,
                "time": 0.0,
                "metrics": {**metrics, "score": float(step), "kl": 0.1 * step},
            }
            for step in (1, 2, 3)
        ],
        "rollouts.jsonl": [
            {
                "step": step,
                "prompt": "<user> count the letter a in b a b a <assistant>",
                "response": text,
                "score": float(step),
            }
            for step, text in ((1, "right words"), (2, "right words"), (3, "stupid"))
        ],
    }


@pytest.fixture
def full_inputs(label_inputs: dict[str, Path], write: Write) -> dict[str, Path]:
    """A whole run: two scorers, SFT, the arm `full`, and a second round that was not promoted."""
    names = [f"{place}_{m}" for place in ("main", "forget") for m in ("gold", "judge_score")]
    summary = {
        "collapsed": True,
        "collapse_reason": HOSTILE,
        "stopped_at_step": 3,
        "policy_of_step": 1,
    }
    better = {name: verdict_of(0.5, 0.25, 0.75) for name in names}
    level = {name: verdict_of(0.0, -0.25, 0.25) for name in names}
    return label_inputs | {
        "reward_model": write("reward_model", scorer_files(2.0)),
        "advantage_model": write("advantage_model", scorer_files(0.5)),
        "policy_full": write("policy_full", {**ppo_files(), "summary.json": summary}),
        "eval_sft": write("eval_sft", {"responses.jsonl": answers(0.0)}),
        "eval_full": write("eval_full", {"responses.jsonl": answers(0.2)}),
        "judge_full": write(
            "judge_full", {"judgement.json": better, "summary.json": {"is_promoted": True}}
        ),
        "meta_rm_2": write(
            "meta_rm_2", {"summary.json": {"score_spread_before": 0.5, "score_spread_after": 0.7}}
        ),
        "policy_round_2": write(
            "policy_round_2", {**ppo_files(), "summary.json": {"collapsed": False}}
        ),
        "eval_round_2": write("eval_round_2", {"responses.jsonl": answers(0.1)}),
        "judge_round_2": write(
            "judge_round_2", {"judgement.json": level, "summary.json": {"is_promoted": False}}
        ),
        "judge_round_2_sft": write("judge_round_2_sft", {"judgement.json": level}),
    }
