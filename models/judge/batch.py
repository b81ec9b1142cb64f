"""A batch of requests to a chat model: equal requests are asked once, and answers are kept.

Answers on disk are one file each, named by the sha256 of its request and replaced atomically, so
threads and processes may share a folder, and kill -9 leaves whole files. A file that cannot be read
(full disk, power loss) counts as absent. Files and not diskcache, whose `fetch` unpickles any row
that says so, also under JSONDisk, and whose SQLite database loses all answers where a file loses
one.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.models.judge.budget import Budget
from trimtab.models.judge.chat import AnswerError, ChatAnswer, ChatModel, ChatRequest, cache_key

OnAnswer = Callable[[], None]


class StoppedError(Exception):
    """The stage was asked to stop. Requests that were under way are answered and kept."""


class AnswerCache:
    """A folder of answers, as texts that `ChatAnswer.from_text` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> str | None:
        """The text of an answer; None if there is none, or it cannot be read."""
        try:
            text = self._path(key).read_text(encoding="utf-8")
            ChatAnswer.from_text(text)
        except (FileNotFoundError, UnicodeDecodeError, AnswerError):
            return None
        return text

    def put(self, key: str, text: str) -> None:
        """Keep the text of an answer."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


@dataclass
class CachedChatModel:
    """A chat model with two caches: in memory and, if `cache` is given, on disk.

    budget: the limits of the model's requests. stop_requested: polled before every request.
    num_asked, num_known: requests that the model answered, and that a cache answered.
    """

    model: ChatModel
    cache: AnswerCache | None = None
    budget: Budget = field(default_factory=Budget)
    stop_requested: Callable[[], bool] = lambda: False
    num_asked: int = 0
    num_known: int = 0
    _texts: dict[str, str] = field(default_factory=dict)

    def ask(
        self, requests: Sequence[ChatRequest], on_answer: OnAnswer = lambda: None
    ) -> list[ChatAnswer]:
        """The answers, in the order of the requests; `on_answer` is called for each.

        Raises StoppedError, and what the model raises. Answers that came before are kept.
        """
        keys = [cache_key(self.model.identity, request) for request in requests]
        counts = Counter(keys)
        waiting = {
            key: request
            for key, request in zip(keys, requests, strict=True)
            if not self._is_known(key)
        }
        self.num_known += len(keys) - len(waiting)
        for _ in range(sum(counts[key] for key in counts.keys() - waiting.keys())):
            on_answer()
        for key, answer in self.model.answers(self._stop_when_asked(dict(waiting))):
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

    def state_dict(self) -> dict[str, str]:
        """The texts in memory by cache key, for a checkpoint."""
        return dict(self._texts)

    def load_state_dict(self, texts: Mapping[str, str]) -> None:
        """Add the texts of a checkpoint, which may come from another machine."""
        self._texts.update(texts)

    def clear_memory(self) -> None:
        """Drop the texts in memory; those on disk stay."""
        self._texts.clear()

    def _is_known(self, key: str) -> bool:
        """Whether a cache has the answer; one on disk is read into memory."""
        if key not in self._texts and self.cache is not None:
            text = self.cache.get(key)
            if text is not None:
                self._texts[key] = text
        return key in self._texts

    def _stop_when_asked(
        self, requests: Mapping[str, ChatRequest]
    ) -> Iterator[tuple[str, ChatRequest]]:
        for item in requests.items():
            if self.stop_requested():
                return
            yield item
