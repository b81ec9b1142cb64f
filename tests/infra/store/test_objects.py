"""Objects by name, in a local folder and on a real S3 server."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from trimtab.infra.store.store import Store


@pytest.mark.slow
def test_swap_has_exactly_one_winner(store: Store) -> None:
    wins: list[int] = []
    barrier = threading.Barrier(8)

    def swap(index: int, expected: bytes | None) -> None:
        barrier.wait()
        if store.objects.swap_bytes("x", f"value {index}".encode(), expected):
            wins.append(index)

    for expected in (None, b"first"):
        wins.clear()
        if expected is not None:
            store.objects.put_bytes("x", expected)
        threads = [threading.Thread(target=swap, args=(i, expected)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert store.objects.get_bytes("x") == f"value {wins[0]}".encode()
    assert not store.objects.swap_bytes("x", b"late", None)
    assert not store.objects.swap_bytes("absent", b"late", b"something")


def test_objects_by_name(store: Store, tmp_path: Path) -> None:
    objects = store.objects
    objects.put_bytes("f/one", b"1")
    objects.put_bytes("f/g/two", b"22")
    objects.put_bytes("fg", b"not in the folder")
    listed = objects.list("f")
    assert {name: found.size for name, found in listed.items()} == {"f/one": 1, "f/g/two": 2}
    assert all(abs(found.modified - time.time()) < 60 for found in listed.values())
    assert objects.get_bytes("nothing") is None
    with pytest.raises(KeyError, match="nothing"):
        objects.get_file("nothing", tmp_path / "x")
    objects.delete("f/one")
    objects.delete("f/one")
    assert set(objects.list("f")) == {"f/g/two"}
