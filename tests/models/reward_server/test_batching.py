"""Texts of several clients in one batch, bounds, and what becomes of requests that end early."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future

import pytest

from trimtab.models.reward_server.batching import (
    QueueFullError,
    QueueLimits,
    RewardQueue,
    ScoreError,
)
from trimtab.models.reward_server.ensemble import Text
from trimtab.models.reward_server.formats import Scored

LIMITS = QueueLimits(texts=10, tokens=100, batch_tokens=20, wait_seconds=0.0)


def text(name: str, num_tokens: int = 5) -> Text:
    return Text(((name, {"input_ids": [0] * num_tokens}),))


class Model:
    """Scores a text by the length of its name; waits until it may compute."""

    def __init__(self) -> None:
        self.may_compute, self.has_begun = threading.Event(), threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, texts: Sequence[Text]) -> list[Scored]:
        names = [str(each.members[0][0]) for each in texts]
        self.batches.append(names)
        self.has_begun.set()
        assert self.may_compute.wait(30)
        if "broken" in names:
            raise RuntimeError("out of memory")
        return [Scored(float(len(name)), 0.0, 5) for name in names]


def begin(model: Model, limits: QueueLimits = LIMITS) -> RewardQueue:
    """A queue whose model is busy with the text `first`."""
    queue = RewardQueue(model, limits)
    queue.reserve(1)
    queue.submit([text("first")])
    assert model.has_begun.wait(30)
    return queue


def ask(queue: RewardQueue, *texts: Text) -> Future[list[Scored]]:
    queue.reserve(len(texts))
    return queue.submit(texts)


def test_a_batch_is_of_several_clients_and_of_so_many_tokens() -> None:
    model = Model()
    queue = begin(model)
    one = ask(queue, text("a"), text("bb"), text("ccc"))
    two = ask(queue, text("dddd"), text("eeeee"), text("ffffff", 30))
    assert (queue.num_texts, queue.num_tokens) == (6, 55)
    model.may_compute.set()
    assert [each.score for each in one.result(30)] == [1.0, 2.0, 3.0]
    assert [each.score for each in two.result(30)] == [4.0, 5.0, 6.0]
    # 20 tokens at most; a longer text goes by itself. A request may come to two batches.
    assert model.batches[1:] == [["a", "bb", "ccc", "dddd"], ["eeeee"], ["ffffff"]]
    assert (queue.num_texts, queue.num_tokens) == (0, 0)
    queue.close()
    assert not queue.is_alive


def test_a_text_waits_for_others() -> None:
    model = Model()
    model.may_compute.set()
    limits = QueueLimits(texts=10, tokens=100, batch_tokens=10, wait_seconds=60.0)
    queue = RewardQueue(model, limits)
    first = ask(queue, text("a"))
    assert not first.done()
    second = ask(queue, text("b"))  # which makes the batch full
    assert first.result(30) and second.result(30)
    assert model.batches == [["a", "b"]]
    last = ask(queue, text("c"))
    queue.close()  # which waits for nothing
    assert last.result(0)


def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    model = Model()
    queue = begin(model)
    with pytest.raises(QueueFullError, match="0 texts wait"):
        queue.reserve(11)
    taken = ask(queue, text("a", 60))
    queue.reserve(1)
    with pytest.raises(QueueFullError, match="60 tokens wait"):
        queue.submit([text("b", 41)])
    queue.release(1)
    assert (queue.num_texts, queue.num_tokens, queue.has_room) == (1, 60, True)
    fits = ask(queue, text("b", 40))
    assert not queue.has_room
    model.may_compute.set()
    assert taken.result(30) and fits.result(30)
    # By itself a request longer than the queue is taken.
    assert ask(queue, text("long", 500)).result(30)
    queue.close()
    with pytest.raises(QueueFullError):
        queue.reserve(1)


def test_of_a_client_that_has_gone_nothing_is_computed() -> None:
    model = Model()
    queue = begin(model)
    gone, stays = ask(queue, text("gone"), text("gone")), ask(queue, text("stays"))
    assert gone.cancel()
    model.may_compute.set()
    assert stays.result(30)
    with pytest.raises(CancelledError):
        gone.result(30)
    assert model.batches == [["first"], ["stays"]]
    last = ask(queue, text("last"))
    assert last.cancel() or last.done()
    assert ask(queue, text("on")).result(30)  # where all that waited had gone
    queue.close()


def test_a_batch_that_fails_is_an_error_of_its_requests_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Model()
    queue = begin(model)
    broken = ask(queue, *[text("broken")] * 5)
    after = ask(queue, text("after", 20))
    model.may_compute.set()
    with pytest.raises(ScoreError, match="the model failed: RuntimeError"):
        broken.result(30)
    assert after.result(30) and not queue.fault
    # The rest of a request that failed is not computed.
    assert model.batches == [["first"], ["broken"] * 4, ["after"]]
    assert capsys.readouterr().err == "trimtab: a batch failed: RuntimeError: out of memory\n"
    again = ask(queue, text("broken"))
    assert again.exception(30) is not None
    queue.close()
    assert queue.fault == "RuntimeError: out of memory"
