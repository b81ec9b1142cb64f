"""A review that came while a run waited is checked at once and kept by its content."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.infra.access import AccessError
from trimtab.infra.store.fetch import FetchError, is_stored
from trimtab.infra.store.store import Store, open_store
from trimtab.models.data.external_votes import ReviewError
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks import sources
from trimtab.tasks.sources import (
    SPLITS,
    import_review,
    import_source,
    keep_review,
    put_one_object_a_line,
)

LINE = '{"id": "train-1", "verdict": "flip", "note": null}\n'


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = open_store(str(tmp_path / "store"))
    monkeypatch.setattr(sources, "base_context", lambda: SimpleNamespace(store=store))
    return store


@pytest.fixture
def pairs(tmp_path: Path, store: Store) -> ArtifactRef:
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in SPLITS:
        rows = [json.dumps({"id": f"{split}-{number}"}) + "\n" for number in range(2)]
        (folder / f"{split}.jsonl").write_text("".join(rows))
    manifest = store.publish("preferences", "0" * 64, folder)
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def test_a_text_and_a_file_of_it_are_one_review(
    pairs: ArtifactRef, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "review.jsonl").write_text(LINE)
    address = keep_review(LINE, "", pairs)
    assert address is not None and is_stored(address)
    assert keep_review("", str(tmp_path / "review.jsonl"), pairs) == address
    assert keep_review("", address, pairs) == address
    kept = import_review(address)
    manifest = store.find(kept.stage, kept.key)
    assert manifest is not None
    store.materialise(manifest, tmp_path / "kept")
    assert (tmp_path / "kept" / "review.jsonl").read_text() == LINE


def test_other_verdicts_are_another_review(pairs: ArtifactRef) -> None:
    assert keep_review(LINE, "", pairs) != keep_review(LINE.replace("flip", "drop"), "", pairs)


def test_neither_is_no_review_and_both_are_a_mistake(pairs: ArtifactRef) -> None:
    assert keep_review(" \n", " ", pairs) is None
    with pytest.raises(ValueError, match="found verdicts and the file 'a.jsonl'; allowed: one"):
        keep_review(LINE, "a.jsonl", pairs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LINE.replace("train-1", "train-9"), "review.jsonl:1: unknown_id in field 'id'"),
        (LINE.replace("flip", "turn"), "review.jsonl:1: out_of_range in field 'verdict'"),
        (LINE + LINE, "review.jsonl:2: duplicate_id"),
        ("flip them all", "review.jsonl:1: not_json"),
        ("[" * 100_000, "review.jsonl:1: not_json"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_kept(
    pairs: ArtifactRef, store: Store, text: str, said: str
) -> None:
    with pytest.raises(ReviewError) as error:
        keep_review(text, "", pairs)
    assert said in str(error.value)
    assert not any(name.startswith("artifacts/raw/") for name in store.objects.list("artifacts"))


def test_a_file_that_is_not_there(pairs: ArtifactRef, store: Store) -> None:
    with pytest.raises(FetchError, match=r"gone\.jsonl: found no file or folder"):
        keep_review("", "/gone.jsonl", pairs)
    with pytest.raises(FetchError, match="found no such file in the store"):
        keep_review("", f"raw:{'1' * 64}/review.jsonl", pairs)


def test_a_worker_s_run_reads_no_file_of_the_store_but_reviews(
    pairs: ArtifactRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not one that another run had as data, with the same name and content."""
    (tmp_path / "review.jsonl").write_text(LINE)
    data = import_source(str(tmp_path / "review.jsonl"))
    address = keep_review(LINE, "", pairs)
    assert address is not None
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0")
    assert import_review(address).digest == data.digest
    assert keep_review("", address, pairs) == address
    for other in (data.key, "1" * 64):
        with pytest.raises(AccessError, match=f"raw:{other}/review.jsonl' may not be read"):
            keep_review("", f"raw:{other}/review.jsonl", pairs)


def test_ends_of_lines_that_a_form_has_lost_come_back() -> None:
    pretty = json.dumps({"id": "b", "note": "1\u2028\n2"}, indent=1, ensure_ascii=False)
    lines = put_one_object_a_line(LINE.strip() + LINE + pretty).splitlines(keepends=True)
    found = put_one_object_a_line(LINE.strip() + LINE + pretty).split("\n")
    assert found[:2] == [LINE.strip()] * 2 and len(lines) > 3
    assert json.loads(found[2]) == {"id": "b", "note": "1\u2028\n2"} and found[3:] == [""]
    assert put_one_object_a_line('{"id": "a"} and {') == '{"id": "a"} and {'
