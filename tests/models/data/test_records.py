"""Records: round trips, strictness, and files that are whole and depend on content only."""

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.data.records import (
    ArtifactRef,
    PairStrength,
    PreferencePair,
    Record,
    RecordError,
    RehearsalExample,
    RelabelledPair,
    Rollout,
    Votes,
    read_jsonl,
    write_jsonl,
)

PAIR = PreferencePair(
    id="a",
    prompt="\n\nHuman: Où?\u2028\n\nAssistant:",
    chosen=" Là.",
    rejected=" 🙂",
    category="qa",
    rating=3,
    votes=Votes(3, 1, 1),
    group="g",
    source="f.jsonl:1",
)
RECORDS: list[Record] = [
    PAIR,
    PreferencePair("b", "p", "c", "r"),
    PairStrength("a", -0.25, 0.5, 3),
    RelabelledPair.from_pair(PAIR, is_flipped=True, label=0.9, margin=0.1, weight=0.5),
    Rollout("p", "r"),
    Rollout("p", "r", "qa", -1.5),
    RehearsalExample("p", "r", 4, 0.75),
    ArtifactRef("ppo_max", "k", "d"),
]


def test_a_pair_is_written_as_the_contract_says() -> None:
    assert PAIR.to_json() == {
        "id": "a",
        "prompt": "\n\nHuman: Où?\u2028\n\nAssistant:",
        "chosen": " Là.",
        "rejected": " 🙂",
        "category": "qa",
        "rating": 3,
        "votes": {"chosen": 3, "rejected": 1, "equal": 1},
        "group": "g",
        "source": "f.jsonl:1",
    }


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_round_trip_through_json_text(record: Record) -> None:
    assert type(record).from_json(json.loads(json.dumps(record.to_json()))) == record


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAIR.prompt = "x"  # type: ignore[misc]


def test_flip_swaps_the_roles_and_leaves_the_raw_fields() -> None:
    kept = RelabelledPair.from_pair(PAIR)
    flipped = RelabelledPair.from_pair(PAIR, is_flipped=True)
    assert (kept.preferred, kept.other) == (" Là.", " 🙂")
    assert (flipped.preferred, flipped.other) == (" 🙂", " Là.")
    assert (flipped.chosen, flipped.rejected) == (PAIR.chosen, PAIR.rejected)
    # flipping twice is the identity
    assert RelabelledPair.from_pair(flipped, is_flipped=False) == kept


@pytest.mark.parametrize(
    ("cls", "change", "named"),
    [
        (PreferencePair, {"prompt": 3}, "PreferencePair.prompt"),
        (PreferencePair, {"prompt": None}, "PreferencePair.prompt"),
        (PreferencePair, {"rating": True}, "PreferencePair.rating"),
        (PreferencePair, {"votes": [1, 2, 3]}, "PreferencePair.votes"),
        (PreferencePair, {"votes": {"chosen": 1, "rejected": -1, "equal": 0}}, "0 or more"),
        (PreferencePair, {"colour": "red"}, r"unknown keys \['colour'\]"),
        (PreferencePair, {"id": ...}, r"missing keys \['id'\]"),
        (RelabelledPair, {"label": 1.5}, "label 1.5"),
        (RelabelledPair, {"label": float("nan")}, "label nan"),
        (RelabelledPair, {"weight": -1.0}, "weight -1.0"),
        (RelabelledPair, {"margin": float("inf")}, "margin inf"),
        (PairStrength, {"strength_std": -0.1}, "strength_std >= 0"),
        (PairStrength, {"num_members": 0}, "num_members >= 1"),
    ],
)
def test_wrong_values_are_refused_by_name(
    cls: type[Record], change: dict[str, object], named: str
) -> None:
    good = next(record for record in RECORDS if type(record) is cls).to_json()
    data = {k: v for k, v in {**good, **change}.items() if v is not ...}
    with pytest.raises(RecordError, match=named):
        cls.from_json(data)


def test_whole_numbers_are_taken_for_floats_and_nullable_keys_may_be_absent() -> None:
    assert Rollout.from_json({"prompt": "p", "response": "r", "score": 2}).score == 2.0
    assert Rollout.from_json({"prompt": "p", "response": "r"}).category is None


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_files_round_trip_and_depend_on_content_only(tmp_path: Path, name: str) -> None:
    pairs = [PAIR, PreferencePair("b", "p", "c\n\x85\u2029", "r")]
    (tmp_path / "other").mkdir()
    assert write_jsonl(tmp_path / name, iter(pairs)) == 2
    assert write_jsonl(tmp_path / "other" / f"renamed-{name}", pairs) == 2
    assert read_jsonl(tmp_path / name, PreferencePair) == pairs
    first = (tmp_path / name).read_bytes()
    assert first == (tmp_path / "other" / f"renamed-{name}").read_bytes()
    if name.endswith(".gz"):
        assert first[4:8] == bytes(4)  # RFC 1952: MTIME, 0 for none
        assert gzip.decompress(first).count(b"\n") == 2
    assert os.stat(tmp_path / name).st_mode & 0o777 == 0o644


def test_a_file_without_records_is_a_file(tmp_path: Path) -> None:
    assert write_jsonl(tmp_path / "none.jsonl", []) == 0
    assert read_jsonl(tmp_path / "none.jsonl", Rollout) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_jsonl(path, [Rollout("p", "old")])

    def rows() -> Iterator[Rollout]:
        yield Rollout("p", "new")
        yield Rollout("p", "new", score=float("nan"))

    with pytest.raises(ValueError, match="JSON compliant"):
        write_jsonl(path, rows())
    assert read_jsonl(path, Rollout) == [Rollout("p", "old")]
    assert [file.name for file in tmp_path.iterdir()] == ["rollouts.jsonl"]


@pytest.mark.parametrize("line", [b"{", b'{"prompt": "p"}', b"\xff", b"[" * 100_000, b"3", b""])
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"prompt": "p", "response": "r"}\n' + line + b"\n")
    with pytest.raises(RecordError, match=r"rollouts\.jsonl:2: "):
        read_jsonl(path, Rollout)


def test_a_cut_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    write_jsonl(path, [Rollout("p", str(n)) for n in range(1000)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match="damaged after line"):
        read_jsonl(path, Rollout)
