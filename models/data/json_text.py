"""A JSON text of several values, read in chunks, a value at a time."""

import codecs
import json
import re
from typing import Any, Final

from trimtab.models.data.unpacking import check_row

CHUNK_CHARACTERS: Final = 1 << 20
# A string up to its quote (or the end of its line), or a mark between values.
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]++|(?:\\[^\n])++)*+(?P<quote>"?)|[\[\]{},]')
_NEXT_VALUE: Final = re.compile(r'\s*[^"}\s]')
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class JsonText:
    """A JSON text read in chunks: what is read, up to where it is used, and the line of that."""

    def __init__(self, stream: Any, parser: json.JSONDecoder) -> None:
        self.stream, self.parser = stream, parser
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.text, self.at, self.line, self.is_whole = "", 0, 1, False

    def read_more(self) -> bool:
        """Read a chunk, at least as long as what waits: each character is searched O(1) times."""
        if self.is_whole:
            return False
        chunk = self.stream.read(max(CHUNK_CHARACTERS, len(self.text) - self.at))
        self.is_whole = not chunk
        self.text = self.text[self.at :] + self.decoder.decode(chunk, final=self.is_whole)
        self.at = 0
        return True

    def move(self, end: int) -> None:
        """Use the text up to `end`."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def peek(self) -> str:
        """The next character that is no white space; "" at the end of the text."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.move(space.end() if space else self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_more():
                return ""

    def value(self) -> tuple[str, Any, str | None]:
        """The next value's text, the value, and what is wrong with it if it is none.

        Raises EOFError where the text ends within it.
        """
        while True:
            stop: int | None
            wrong = None
            try:
                value, stop = self.parser.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                value, stop = None, self._end_of_value()
                wrong = str(getattr(error, "msg", error))[:120]
            if stop is not None and (stop < len(self.text) or self.is_whole):
                text = self.text[self.at : stop]
                self.move(stop)
                return text, value, wrong
            check_row(len(self.text) - self.at, self.line)
            if not self.read_more():
                raise EOFError("the text ends within a value")

    def _end_of_value(self) -> int | None:
        """Where a value that may be no JSON ends, by its brackets; None: not in the text so far.

        Behind a quote that is not closed in its line it ends where the next line starts a value.
        """
        depth = 0
        for token in _TOKEN.finditer(self.text, self.at):
            mark, end = token.group(), token.end()
            is_open = mark.startswith('"') and not token["quote"]
            if is_open and self.text.startswith("\n", end) and _NEXT_VALUE.match(self.text, end):
                return self.at + len(self.text[self.at : end].rstrip(", \t\r"))
            if depth == 0 and mark in ",]}":
                return token.start()
            depth += (mark in "[{") - (mark in "]}")
            if depth == 0 and mark in "]}":
                return end
        return len(self.text) if self.is_whole and depth == 0 else None
