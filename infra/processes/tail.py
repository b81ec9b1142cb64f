"""Read a growing file of lines by offset."""

from __future__ import annotations

import os
from pathlib import Path

_TRACEBACK = "Traceback (most recent call last):"
_MAX_BYTES = 1 << 18  # of one reading


class LineTail:
    """Hands out the whole lines that were added since the last call.

    A last line without its newline is still being written and is left for later. A file that got
    shorter, or that another took the place of, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = 0

    def read(self) -> list[str]:
        """New whole lines, at most 256 KiB of them; [] if there is nothing new."""
        try:
            with self.path.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                if inode != self._inode or stream.seek(0, 2) < self._offset:
                    self._inode, self._offset = inode, 0
                stream.seek(self._offset)
                data = stream.read(_MAX_BYTES)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


def last_lines(path: Path, count: int, start: int = 0) -> str:
    """The last `count` lines written after byte `start`; "" if there are none."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(start, end - (1 << 16)))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-count:])


def final_exception(log: str) -> str | None:
    """What a Python process that wrote this log died of: `Error: message`, all its lines.

    None where the log does not end in a traceback. The class comes without its module.
    """
    lines = log.splitlines()
    starts = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return None
    after = lines[starts[-1] + 1 :]
    message = next((p for p, line in enumerate(after) if line and not line[0].isspace()), None)
    if message is None:
        return None
    kind, colon, rest = after[message].partition(":")
    return "\n".join([kind.rpartition(".")[2] + colon + rest, *after[message + 1 :]])
