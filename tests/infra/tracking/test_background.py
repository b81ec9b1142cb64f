"""What is put off is done, and what it raises is not lost."""

from __future__ import annotations

import threading

import pytest

from trimtab.infra.tracking.outbox import Background


def test_what_is_put_off_is_done_once_it_is_settled() -> None:
    background, begun, done = Background(2), threading.Event(), []

    def work() -> None:
        begun.wait()
        done.append(1)

    for _ in range(10):
        background.submit(work)
    assert not done
    begun.set()
    background.wait()
    assert len(done) == 10


def test_an_error_is_raised_once() -> None:
    background = Background(2)
    background.submit(lambda: [][0])
    with pytest.raises(IndexError):
        background.wait()
    background.wait()
