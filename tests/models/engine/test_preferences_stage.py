"""Stage `preferences`: people's rows in, disjoint splits, prompts and demonstrations out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.config import PreferencesConfig
from models.engine.data import read_rows
from models.nets.loading import load_tokenizer
from models.preferences import PreferenceDataError
from tests.models.engine.conftest import run_stage


def _hh(index: int) -> dict[str, str]:
    prompt = f"\n\nHuman: question {index}\n\nAssistant:"
    return {"chosen": f"{prompt} a good answer", "rejected": f"{prompt} bad"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    lines = [json.dumps(_hh(index)) for index in range(60)] + ['{"chosen": "no end']
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return folder


CONFIG = PreferencesConfig(
    sources=("elsewhere/pairs.jsonl",),
    categories=("helpful",),
    on_bad_rows="quarantine",
    validation_share=0.2,
    test_share=0.2,
    num_eval_prompts=5,
)


def test_counts_add_up_and_nothing_leaks(tmp_path: Path, source: Path) -> None:
    output = run_stage("preferences", CONFIG, tmp_path / "work", source_0=source)
    splits = {name: read_rows(output / f"{name}.jsonl") for name in ("train", "validation", "test")}
    assert sum(map(len, splits.values())) == 60
    prompts = [{row["prompt"] for row in rows} for rows in splits.values()]
    assert not prompts[0] & prompts[1]
    assert not prompts[0] & prompts[2]
    assert not prompts[1] & prompts[2]
    assert {row["category"] for row in splits["train"]} == {"helpful"}
    bad = read_rows(output / "quarantine.jsonl")
    assert [(row["file"], row["line"]) for row in bad] == [("pairs.jsonl", 61)]
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_rows"], summary["num_quarantined"], summary["num_pairs"]) == (61, 1, 60)
    policy_prompts = {row["prompt"] for row in read_rows(output / "policy_prompts.jsonl")}
    assert policy_prompts == prompts[0]
    assert len(read_rows(output / "eval" / "main.jsonl")) == 5
    assert {row["prompt"] for row in read_rows(output / "eval" / "main.jsonl")} <= prompts[2]


def test_the_first_prompts_are_of_every_source(tmp_path: Path, source: Path) -> None:
    """Evaluation and MetaRM take the first prompts of a split: sources may not stand in a row."""
    rows = [json.loads(line) for line in (source / "pairs.jsonl").read_text().splitlines()[:60]]
    other = tmp_path / "other"
    other.mkdir()
    harmless = json.dumps(rows).replace("question", "insult")
    (other / "insults.jsonl").write_text("\n".join(map(json.dumps, json.loads(harmless))))
    config = CONFIG.model_copy(
        update={
            "sources": ("pairs.jsonl", "insults.jsonl"),
            "categories": ("helpful", "harmless"),
            "num_eval_prompts": 12,
        }
    )
    output = run_stage("preferences", config, tmp_path / "work", source_0=source, source_1=other)
    for name in ("policy_prompts.jsonl", "eval/main.jsonl"):
        first = [row["category"] for row in read_rows(output / name)[:12]]
        assert set(first) == {"helpful", "harmless"}, name


def test_prompts_of_our_own_are_evaluated_beside_those_of_the_pairs(
    tmp_path: Path, source: Path
) -> None:
    before = run_stage("preferences", CONFIG, tmp_path / "before", source_0=source)
    config = CONFIG.model_copy(update={"written_prompts": True})
    output = run_stage("preferences", config, tmp_path / "work", source_0=source)
    for name in ("helpful", "harmless"):
        rows = read_rows(output / "eval" / f"{name}.jsonl")
        assert [row["category"] for row in rows] == [name] * 60
        assert all(row["prompt"].startswith("\n\nHuman: ") for row in rows)
        assert all(row["prompt"].endswith("\n\nAssistant:") for row in rows)
        (output / "eval" / f"{name}.jsonl").unlink()
    for path in before.rglob("*.jsonl"):
        assert (output / path.relative_to(before)).read_bytes() == path.read_bytes()
    assert sorted(p.name for p in (before / "eval").iterdir()) == sorted(
        p.name for p in (output / "eval").iterdir()
    )


def test_where_a_file_lay_does_not_matter(tmp_path: Path, source: Path) -> None:
    first = run_stage("preferences", CONFIG, tmp_path / "first", source_0=source)
    moved = source.rename(tmp_path / "moved")
    second = run_stage("preferences", CONFIG, tmp_path / "second", source_0=moved)
    for name in ("train.jsonl", "test.jsonl", "quarantine.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_bad_rows_fail_by_default_and_are_named(tmp_path: Path, source: Path) -> None:
    config = CONFIG.model_copy(update={"on_bad_rows": "fail"})
    with pytest.raises(PreferenceDataError, match=r"pairs\.jsonl"):
        run_stage("preferences", config, tmp_path / "work", source_0=source)


def test_categories_must_match_sources(tmp_path: Path, source: Path) -> None:
    config = CONFIG.model_copy(update={"categories": ("a", "b")})
    with pytest.raises(ValueError, match="2 entries for 1 sources"):
        run_stage("preferences", config, tmp_path / "work", source_0=source)


@pytest.fixture
def shown(tmp_path: Path, source: Path) -> Path:
    """Demonstrations of every prompt of the pairs and of one more, a dialogue, and a bad row."""
    folder = tmp_path / "shown"
    folder.mkdir()
    dialogue = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    rows: list[dict[str, object]] = [
        {"prompt": f"\n\nHuman: Question  {index}\n\nAssistant:", "completion": " shown"}
        for index in range(61)
    ]
    rows += [{"messages": dialogue, "category": "chat"}, {"prompt": "no completion"}]
    (folder / "shown.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_sft_learns_the_chosen_answers_unless_it_is_shown_others(
    tmp_path: Path, source: Path, shown: Path, policy: Path
) -> None:
    plain = run_stage("preferences", CONFIG, tmp_path / "plain", source_0=source)
    assert read_rows(plain / "demonstrations.jsonl") == [
        {"prompt": row["prompt"], "response": row["chosen"], "category": "helpful"}
        for row in read_rows(plain / "train.jsonl")
    ]
    more = {"demonstrations": ("there/shown.jsonl",), "tokenizer": str(policy / "model")}
    config = CONFIG.model_copy(update=more)
    inputs = {"source_0": source, "demonstrations_0": shown}
    output = run_stage("preferences", config, tmp_path / "work", **inputs)
    for name in ("train.jsonl", "test.jsonl", "policy_prompts.jsonl", "eval/main.jsonl"):
        assert (output / name).read_bytes() == (plain / name).read_bytes()
    rows = read_rows(output / "demonstrations.jsonl")
    held_out = {
        row["prompt"]
        for name in ("validation", "test")
        for row in read_rows(output / f"{name}.jsonl")
    }
    asked = {row["prompt"].replace("Question  ", "question ") for row in rows[:-1]}
    assert not asked & held_out
    assert len(asked) == 61 - len(held_out)
    end = load_tokenizer(policy / "model").eos_token
    assert all(row["text"] == f"{row['prompt']} shown{end}" for row in rows[:-1])
    hh = f"\n\nHuman: hello\n\nAssistant: hi{end}"
    assert rows[-1] == {"prompt": "", "text": hh, "category": "chat"}
    bad = read_rows(output / "quarantine.jsonl")
    assert [(row["file"], row["line"]) for row in bad] == [("pairs.jsonl", 61), ("shown.jsonl", 63)]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["num_demonstrations"] == len(rows)
    assert summary["num_demonstrations_held_out"] == len(held_out)
    assert summary["num_demonstrations_quarantined"] == summary["num_quarantined"] == 1


def test_demonstrations_of_held_out_prompts_alone_are_refused(
    tmp_path: Path, source: Path, policy: Path
) -> None:
    plain = run_stage("preferences", CONFIG, tmp_path / "plain", source_0=source)
    (row, *_) = read_rows(plain / "test.jsonl")
    folder = tmp_path / "shown"
    folder.mkdir()
    shown = {"prompt": row["prompt"], "completion": " shown"}
    (folder / "shown.jsonl").write_text(json.dumps(shown))
    more = {"demonstrations": ("shown.jsonl",), "tokenizer": str(policy / "model")}
    inputs = {"source_0": source, "demonstrations_0": folder}
    with pytest.raises(ValueError, match="all 1 are of prompts that pairs of validation and test"):
        run_stage("preferences", CONFIG.model_copy(update=more), tmp_path / "work", **inputs)
    without = CONFIG.model_copy(update={"demonstrations": ("shown.jsonl",)})
    with pytest.raises(ValueError, match=r"preferences\.tokenizer must be given"):
        run_stage("preferences", without, tmp_path / "work", **inputs)
