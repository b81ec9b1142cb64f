"""Exported scorers give in plain transformers the scores that they have in Trimtab."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from trimtab.models.nets.loading import (
    add_category_heads,
    load_scorer,
    load_tokenizer,
    new_scorer,
    save_model,
)
from trimtab.models.nets.packing import encode, pack
from trimtab.models.nets.scoring import reward_heads
from trimtab.models.reporting.export import NoProbabilityError, cleaned_pairs, export_scorer

PROMPTS = ["<user> sort : b a <assistant>", "<user> greet : bob <assistant>"]
RESPONSES = ["a b", "hello bob and a good day"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reward_model", "advantage_model"])
@pytest.mark.parametrize("pads_with_the_end", [False, True])
def test_plain_transformers_reads_the_same_scores(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, pads_with_the_end: bool
) -> None:
    """Of an Advantage Model r(x, y). Also where padding was the end token, and in a batch."""
    source = request.getfixturevalue(name) / "model"
    own_tokenizer = load_tokenizer(source)
    rows = encode(own_tokenizer, PROMPTS, [[text] for text in RESPONSES])
    with torch.no_grad():
        ours, _ = reward_heads(load_scorer(source).eval(), pack(rows))
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    if pads_with_the_end:
        for file in ("config.json", "tokenizer_config.json"):
            values = json.loads((folder / file).read_text())
            end = values.get("eos_token_id", values.get("eos_token"))
            values["pad_token_id" if file == "config.json" else "pad_token"] = end
            (folder / file).write_text(json.dumps(values))
    assert export_scorer(folder)[:2] == (["reward"], name == "advantage_model")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1 and model.config.id2label == {0: "reward"}
    assert tokenizer.pad_token_id == model.config.pad_token_id != tokenizer.eos_token_id
    texts = [[*row.prompt, *row.responses[0]] for row in rows]
    length = max(map(len, texts))
    ids = [[*text, *[tokenizer.pad_token_id] * (length - len(text))] for text in texts]
    mask = [[1] * len(text) + [0] * (length - len(text)) for text in texts]
    with torch.no_grad():
        theirs = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits[:, 0]
        alone = [model(torch.tensor([text])).logits[0, 0] for text in texts]
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(alone), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_expected", [False, True])
def test_category_heads_stay_with_their_names(
    tmp_path: Path, policy: Path, has_expected: bool
) -> None:
    model = new_scorer(policy / "model", 0, has_expected=has_expected)
    add_category_heads(model, ("harmless", "helpful"), 0)
    save_model(model, load_tokenizer(policy / "model"), tmp_path)
    labels, had_expected, _ = export_scorer(tmp_path)
    assert had_expected == has_expected
    assert labels == ["reward: harmless", "reward: helpful", "gate: harmless", "gate: helpful"]
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert list(loaded.config.id2label.values()) == labels
    rows = [0, 1, 3, 4] if has_expected else [0, 1, 2, 3]
    assert torch.equal(loaded.score.weight, model.score.weight[rows])


def test_a_folder_without_a_head_is_refused(tmp_path: Path, advantage_model: Path) -> None:
    shutil.copytree(advantage_model / "model", tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors"):
        save_file({}, file)
    with pytest.raises(ValueError, match=r"has no score\.weight"):
        export_scorer(tmp_path / "model")


def test_cleaned_pairs_load_with_the_same_fields_in_every_split(tmp_path: Path) -> None:
    """Flipped ones are turned round, those without weight left out; raw ones are certain."""
    row = {"id": "1", "prompt": "p", "chosen": "a", "rejected": "b", "review": None, "rating": 3}
    relabelled = [
        {**row, "is_flipped": True, "label": 0.8, "weight": 1.0, "margin": 0.2},
        {**row, "id": "2", "is_flipped": False, "label": 1.0, "weight": 0.0, "margin": 0.0},
    ]
    raw = [{**row, "id": "3", "category": "x", "votes_chosen": 3}]
    for split, rows in {"train": relabelled, "test": raw}.items():
        path = tmp_path / f"{split}.raw"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        with (tmp_path / f"{split}.jsonl").open("w") as stream:
            stream.writelines(json.dumps(each) + "\n" for each in cleaned_pairs(path))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    from datasets import load_dataset

    found = load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert found["train"].features == found["test"].features
    (first,), (third,) = found["train"], found["test"]
    names = ("chosen", "probability", "margin", "weight")
    assert [first[name] for name in names] == ["b", 0.8, 0.2, 1.0]
    assert [third[name] for name in names] == ["a", 1.0, 0.0, 1.0]
    assert first["is_flipped"] and not third["is_flipped"] and "rating" not in first


def test_labels_that_are_no_probabilities_are_refused(tmp_path: Path) -> None:
    row = {"id": "1", "prompt": "p", "chosen": "a", "rejected": "b", "is_flipped": False}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({**row, "label": 4 / 3, "margin": 0.0, "weight": 1.0}) + "\n")
    with pytest.raises(
        NoProbabilityError, match=r"pair '1' has the label 1.33 of an unbiased loss"
    ):
        list(cleaned_pairs(path))
