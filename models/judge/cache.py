"""Answers on disk: a request that was answered once is never asked again.

One file per answer, named by the sha256 of its request and replaced atomically, so threads and
processes may share a folder, and kill -9 leaves whole files. A file that cannot be read (full disk,
power loss) counts as absent. Files and not diskcache, whose `fetch` unpickles any row that says so,
also under JSONDisk, and whose SQLite database loses all answers where a file loses one.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from models.judge.chat import AnswerError, ChatAnswer


class AnswerCache:
    """A folder of answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> str | None:
        """The kept text of an answer that can be read; None where there is none."""
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
