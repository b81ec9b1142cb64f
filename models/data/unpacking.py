"""Opening data files: unpacked, as UTF-8, and bounded.

A few kilobytes may unpack to gigabytes. Three bounds hold in every reader of
`trimtab.models.data.files`: MAX_ROW_BYTES of one row; MAX_EXPANSION of a packed file as a whole;
and MAX_BATCH_BYTES of a batch of Parquet or Arrow, which a library unpacks.
"""

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

MAX_ROW_BYTES: Final = 16 << 20
MAX_EXPANSION: Final = 100
FREE_BYTES: Final = 256 << 20
"""A packed file may unpack to MAX_EXPANSION times its size, or to this if that is more."""
MAX_BATCH_BYTES: Final = 512 << 20

CHUNK_BYTES: Final = 1 << 16
# Byte order marks; that of UTF-32 begins with that of UTF-16. Without a mark, ASCII at the start.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PAGE_BYTES: Final = resource.getpagesize()
_LIMITING: Final = threading.Lock()


class TooLargeError(ValueError):
    """A row, a batch of rows or a file passes its bound. line: of the row; None: not known."""

    def __init__(self, size: str, allowed: str, line: int | None = None) -> None:
        super().__init__(f"found {size}, allowed: {allowed}")
        self.size, self.allowed, self.line = size, allowed, line


def check_row(num_bytes: int, line: int) -> None:
    """Raise TooLargeError for a row of more than MAX_ROW_BYTES; line: where it starts."""
    if num_bytes > MAX_ROW_BYTES:
        mib = MAX_ROW_BYTES >> 20
        allowed = f"rows of at most {mib} MiB: leave this one out"
        raise TooLargeError(f"a row of more than {mib} MiB", allowed, line)


def check_expansion(num_bytes: int, packed_bytes: int) -> None:
    """Raise TooLargeError where a file of `packed_bytes` has unpacked to too many."""
    if num_bytes > max(FREE_BYTES, MAX_EXPANSION * packed_bytes):
        size = f"{packed_bytes:,} bytes that unpack to more than {num_bytes >> 20:,} MiB"
        allowed = (
            f"at most {MAX_EXPANSION} times the file's size, or {FREE_BYTES >> 20} MiB: unpack it "
            "yourself if it is what it should be"
        )
        raise TooLargeError(size, allowed)


def open_text(path: Path) -> io.BufferedReader:
    """Open a file for reading UTF-8, unpacked where its first bytes say that it is packed.

    UTF-16 and UTF-32 are told by their byte order mark, UTF-16 also by the zeros of ASCII.
    """
    with path.open("rb") as stream:
        start = stream.read(6)
    openers = (opener for magic, opener in _PACKED.items() if start.startswith(magic))
    unpack = next(openers, None)
    source: Any = path.open("rb") if unpack is None else unpack(path)
    start = source.read(CHUNK_BYTES)
    encoding = _encoding(start)
    if unpack is None and encoding is None:
        source.seek(0)
        return source
    packed_bytes = None if unpack is None else path.stat().st_size
    return io.BufferedReader(_Utf8(source, start, encoding, packed_bytes), CHUNK_BYTES)


def _open_zstd(path: Path) -> Any:  # not in the standard library before Python 3.14
    return importlib.import_module("pyarrow").input_stream(str(path), compression="zstd")


_PACKED: Final[dict[bytes, Callable[[Path], Any]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def _encoding(start: bytes) -> str | None:
    """The encoding of a text by its first bytes; None: UTF-8, or one that cannot be told."""
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    zeros = "".join("-" if byte else "0" for byte in start[:4])
    return {"-0-0": "utf-16-le", "0-0-": "utf-16-be"}.get(zeros)


class _Utf8(io.RawIOBase):
    """An unpacked text as UTF-8. Raises TooLargeError once it unpacks to too much."""

    def __init__(
        self, source: Any, start: bytes, encoding: str | None, packed_bytes: int | None
    ) -> None:
        self.source, self.packed_bytes, self.num_bytes = source, packed_bytes, 0
        self.decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
        self.is_whole = False
        self.waiting = memoryview(self._take(start))

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what follows; 0: nothing does."""
        while not self.waiting and not self.is_whole:
            self.waiting = memoryview(self._take(self.source.read(CHUNK_BYTES)))
        count = min(len(buffer), len(self.waiting))
        buffer[:count] = self.waiting[:count]
        self.waiting = self.waiting[count:]
        return count

    def _take(self, chunk: bytes) -> bytes:
        self.is_whole = not chunk
        self.num_bytes += len(chunk)
        if self.packed_bytes is not None:
            check_expansion(self.num_bytes, self.packed_bytes)
        if self.decoder is None:
            return chunk
        return self.decoder.decode(chunk, final=self.is_whole).encode("utf-8")

    def close(self) -> None:
        """Close the file too."""
        self.source.close()
        super().close()


@contextmanager
def limited_memory() -> Iterator[None]:
    """While this lasts, the process gets at most MAX_BATCH_BYTES more memory than it has.

    What needs more raises MemoryError, in libraries too. The kernel sees to it, as a file's own
    numbers of what it unpacks to may lie.
    """
    with _LIMITING:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits = [pages * _PAGE_BYTES + MAX_BATCH_BYTES, soft, hard]
        least = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_AS, (least, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
