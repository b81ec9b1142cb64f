"""Sources come from paths and from S3, or are named as missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.fetch import FetchError, fetch


def test_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("1")
    copy = fetch(str(tmp_path / "data" / "a.jsonl"), tmp_path / "one")
    assert copy == tmp_path / "one" / "a.jsonl"
    assert copy.read_text() == "1"
    assert (fetch(str(tmp_path / "data") + "/", tmp_path / "two") / "a.jsonl").read_text() == "1"


def test_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="nowhere: found no file or folder"):
        fetch(str(tmp_path / "nowhere"), tmp_path / "copy")
