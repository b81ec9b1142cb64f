"""A machine whose clock is wrong loses and damages nothing, and is told where it matters."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import botocore.auth
import pytest
from botocore.compat import get_current_datetime

import trimtab.infra.store.s3
from tests.infra.conftest import KEY, S3Server
from trimtab.infra.store.s3 import S3Objects, StoreLocationError
from trimtab.infra.store.store import Store, open_store

YEAR = 365 * 86_400.0


def _be_off(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    def wrong(*arguments: object, **keywords: object) -> object:
        return get_current_datetime(*arguments, **keywords) + by

    for module in (botocore.auth, trimtab.infra.store.s3):
        monkeypatch.setattr(module, "get_current_datetime", wrong)


@pytest.mark.parametrize(
    ("minutes", "said"), [(20, "20 minutes ahead of"), (-90, "90 minutes beh")]
)
def test_s3_refuses_a_clock_that_is_far_off_and_says_by_how_much(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, minutes: int, said: str
) -> None:
    _be_off(monkeypatch, timedelta(minutes=minutes))
    with pytest.raises(StoreLocationError, match=f"clock is {said}"):
        S3Objects(s3_server.bucket, "prefix")


def test_s3_takes_a_clock_that_is_a_little_off(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _be_off(monkeypatch, timedelta(minutes=10))
    S3Objects(s3_server.bucket, "prefix").put_bytes("name", b"1")


def test_ages_are_told_by_the_store(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = time.time()
    monkeypatch.setattr(time, "time", lambda: truth + YEAR)
    store.publish("toy", KEY, folder)
    assert abs(store.objects.now() - truth) < 60
    for found in store.objects.list("artifacts").values():
        assert abs(found.modified - store.objects.now()) < 60


def test_what_others_are_writing_stays_when_a_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    partial = tmp_path / ".tmp" / "partial"
    partial.touch()
    truth = time.time()
    monkeypatch.setattr(time, "time", lambda: truth + YEAR)
    open_store(str(tmp_path))
    assert partial.exists()
    assert store.objects.drop_unfinished(store.objects.now() + 60) == 1
