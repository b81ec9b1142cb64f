"""Exported pairs keep the form in which they came; TRL and Trimtab read them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from tests.models.judge.tiny import tiny_model, tiny_tokenizer
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.loading import look_through
from trimtab.models.data.readers import Source
from trimtab.models.data.records import read_rows
from trimtab.models.reporting.export import export_pairs
from trimtab.models.training.data import write_rows

Row = dict[str, Any]
SPLITS, SIDES = ("train", "validation", "test"), ("chosen", "rejected")
NUM_ROWS, NUM_FLIPPED = 40, 5
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
# Another model's words for the same messages.
OTHER_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def _said(role: str, content: str, **more: Any) -> Row:
    return {"role": role, "content": content, **more}


def _pair(number: int) -> Row:
    """A system prompt, earlier turns, and of every third pair an answer of several turns."""
    calls = [
        _said("assistant", "", tool_calls=[CALL]),
        _said("tool", "4", name="add"),
        _said("assistant", f"It is four, {number}."),
    ]
    return {
        "prompt": [
            _said("system", "Be brief."),
            _said("user", f"Hello {number}."),
            _said("assistant", "Hi."),
            _said("user", "What is two and two?"),
        ],
        "chosen": calls if number % 3 == 0 else [_said("assistant", f"Good {number}.")],
        "rejected": [_said("assistant", f"Bad {number}.")],
    }


PAIRS = list(map(_pair, range(NUM_ROWS)))
TEXTS = [
    {
        "prompt": f"\n\nHuman: Hello {n}.\n\nAssistant: Hi.\n\nHuman: Where to?\n\nAssistant:",
        "chosen": f" Good {n}.",
        "rejected": f" Bad {n}.",
    }
    for n in range(NUM_ROWS)
]
# The second half of a mixed file: HH-RLHF text, and a text that has no turns.
AS_MESSAGES = [
    {
        "prompt": [
            _said("user", f"Hello {n}."),
            _said("assistant", "Hi."),
            _said("user", "Where to?"),
        ],
        **{side: [_said("assistant", row[side].strip())] for side in SIDES},
    }
    for n, row in enumerate(TEXTS)
]
PLAIN = [{"prompt": f"Say {n}.", "chosen": f" {n}", "rejected": "No."} for n in range(NUM_ROWS)]
PLAIN_AS_MESSAGES = [
    {
        "prompt": [_said("user", row["prompt"])],
        **{side: [_said("assistant", row[side])] for side in SIDES},
    }
    for row in PLAIN
]


def _sharegpt(row: Row) -> Row:
    """The last answers as LLaMA-Factory writes them."""
    turns = [{"from": each["role"], "value": each["content"]} for each in row["prompt"]]
    last = {side: {"from": "gpt", "value": row[side][-1]["content"]} for side in SIDES}
    return {"conversations": turns, **last}


def _last(row: Row) -> Row:
    return row | {side: row[side][-1:] for side in SIDES}


def _unpaired(row: Row) -> list[Row]:
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for side in SIDES
    ]


# By name, the rows of a file and the pairs that are expected before any is flipped.
FORMS: dict[str, tuple[list[Row], list[Row]]] = {
    "messages": (PAIRS, PAIRS),
    "whole dialogues": ([{side: p["prompt"] + p[side] for side in SIDES} for p in PAIRS], PAIRS),
    "sharegpt": (list(map(_sharegpt, PAIRS)), list(map(_last, PAIRS))),
    "ranking": (
        [{"prompt": p["prompt"], "responses": [p[s] for s in SIDES]} for p in PAIRS],
        PAIRS,
    ),
    "unpaired": (list(chain.from_iterable(map(_unpaired, PAIRS))), PAIRS),
    "text": (TEXTS, TEXTS),
    "text without turns": (PLAIN, PLAIN),
    "mixed": (PAIRS[:20] + TEXTS[20:], PAIRS[:20] + AS_MESSAGES[20:]),
    "mixed without turns": (PAIRS[:20] + PLAIN[20:], PAIRS[:20] + PLAIN_AS_MESSAGES[20:]),
}


def _export(rows: Sequence[Row], folder: Path, **changes: Any) -> tuple[Path, dict[str, list[Row]]]:
    """The folder of the pairs once some to train on are flipped, and its rows by split."""
    (folder / "raw").mkdir(parents=True)
    write_rows(folder / "raw/pairs.jsonl", rows)
    config = PreferencesConfig(
        sources=("pairs.jsonl",), validation_share=0.2, test_share=0.2, **changes
    )
    found = run_stage("preferences", config, folder / "work", source_0=folder / "raw")
    treatment = {"label": 0.9, "margin": 0.5, "weight": 1.0}
    treated = [
        {**row, **treatment, "is_flipped": place < NUM_FLIPPED}
        for place, row in enumerate(read_rows(found / "train.jsonl"))
    ]
    write_rows(folder / "treated.jsonl", treated)
    target = folder / "pairs"
    target.mkdir()
    sources = {split: found / f"{split}.jsonl" for split in SPLITS}
    assert export_pairs(sources | {"train": folder / "treated.jsonl"}, target) == 0
    return target, {split: read_rows(target / f"{split}.jsonl") for split in SPLITS}


def _texts(row: Row) -> tuple[str, ...]:
    return tuple(json.dumps(row[name]) for name in ("prompt", *SIDES))


@pytest.mark.parametrize("has_template", [False, True], ids=["HH text", "chat template"])
@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_kept_and_flips_are_applied(
    form: str, has_template: bool, tmp_path: Path
) -> None:
    """Whatever text the messages were read as, also with the base model's template."""
    rows, expected = FORMS[form]
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    changes = {"tokenizer": str(tmp_path / "base")} if has_template else {}
    folder, found = _export(rows, tmp_path / "run", **changes)
    right = set(map(_texts, expected))
    swapped = {(prompt, rejected, chosen) for prompt, chosen, rejected in right}
    exported = [row for split in SPLITS for row in found[split]]
    assert {_texts(row) for row in exported if not row["is_flipped"]} <= right
    flipped = [row for row in exported if row["is_flipped"]]
    assert len(flipped) == NUM_FLIPPED and set(map(_texts, flipped)) <= swapped
    assert len(exported) == len(expected) == len(set(map(_texts, exported)))
    assert {(row["probability"], row["margin"]) for row in found["train"]} == {(0.9, 0.5)}
    look = look_through([Source(str(folder))])
    assert look.bad_rows == [] and len(look.pairs) == len(exported)


def test_labels_turned_round_on_purpose_turn_the_messages(tmp_path: Path) -> None:
    _, found = _export(PAIRS, tmp_path, flip_share=0.4)
    truth = {row["id"]: row["is_wrong"] for row in read_rows(tmp_path / "work/output/truth.jsonl")}
    wrong = [row for row in found["train"] if truth[row["id"]] != row["is_flipped"]]
    assert 0 < len(wrong) < len(found["train"])
    for row in found["train"]:
        is_flipped = row["chosen"][-1]["content"].startswith("Bad")
        assert is_flipped == (row in wrong)


def test_an_empty_answer_is_left_out_and_counted(tmp_path: Path) -> None:
    """An answer that is an end token alone is nothing as text: no reader takes it."""
    rows = [
        {"id": "1", "prompt": "<user> g <assistant>", "chosen": "g", "rejected": "h"},
        {"id": "2", "prompt": "<user> h <assistant>", "chosen": "g", "rejected": " "},
    ]
    write_rows(tmp_path / "raw.jsonl", rows)
    target = tmp_path / "pairs"
    target.mkdir()
    assert export_pairs({"train": tmp_path / "raw.jsonl"}, target, is_spaced=True) == 1
    (row,) = read_rows(target / "train.jsonl")
    assert row["prompt"] + row["chosen"] == "<user> g <assistant> g"
    assert look_through([Source(str(target))]).bad_rows == []


def _loaded(folder: Path, cache: Path) -> Any:
    datasets: Any = importlib.import_module("datasets")
    return datasets.load_dataset(str(folder), cache_dir=str(cache))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["messages", "mixed", "text"])
def test_trl_applies_the_template_of_whatever_model_it_trains(form: str, tmp_path: Path) -> None:
    trl: Any = importlib.import_module("trl.data_utils")
    folder, _ = _export(FORMS[form][0], tmp_path / "run")
    pairs = _loaded(folder, tmp_path / "cache")
    assert set(pairs) == set(SPLITS)
    for row in pairs["train"]:
        assert trl.is_conversational(row) == (form != "text")
    other = tiny_tokenizer()
    other.chat_template = OTHER_TEMPLATE
    (row,) = (row for split in SPLITS for row in pairs[split] if "Hello 4." in str(row["prompt"]))
    found = [trl.maybe_apply_chat_template(row, each) for each in (tiny_tokenizer(), other)]
    sides = ["Good 4.", "Bad 4."][:: -1 if row["is_flipped"] else 1]
    if form == "text":
        assert found == [row, row]
        assert [row[side] for side in SIDES] == [f" {text}" for text in sides]
        return
    assert found[0]["prompt"] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello 4.<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nWhat is two and two?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [found[0][side] for side in SIDES] == [f"{text}<|im_end|>\n" for text in sides]
    assert found[1]["prompt"] == (
        "[system] Be brief.\n[user] Hello 4.\n[assistant] Hi.\n[user] What is two and two?\n"
        "[assistant] "
    )
    assert [found[1][side] for side in SIDES] == [f"{text}\n" for text in sides]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["messages", "mixed", "text"])
@pytest.mark.parametrize("kind", ["DPO", "Reward"])
def test_trl_trains_on_exported_pairs(form: str, kind: str, tmp_path: Path) -> None:
    trl: Any = importlib.import_module("trl")
    folder, _ = _export(FORMS[form][0], tmp_path / "run")
    pairs = _loaded(folder, tmp_path / "cache")
    tiny_model().save_pretrained(tmp_path / "model")
    transformers: Any = importlib.import_module("transformers")
    head = {"DPO": "CausalLM", "Reward": "SequenceClassification"}[kind]
    kinds: Any = getattr(transformers, f"AutoModelFor{head}")
    trainer = getattr(trl, f"{kind}Trainer")(
        kinds.from_pretrained(tmp_path / "model", **({} if kind == "DPO" else {"num_labels": 1})),
        args=getattr(trl, f"{kind}Config")(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=4,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=pairs["train"],
        processing_class=tiny_tokenizer(),
    )
    assert trainer.train().training_loss > 0
