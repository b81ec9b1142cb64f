"""Read a growing file of lines by offset."""

from __future__ import annotations

from pathlib import Path


class LineTail:
    """Hands out the whole lines that were added since the last call.

    A last line without its newline is still being written and is left for later. A file that got
    shorter was started afresh and is read from its beginning. `rewind` gives lines back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self, limit: int = 1 << 22) -> list[str]:
        """New whole lines, at most about `limit` bytes of them; [] if there is nothing new."""
        try:
            with self.path.open("rb") as stream:
                if stream.seek(0, 2) < self.offset:
                    self.offset = 0
                stream.seek(self.offset)
                data = stream.read(limit)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode(errors="replace").splitlines()

    def rewind(self, offset: int) -> None:
        """Hand out the lines from `offset` on once more."""
        self.offset = offset


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
