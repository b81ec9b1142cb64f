"""Stage `preferences`: people's rows in, disjoint splits, prompts and demonstrations out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models.conftest import run_stage
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.records import read_rows
from trimtab.models.data.row_account import RowAccount, RowCounts
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.training.data import write_rows


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


SPLITS = ("train", "validation", "test")
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


def test_named_columns_of_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [f'"question {n}",good {n},bad {n},topic {n % 2}' for n in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["question,better,worse,topic", *rows]))
    columns = {"prompt": "question", "chosen": "better", "rejected": "worse", "category": "topic"}
    config = CONFIG.model_copy(
        update={"sources": ("pairs.csv",), "categories": (), "columns": columns}
    )
    output = run_stage("preferences", config, tmp_path / "work", source_0=folder)
    pairs = [row for name in SPLITS for row in read_rows(output / f"{name}.jsonl")]
    assert {row["source"] for row in pairs} == {f"pairs.csv:{n}" for n in range(2, 42)}
    (pair,) = [row for row in pairs if row["prompt"] == "question 7"]
    assert (pair["chosen"], pair["rejected"], pair["category"]) == ("good 7", "bad 7", "topic 1")


def _write_answers(folder: Path, answers: Sequence[Any]) -> Path:
    """Two rows a prompt, each with the answer of its place."""
    folder.mkdir()
    rows = [
        {"prompt": f"q {n // 2}", "chosen": f"a {n}", "rejected": "b", "answer": answers[n]}
        for n in range(len(answers))
    ]
    write_rows(folder / "pairs.jsonl", rows)
    return folder


def test_columns_go_with_their_prompt(tmp_path: Path) -> None:
    folder = _write_answers(tmp_path / "raw", [str(n // 2) for n in range(80)])
    changes = {"categories": (), "prompt_columns": ("answer",), "sources": ("pairs.jsonl",)}
    config = CONFIG.model_copy(update=changes)
    output = run_stage("preferences", config, tmp_path / "work", source_0=folder)
    names = (*SPLITS, "policy_prompts", "demonstrations", "eval/main", "eval/validation")
    for name in names:
        rows = read_rows(output / f"{name}.jsonl")
        assert rows
        assert all(row["columns"] == {"answer": row["prompt"].split()[1]} for row in rows)
    account = json.loads((output / "summary.json").read_text())["account"]
    assert "ignored" not in account


def test_columns_are_read_as_the_rows_have_them(tmp_path: Path) -> None:
    """Also one that a pair is made of; a row without one has that of its prompt's other row."""
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [{"prompt": f"q {n // 2}", "chosen": f"a {n}", "rejected": "b"} for n in range(80)]
    rows = [row | {"id": "same"} if n % 2 else row for n, row in enumerate(rows)]
    write_rows(folder / "pairs.jsonl", rows)
    changes = {"categories": (), "prompt_columns": ("id",), "sources": ("pairs.jsonl",)}
    config = CONFIG.model_copy(update=changes)
    output = run_stage("preferences", config, tmp_path / "work", source_0=folder)
    prompts = read_rows(output / "policy_prompts.jsonl")
    assert prompts and all(row["columns"] == {"id": "same"} for row in prompts)


@pytest.mark.parametrize(
    ("name", "answers", "message"),
    [
        ("reply", ["x"] * 40, "found 'reply', which no row has; allowed: answer, chosen"),
        (
            "answer",
            [*"x" * 39, "y"],
            r"differ in 'answer', found 'x' \(pairs.jsonl:[0-9]+\) and 'y' \(pairs",
        ),
    ],
)
def test_columns_that_no_prompt_can_have(
    tmp_path: Path, name: str, answers: list[str], message: str
) -> None:
    folder = _write_answers(tmp_path / "raw", answers)
    changes = {"categories": (), "prompt_columns": (name,), "sources": ("pairs.jsonl",)}
    config = CONFIG.model_copy(update=changes)
    with pytest.raises(ValueError, match=f"preferences.prompt_columns: .*{message}"):
        run_stage("preferences", config, tmp_path / "work", source_0=folder)


def test_columns_of_trimtab_s_own_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prompt_columns must not be .*, found category"):
        PreferencesConfig(prompt_columns=("answer", "category"))
    with pytest.raises(ValueError, match=r"prompt_columns must be empty with written_prompts"):
        PreferencesConfig(prompt_columns=("answer",), written_prompts=True)


def test_unpaired_rows_are_in_the_account(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [
        {"prompt": f"question {n}", "completion": f"answer {label}", "label": label}
        for label in (True, False)
        for n in range(40 + label)
    ]
    (folder / "kto.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = CONFIG.model_copy(update={"sources": ("kto.jsonl",), "max_pairs": 30})
    output = run_stage("preferences", config, tmp_path / "work", source_0=folder)
    account = RowAccount.from_json(json.loads((output / "rows.json").read_text()))
    assert account.rows == RowCounts(
        read=81, used=60, quarantined=0, ties_dropped=0, over_limit=20, unpaired=1
    )
    assert json.loads((output / "summary.json").read_text())["num_unpaired"] == 1


def test_rows_of_one_pair_by_several_annotators_may_have_soft_labels(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = []
    for n in range(40):
        for who in ("ann", "bob", 3):
            better, worse = ("bad", "good") if who == 3 and n % 4 == 0 else ("good", "bad")
            rows.append({"prompt": f"q{n}", "chosen": better, "rejected": worse, "worker_id": who})
    rows.append({"prompt": "alone", "chosen": "x", "rejected": "y", "worker_id": "ann"})
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = CONFIG.model_copy(update={"annotator_labels": True})
    output = run_stage("preferences", config, tmp_path / "work", source_0=folder)
    train, *held_out = ([*read_rows(output / f"{name}.jsonl")] for name in SPLITS)
    assert not any("label" in row for rows in held_out for row in rows)
    for row in train:
        assert row["opinions"][0]["prefers"] == "chosen"
        if row["prompt"] == "alone":
            assert "label" not in row
        else:
            assert row["label"] > 0.9 if row["chosen"] == "good" else row["label"] < 0.1
    assert any(row["chosen"] == "bad" for row in train)
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows[::3])))
    with pytest.raises(ValueError, match="no pair has votes of several annotators"):
        run_stage("preferences", config, tmp_path / "again", source_0=folder)


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


def _mixed_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of two sources. The first: 40 good rows with a field that means nothing, then one that
    repeats the first, one that contradicts the second, two with votes (one against its label), a
    tie, and two rankings of three. The second: 10 good ones, one without an answer, one too long.
    """
    first: list[dict[str, Any]] = [{**_hh(index), "my note": "x"} for index in range(40)]
    first.append(_hh(0))
    first.append({"chosen": _hh(1)["rejected"], "rejected": _hh(1)["chosen"]})
    first.append({**_hh(100), "votes_chosen": 3, "votes_rejected": 2})
    first.append({**_hh(101), "votes_chosen": 1, "votes_rejected": 4})
    first.append({**_hh(102), "tie": True})
    for index in (103, 104):
        prompt = f"\n\nHuman: question {index}\n\nAssistant:"
        first.append({"prompt": prompt, "responses": [" best", " second", " last"]})
    second: list[dict[str, Any]] = [_hh(index) for index in range(200, 210)]
    second.append({"chosen": "only this"})
    second.append({"chosen": _hh(1)["chosen"] + "x" * 3000, "rejected": _hh(1)["rejected"]})
    return first, second


@pytest.mark.parametrize("max_pairs", [None, 30])
def test_every_row_is_in_exactly_one_place(tmp_path: Path, max_pairs: int | None) -> None:
    first, second = _mixed_rows()
    folders = {}
    for index, rows in enumerate((first, second)):
        folder = folders[f"source_{index}"] = tmp_path / f"source_{index}"
        folder.mkdir()
        # A blank line is no row, and is not counted as one.
        text = "\n\n".join(json.dumps(row) for row in rows)
        (folder / f"{index}.jsonl").write_text(text)
    config = PreferencesConfig(
        sources=("0.jsonl", "1.jsonl"),
        on_bad_rows="quarantine",
        on_ties="drop",
        max_characters=2000,
        max_pairs=max_pairs,
        validation_share=0.2,
        test_share=0.2,
    )
    output = run_stage("preferences", config, tmp_path / "work", **folders)
    account = RowAccount.from_json(json.loads((output / "rows.json").read_text()))
    # From the files themselves. Rows stand on every second line, the tie is the 45th of the first.
    lines = {f"0.jsonl:{2 * at - 1}" for at in range(1, len(first) + 1)}
    lines |= {f"1.jsonl:{2 * at - 1}" for at in range(1, len(second) + 1)}
    pairs = [
        row
        for name in ("train", "validation", "test")
        for row in read_rows(output / f"{name}.jsonl")
    ]
    used = {row["source"] for row in pairs}
    refused = {f"{row['file']}:{row['line']}" for row in read_rows(output / "quarantine.jsonl")}
    tie = {"0.jsonl:89"}
    assert not used & refused and not used & tie
    left_out = lines - used - refused - tie
    assert refused == {"1.jsonl:21", "1.jsonl:23"}
    counted = (
        account.rows.read,
        account.rows.used,
        account.rows.quarantined,
        account.rows.ties_dropped,
        account.rows.over_limit,
    )
    assert counted == (len(lines), len(used), 2, 1, len(left_out))
    assert account.quarantined_by_reason == {"missing_field": 1, "too_long": 1}
    assert account.by_source["1.jsonl"].read == 12
    assert account.by_source["1.jsonl"].used == sum(name.startswith("1.") for name in used)
    # 40 + 1 + 1 + 2 + 10 rows of one pair, and two of three.
    assert (account.pairs_found, account.pairs_used) == (60, max_pairs or 60)
    assert account.ignored_fields == {"my note": 40}
    summary = json.loads((output / "summary.json").read_text())
    if max_pairs is None:
        assert not left_out
        told = (account.repeated, account.contradicting, account.with_votes, account.against_votes)
        assert told == (1, 1, 2, 1)
        assert "max_pairs" not in summary["account"] + summary["warnings"]
    else:
        assert left_out
        assert f"{len(left_out)} left out by max_pairs=30" in summary["account"]
        assert "preferences.max_pairs=30 left out 30 of 60 good pairs" in summary["warnings"]
    assert "2 of 59 rows were refused" in summary["warnings"]


def test_an_account_that_does_not_add_up_is_refused() -> None:
    lost = RowCounts(read=4, used=2, quarantined=1, ties_dropped=0, over_limit=0)
    with pytest.raises(ValueError, match="rows do not add up"):
        RowAccount(lost, {"a": lost}, {"too_long": 1}, None, 2, 2, 0, 0, 0, 0)
    rows = RowCounts(read=4, used=2, quarantined=1, ties_dropped=0, over_limit=1)
    with pytest.raises(ValueError, match="sources' read rows come to 0"):
        RowAccount(rows, {}, {"too_long": 1}, None, 2, 2, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="reasons .* do not add up"):
        RowAccount(rows, {"a": rows}, {}, None, 2, 2, 0, 0, 0, 0)
