"""Texts of all clients on their way to the model: one queue, one thread that computes.

A batch is what has waited longest, up to a number of tokens. While a pass runs the next batch
gathers; where nothing runs, the first text waits `wait_seconds` for others. The queue is bounded in
texts and in tokens: what does not fit is refused at once, for its client to send again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from trimtab.models.reward_server.ensemble import Text
from trimtab.models.reward_server.formats import Scored

Score = Callable[[Sequence[Text]], list[Scored]]


class QueueFullError(RuntimeError):
    """There is no room for a request's texts at present."""


class ScoreError(RuntimeError):
    """The model gave no score; what it says holds no text of a request."""


@dataclass(frozen=True)
class QueueLimits:
    """Most texts and tokens that wait, most tokens of a batch, and seconds that one gathers."""

    texts: int
    tokens: int
    batch_tokens: int
    wait_seconds: float


@dataclass(eq=False)
class _Request:
    """A request whose texts may come to several batches. scores: by place among its texts."""

    num_texts: int
    arrived: float = field(default_factory=time.monotonic)
    scores: dict[int, Scored] = field(default_factory=dict)
    future: Future[list[Scored]] = field(default_factory=Future)

    def add(self, place: int, scored: Scored) -> None:
        self.scores[place] = scored
        is_whole = len(self.scores) == self.num_texts
        if is_whole and self.future.set_running_or_notify_cancel():
            self.future.set_result([self.scores[place] for place in range(self.num_texts)])

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


_Waiting = tuple[_Request, int, Text]


class RewardQueue:
    """`reserve` room for a request, then `submit` its texts or `release` the room."""

    def __init__(
        self,
        score: Score,
        limits: QueueLimits,
        observe: Callable[[int, int, float], None] = lambda texts, tokens, seconds: None,
    ) -> None:
        """score: of a batch. observe: is told texts, tokens and seconds of every batch."""
        self._score, self._limits, self._observe = score, limits, observe
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_texts = self.num_tokens = 0
        self.fault = ""  # why the last batch failed, if it did
        self._thread = threading.Thread(target=self._compute, name="model", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread computes."""
        return self._thread.is_alive()

    @property
    def has_room(self) -> bool:
        """Whether a text would be taken."""
        limits = self._limits
        return self.num_texts < limits.texts and self.num_tokens < limits.tokens

    def reserve(self, num_texts: int) -> None:
        """Take room for texts whose tokens are not known yet. Raises QueueFullError."""
        with self._changed:
            if self._is_closed or self.num_texts + num_texts > self._limits.texts:
                raise QueueFullError(f"{self.num_texts} texts wait")
            self.num_texts += num_texts

    def release(self, num_texts: int) -> None:
        """Give room back that was reserved."""
        with self._changed:
            self.num_texts -= num_texts

    def submit(self, texts: Sequence[Text]) -> Future[list[Scored]]:
        """Queue texts for which there is room; the future may be cancelled.

        Raises QueueFullError where their tokens do not fit, and keeps the room then.
        """
        tokens = sum(text.num_tokens for text in texts)
        with self._changed:
            # A request by itself always fits, however long.
            if self.num_tokens and self.num_tokens + tokens > self._limits.tokens:
                raise QueueFullError(f"{self.num_tokens} tokens wait")
            self.num_tokens += tokens
            request = _Request(len(texts))
            self._waiting.extend((request, place, text) for place, text in enumerate(texts))
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Compute what waits, and end; nothing more is taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _compute(self) -> None:
        while (batch := self._next_batch()) is not None:
            started = time.perf_counter()
            texts = [text for _, _, text in batch]
            try:
                scores = self._score(texts)
                self.fault = ""
            except Exception as error:  # of torch or the model: those requests fail, others go on
                self.fault = f"{type(error).__name__}: {error}"
                print(f"trimtab: a batch failed: {self.fault}", file=sys.stderr, flush=True)
                for request, _, _ in batch:
                    request.fail(ScoreError(f"the model failed: {type(error).__name__}"))
                continue
            num_tokens = sum(text.num_tokens for text in texts)
            self._observe(len(texts), num_tokens, time.perf_counter() - started)
            for (request, place, _), scored in zip(batch, scores, strict=True):
                request.add(place, scored)

    def _next_batch(self) -> list[_Waiting] | None:
        """The texts that have waited longest; None once the queue is closed and empty."""
        batch: list[_Waiting] = []
        tokens, most = 0, self._limits.batch_tokens
        with self._changed:
            while not batch:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return None
                gathered = self._waiting[0][0].arrived + self._limits.wait_seconds
                self._changed.wait_for(
                    lambda: self.num_tokens >= most or self._is_closed,
                    max(0.0, gathered - time.monotonic()),
                )
                while self._waiting:
                    request, _, text = self._waiting[0]
                    is_wanted = not request.future.done()  # nor cancelled, as its client has gone
                    if is_wanted and batch and tokens + text.num_tokens > most:
                        break
                    taken = self._waiting.popleft()
                    self.num_texts -= 1
                    self.num_tokens -= text.num_tokens
                    if is_wanted:
                        batch.append(taken)
                        tokens += text.num_tokens
        return batch
