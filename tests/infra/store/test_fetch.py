"""Sources come from paths and from S3, or are named as missing."""

from __future__ import annotations

import uuid
from pathlib import Path

import boto3
import pytest

from tests.infra.conftest import S3Server
from trimtab.infra.store.fetch import FetchError, _targets, fetch, is_stored


def test_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("1")
    copy = fetch(str(tmp_path / "data" / "a.jsonl"), tmp_path / "one")
    assert copy == tmp_path / "one" / "a.jsonl"
    assert copy.read_text() == "1"
    assert (fetch(str(tmp_path / "data") + "/", tmp_path / "two") / "a.jsonl").read_text() == "1"


def test_the_name_of_a_stored_file_is_one_line() -> None:
    address = f"raw:{'a' * 64}/"
    assert is_stored(f"{address}r\u00e9view 1.jsonl")
    for wrong in ("", "a/b", "a\n~~~\n# b", "a\0", "a\x1b[2J", "a\u2028b", "a\n"):
        assert not is_stored(address + wrong)


def test_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="nowhere: found no file or folder"):
        fetch(str(tmp_path / "nowhere"), tmp_path / "copy")


def test_objects_and_prefixes_come_from_s3(s3_server: S3Server, tmp_path: Path) -> None:
    bucket, root = s3_server.bucket, uuid.uuid4().hex
    client = boto3.client("s3")
    for name in ("a.jsonl", "deep/b.jsonl", "deeper/"):
        client.put_object(Bucket=bucket, Key=f"{root}/data/{name}", Body=name.encode())
    client.put_object(Bucket=bucket, Key=f"{root}/database", Body=b"no part of data/")
    one = fetch(f"s3://{bucket}/{root}/data/a.jsonl", tmp_path / "one")
    assert (one.name, one.read_text()) == ("a.jsonl", "a.jsonl")
    whole = fetch(f"s3://{bucket}/{root}/data/", tmp_path / "all")
    files = {str(p.relative_to(whole)): p.read_text() for p in whole.rglob("*") if p.is_file()}
    assert files == {"a.jsonl": "a.jsonl", "deep/b.jsonl": "deep/b.jsonl"}
    for missing in (f"s3://{bucket}/{root}/dat", "s3://no-such-bucket/x"):
        with pytest.raises(FetchError, match=missing):
            fetch(missing, tmp_path / "none")


def test_an_object_that_would_leave_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="would leave"):
        list(_targets("s3://b/data", "data", ["data/../secret"], tmp_path))
