"""Probes: a changed answer's score is that of the changed text by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.training.data import write_rows
from trimtab.models.training.probes import probe
from trimtab.models.training.scoring import score_answers
from trimtab.models.training.stage import Stage


def test_scores_are_those_of_the_changed_texts(reward_model: Path, tmp_path: Path) -> None:
    model, tokenizer = (
        load_scorer(reward_model / "model").eval(),
        load_tokenizer(reward_model / "model"),
    )
    pairs = [
        {"id": "a", "prompt": "<user> sort : b a <assistant>", "chosen": " a b", "rejected": " b"},
        {"id": "again", "prompt": "<user> sort : b a <assistant>", "chosen": " b", "rejected": ""},
        {"id": "c", "prompt": "<user> greet : bob <assistant>", "chosen": " hello bob "},
    ]
    write_rows(tmp_path / "test.jsonl", pairs)
    probed = probe(model, tokenizer, Stage({"preferences": tmp_path}, tmp_path))
    texts = {
        "a": {"chosen": " a b", "empty": "", "repeated": " a b a b", "other_prompt": " hello bob "},
        "c": {
            "chosen": " hello bob ",
            "empty": "",
            "repeated": " hello bob  hello bob",
            "other_prompt": " a b",
        },
    }
    assert [row["id"] for row in probed] == ["a", "c"]
    for row, pair in zip(probed, pairs[::2], strict=True):
        # The world's tokenizer has no words of thanks.
        assert row.keys() == {"id", *texts[pair["id"]]}
        for name, text in texts[pair["id"]].items():
            prompt = {"prompt": pair["prompt"]}
            expected = float(score_answers(model, tokenizer, [prompt], [[text]]))
            assert row[name] == pytest.approx(expected, abs=1e-5)


def test_a_single_prompt_has_no_answer_to_another(reward_model: Path, tmp_path: Path) -> None:
    folder = reward_model / "model"
    row = {"id": "a", "prompt": "<user> sort : b a <assistant>", "chosen": " a b"}
    write_rows(tmp_path / "test.jsonl", [row])
    model, tokenizer = load_scorer(folder), load_tokenizer(folder)
    (probed,) = probe(model, tokenizer, Stage({"preferences": tmp_path}, tmp_path))
    assert probed.keys() == {"id", "chosen", "empty", "repeated"}
    write_rows(tmp_path / "test.jsonl", [])
    assert probe(model, tokenizer, Stage({"preferences": tmp_path}, tmp_path)) == []
    assert read_rows(reward_model / "probes.jsonl")[0].keys() > {"id", "chosen", "empty"}
