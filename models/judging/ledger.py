"""What a stage's requests may come to, and came to, where no kill can make it forgotten.

JSON lines that are only ever added to, two a request: the most it can come to, on disk before the
request is sent, and in the end what it did come to. A request without an end counts as its most.

A line that was cut off (the process was killed, the disk was full) counts for nothing, and may: it
is the first of a request that was not sent, or an end, without which the request counts as its
most. Lines name their request, so that two copies of a ledger make one of all their lines
(`models.engine.checkpoint`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.judging.chat import Usage

LEDGER_NAME = "judge.ledger"


class Ledger:
    """A file of lines. Thread-safe; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()

    def total(self) -> Usage:
        """All that was spent, or may have been."""
        held: dict[str, Usage] = {}
        spent: dict[str, Usage] = {}
        for row in self._rows():
            kind = spent if "spent" in row else held
            kind[row["request"]] = Usage(*row["spent" if "spent" in row else "held"])
        return sum((held | spent).values(), Usage())

    def hold(self, request: str, most: Usage) -> None:
        """Note the most that a request can come to; when it returns, that is on disk."""
        self._append({"request": request, "held": _tokens(most)}, is_synced=True)

    def settle(self, request: str, came_to: Usage) -> None:
        """Note what a request came to."""
        self._append({"request": request, "spent": _tokens(came_to)})

    def _rows(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # cut off
                continue

    def _append(self, row: dict[str, Any], is_synced: bool = False) -> None:
        line = json.dumps(row).encode() + b"\n"
        with self.path.open("ab+") as stream:
            with self._writing:
                if stream.seek(0, os.SEEK_END):
                    stream.seek(-1, os.SEEK_END)
                    line = line if stream.read() == b"\n" else b"\n" + line
                stream.write(line)
                stream.flush()
            if is_synced:
                os.fsync(stream.fileno())


def _tokens(usage: Usage) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]
