"""Asking a chat model what is not known yet, and remembering what it said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.judge.budget import Budget
from models.judge.cache import AnswerCache
from models.judge.chat import ChatAnswer, ChatModel, ChatRequest, key_of


class StoppedError(Exception):
    """The caller was asked to stop; what was under way is answered and kept."""


@dataclass
class Asker:
    """A chat model with its memory: that of this process, and a cache on disk if there is one.

    budget: what the model's requests may come to. stop_requested: looked at before every request.
    num_asked, num_known: requests that went to the model, and that were known already.
    """

    model: ChatModel
    cache: AnswerCache | None = None
    budget: Budget = field(default_factory=Budget)
    stop_requested: Callable[[], bool] = lambda: False
    num_asked: int = 0
    num_known: int = 0
    _texts: dict[str, str] = field(default_factory=dict)

    def ask(
        self, requests: Sequence[ChatRequest], on_answer: Callable[[], None] = lambda: None
    ) -> list[ChatAnswer]:
        """The answers in order; equal requests are asked once. `on_answer` is called for each.

        Raises StoppedError, and what the model raises; answers that came until then are kept.
        """
        keys = [key_of(self.model.identity, request) for request in requests]
        counts = Counter(keys)
        waiting = {
            key: request
            for key, request in zip(keys, requests, strict=True)
            if not self._recall(key)
        }
        self.num_known += len(keys) - len(waiting)
        for _ in range(sum(counts[key] for key in counts.keys() - waiting.keys())):
            on_answer()
        for key, answer in self.model.answers(self._until_stopped(dict(waiting))):
            del waiting[key]
            self.num_asked += 1
            self._texts[key] = text = answer.to_text()
            if self.cache is not None:
                self.cache.put(key, text)
            for _ in range(counts[key]):
                on_answer()
        if waiting:
            raise StoppedError(f"{len(waiting)} requests are not answered yet")
        return [ChatAnswer.from_text(self._texts[key]) for key in keys]

    def known(self) -> dict[str, str]:
        """All that was of use since the last `forget`, as texts by key: for a checkpoint."""
        return dict(self._texts)

    def remember(self, texts: Mapping[str, str]) -> None:
        """Take in what `known` gave, perhaps on another machine."""
        self._texts.update(texts)

    def forget(self) -> None:
        """Let go of answers that are of no further use; they stay on disk."""
        self._texts.clear()

    def _recall(self, key: str) -> bool:
        """Whether the answer is known."""
        if key not in self._texts and self.cache is not None:
            text = self.cache.get(key)
            if text is not None:
                self._texts[key] = text
        return key in self._texts

    def _until_stopped(
        self, requests: Mapping[str, ChatRequest]
    ) -> Iterator[tuple[str, ChatRequest]]:
        for item in requests.items():
            if self.stop_requested():
                return
            yield item
