"""`trimtab look`: the form of a file, its rows as they were understood, and what to type next."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.audit.look import MAX_ROWS
from trimtab.flows.cli.cli import main
from trimtab.infra.store.fetch import FetchError

# modules without type stubs
pyarrow = importlib.import_module("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")

PAIRS = [{"prompt": f"Why {n}?", "chosen": f"Since {n}.", "rejected": "No."} for n in range(6)]
LINES = "".join(json.dumps(row) + "\n" for row in PAIRS).encode()
TABLE = b"prompt;chosen;rejected\r\n" + b"".join(
    ";".join(row.values()).encode() + b"\r\n" for row in PAIRS
)
VOTED: list[dict[str, Any]] = [
    {"ask": "Why?", "response_a": "Since.", "response_b": "No.", "winner": "b", "id": "x"},
    {"ask": "Why?", "response_a": "Since.", "response_b": "No.", "winner": "a", "batch": 3},
    {"ask": "Why?", "response_a": "Since.", "response_b": "No.", "winner": "a", "batch": 3},
    {"ask": "Why?", "response_a": "Yes.", "response_b": "No.", "winner": "tie"},
    {"ask": "Why?", "response_a": "Yes.", "response_b": "", "winner": "a"},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files of rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    for name, content in {
        "pairs.jsonl": LINES,
        "pairs.jsonl.gz": gzip.compress(LINES),
        "pairs.jsonl.xz": lzma.compress(LINES),
        "excel.csv": TABLE.decode().encode("utf-16"),
    }.items():
        Path(name).write_bytes(content)
    parquet.write_table(pyarrow.Table.from_pylist(PAIRS), "pairs.parquet")
    Path("data").mkdir()
    Path("data/a.jsonl").write_bytes(LINES)
    Path("voted.jsonl").write_text("".join(json.dumps(row) + "\n" for row in VOTED))
    return tmp_path


Look = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Look:
    """Run the command; its status, and what it found of each file."""

    def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
        status = main(["look", *words, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert found["is_readable"] == (status == 0)
        files: list[dict[str, Any]] = found["files"]
        return status, files

    return run


def test_every_kind_of_source_is_read_and_the_same_is_found(look: Look) -> None:
    names = [
        "pairs.jsonl",
        "pairs.jsonl.gz",
        "pairs.jsonl.xz",
        "excel.csv",
        "pairs.parquet",
        "data",
    ]
    status, files = look(*names)
    assert (status, [each["file"] for each in files]) == (0, names)
    for each in files:
        assert each["is_readable"] and each["is_whole"] and list(each["forms"]) == ["explicit"]
        assert each["rows"] == {"read": 6, "used": 6, "refused": 0, "ties": 0, "unpaired": 0}
        shown = [{name: pair[name] for name in PAIRS[0]} for pair in each["examples"]]
        assert shown == PAIRS[:2]
        assert each["next"][0] == f"trimtab audit {each['file']}"
    assert files[3]["examples"][1]["source"] == "excel.csv:3"


def test_rows_are_counted_and_named_by_where_they_went(
    look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    status, (found,) = look("voted.jsonl", "--columns", "prompt=ask,category=batch")
    assert status == 0
    assert found["rows"] == {"read": 5, "used": 1, "refused": 3, "ties": 1, "unpaired": 0}
    assert found["refused_by_reason"] == {"wrong_type": 2, "empty_field": 1}
    status, (found,) = look("voted.jsonl", "--columns", "prompt=ask")
    assert found["rows"] == {"read": 5, "used": 3, "refused": 1, "ties": 1, "unpaired": 0}
    assert (found["repeated"], found["contradicting"]) == (1, 2)
    assert found["ignored_columns"] == {"batch": 2}
    assert found["forms"]["labelled"]["what"] == (
        "two answers, and which won: ask, response_a, response_b, winner"
    )
    first = {"source": "voted.jsonl:1", "prompt": "Why?", "chosen": "No.", "rejected": "Since."}
    assert found["examples"][0] == first
    assert main(["look", "voted.jsonl", "--columns", "prompt=ask"]) == 0
    text = capsys.readouterr().out
    for told in (
        "  form      labelled: two answers, and which won: ask, response_a, response_b, winner (3 ",
        "  rows      5 looked at; 3 used, 1 refused, 1 ties\n",
        "  pairs     3; 1 repeat an earlier one; 2 contradict an earlier one; without category",
        "  ignored   columns 'batch' (2)\n",
        "    rejected  'Since.'\n",
        "  wrong     voted.jsonl:5: empty_field in field 'response_b': found '', allowed: non-e",
        "  next      trimtab audit voted.jsonl --columns prompt=ask\n",
        """ 'preferences.sources=["voted.jsonl"]' 'preferences.columns={"prompt": "ask"}'\n""",
    ):
        assert told in text, text


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"goal": "p", "choosen": "c", "rejcted": "r"}], "choosen"),
        ([{"Goal": "p", "View 1": "c", "View 2": "r", "Vote": "A"}], "View 1"),
        ([{"prompt": "p", " choosen": "c", "rejected": "r"}], " choosen"),
    ],
)
def test_the_next_command_makes_a_file_readable(
    look: Look, rows: list[dict[str, str]], told: str
) -> None:
    Path("mine.jsonl").write_text(json.dumps(rows[0]))
    status, (found,) = look("mine.jsonl")
    assert status == 2 and told in found["problems"][0]
    (command,) = found["next"]
    status, (again,) = look(*shlex.split(command)[2:])
    assert (status, again["pairs"]) == (0, 1)
    assert again["next"][0] == command.replace("trimtab look", "trimtab audit")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.jsonl"], "missing_source"),
        (["point.jsonl"], "pointwise"),
        (["pairs.jsonl", "--format", "pku"], "the nearest is pku"),
        (["pairs.jsonl", "--columns", "chosen=best"], "preferences.columns names 'best'"),
    ],
)
def test_what_cannot_be_read_is_said_with_status_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("point.jsonl").write_text('{"text": "t", "score": 3}')
    assert main(["look", *words]) == 2
    text = capsys.readouterr().out
    assert "  form      not readable as it is\n" in text and told in text


def test_a_mistyped_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "pairs.jsonl", "--format", "helpster3"]) == 2
    assert "did you mean 'helpsteer3'" in capsys.readouterr().err


def test_the_first_rows_are_read_unless_all_are_asked_for(
    look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("long.jsonl").write_text(json.dumps(PAIRS[0]) + "\n" + LINES.decode() * 900)
    _, (found,) = look("long.jsonl")
    assert (found["rows"]["read"], found["is_whole"]) == (MAX_ROWS, False)
    _, (found,) = look("long.jsonl", "--all")
    assert (found["rows"]["read"], found["is_whole"]) == (5401, True)
    main(["look", "long.jsonl"])
    assert "5,000 looked at, there are more: --all reads them" in capsys.readouterr().out


def test_nothing_large_is_imported_and_nothing_is_written(folder: Path) -> None:
    code = (
        "import sys; from trimtab.flows.cli.cli import main; main(['look', 'pairs.jsonl']); "
        "print(sorted({'torch', 'prefect', 'mlflow', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n")
    assert not (folder / "home").exists()


def test_characters_of_a_terminal_are_shown_not_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"prompt": "\x1b[2Jp", "chosen": "c\x07", "rejected": "r", "x\x1b[0m": 1}
    for name, status in (("", 0), ("chosen", 2)):
        one = {own: value for own, value in row.items() if own != name}
        Path("odd.jsonl").write_text(json.dumps(one))
        assert main(["look", "odd.jsonl"]) == status
        text = capsys.readouterr().out
        assert "x\\x1b[0m" in text and "\x1b" not in text and "\x07" not in text


def test_what_lies_in_s3_is_brought_here_first(
    look: Look, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(source: str, folder: Path) -> Path:
        if source != "s3://mine/pairs.jsonl":
            raise FetchError(f"nothing is at {source}")
        (folder / "pairs.jsonl").write_bytes(LINES)
        return folder / "pairs.jsonl"

    monkeypatch.setattr("trimtab.flows.audit.look.fetch", fetch)
    status, (found,) = look("s3://mine/pairs.jsonl")
    assert (status, found["pairs"], found["next"][0]) == (
        0,
        6,
        "trimtab audit s3://mine/pairs.jsonl",
    )
    assert main(["look", "s3://mine/other.jsonl"]) == 2
    assert "nothing is at s3://mine/other.jsonl" in capsys.readouterr().err


def test_ignored_columns_and_labels_against_scores_are_told_in_few_words(
    folder: Path, look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"margin": n - 2, f"x{n}": 1} for n, row in enumerate(PAIRS * 20)]
    (folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, (found,) = look("many.jsonl")
    assert (found["against_scores"], len(found["ignored_columns"])) == (2, 121)
    assert main(["look", "many.jsonl"]) == 0
    told = capsys.readouterr().out
    assert "2 have a label against their own scores" in told
    assert "'x38' (1), and 81 more\n" in told


def test_nothing_is_shown_as_understood_of_labels_that_cannot_be_told(look: Look) -> None:
    rows = [{"prompt": f"p{n}", "response_a": "c", "response_b": "r", "winner": n} for n in (0, 1)]
    Path("mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, (found,) = look("mine.jsonl")
    assert (status, found["examples"], found["forms"]) == (2, [], {})
    assert "ambiguous_columns in field 'winner'" in found["problems"][0]
