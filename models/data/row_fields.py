"""Fields of the sources' rows that pairs do not hold: kept on disk, and written beside the pairs.

What is not JSON becomes it: dates and decimals text, bytes base64, numbers that are not finite
null, half of a surrogate pair a question mark, and values nested deeper than MAX_DEPTH JSON text.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from trimtab.models.data.formats import ParsedRow
from trimtab.models.data.presets import METADATA
from trimtab.models.data.problems import shorten
from trimtab.models.data.records import PreferencePair
from trimtab.models.data.row_account import PreferenceReport

Row = dict[str, Any]
MAX_DEPTH: Final = 32
SETTING: Final = "preferences.prompt_columns"
MOST_NAMED: Final = 20
# Of a pair of two rows (unpaired data) fields are named by the answer that they came with.
HALVES: Final = ("chosen_", "rejected_")
_TEXTS: Final = ("prompt", "chosen", "rejected")


class RowFields:
    """Fields of rows, by the key of their source and their number in it.

    They are lines of `stream`, a file that is read and written; in memory are 8 bytes for each row
    of the sources.
    """

    def __init__(self, stream: IO[bytes], prompt_columns: Sequence[str] = ()) -> None:
        """prompt_columns: of which `columns` keeps what the rows have."""
        self.columns = PromptColumns(prompt_columns)
        self._stream = stream
        self._starts: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._has_any = False

    def add(self, key: str, number: int, fields: Mapping[str, Any]) -> None:
        """Keep the fields of row `number`, from 1, of a source; rows come in their order."""
        if not fields:
            return
        starts = self._starts[key]
        starts.extend([-1] * (number - len(starts)))
        starts[number - 1] = self._stream.tell()
        values = {_text(name): plain(value) for name, value in fields.items()}
        self._stream.write(json.dumps(values, ensure_ascii=False).encode("utf-8") + b"\n")
        self._has_any = True

    def write(
        self,
        folder: Path,
        splits: Mapping[str, Sequence[PreferencePair]],
        row_of: Mapping[str, tuple[str | int, ...]],
    ) -> None:
        """Write `<split>.jsonl` to a new folder: on each line the fields of that pair's row.

        row_of: by a pair's id the key of its source and the numbers of its rows, of two rows first
        that of the chosen answer. Nothing is written where no row has further fields.
        """
        if not self._has_any:
            return
        folder.mkdir()
        for split, pairs in splits.items():
            with (folder / f"{split}.jsonl").open("wb") as lines:
                for pair in pairs:
                    key, *numbers = row_of[pair.id]
                    rows = [self._line(str(key), int(number)) for number in numbers]
                    lines.write(rows[0] if len(rows) == 1 else _joined(rows))

    def _line(self, key: str, number: int) -> bytes:
        starts = self._starts.get(key, ())
        start = starts[number - 1] if number <= len(starts) else -1
        if start < 0:
            return b"{}\n"
        self._stream.seek(start)
        return self._stream.readline()


class PromptColumns:
    """Columns of rows that go with a prompt to reward functions and servers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._values: dict[tuple[str, int], dict[str, Any]] = {}
        self._others = set[str]()

    def add(self, key: str, number: int, row: Mapping[str, Any]) -> None:
        """Keep what row `number` of a source has in these columns, as JSON has it."""
        if self._names:
            self._others.update(row)
            values = {name: plain(row[name]) for name in self._names if name in row}
            self._values[key, number] = values

    def added_to(
        self, pairs: Sequence[PreferencePair], report: PreferenceReport
    ) -> list[PreferencePair]:
        """The pairs with their prompts' columns, null where no row of a prompt has one.

        Raises ValueError for a name that no row has, and where two rows of a prompt differ.
        """
        if not self._names:
            return [*pairs]
        if missing := [name for name in self._names if name not in self._others]:
            others = sorted(self._others)[:MOST_NAMED]
            raise ValueError(
                f"{SETTING}: found {missing[0]!r}, which no row has; allowed: {', '.join(others)}"
            )
        columns: dict[str, dict[str, Any]] = {}
        places: dict[tuple[str, str], str] = {}
        for pair in pairs:
            known = columns.setdefault(pair.prompt, {})
            key, *numbers = report.row_of[pair.id]
            for number in numbers:
                for name, value in self._values[str(key), int(number)].items():
                    place = places.setdefault((pair.prompt, name), pair.source)
                    before = known.setdefault(name, value)
                    if json.dumps(before, sort_keys=True) != json.dumps(value, sort_keys=True):
                        raise ValueError(
                            f"{SETTING}: rows of one prompt differ in {name!r}, found "
                            f"{shorten(before)} ({place}) and {shorten(value)} ({pair.source}); "
                            "allowed: the same in all rows of a prompt that have it"
                        )
        for name in self._names:
            report.ignored_fields.pop(name, None)
        return [
            dataclasses.replace(
                pair, columns={name: columns[pair.prompt].get(name) for name in self._names}
            )
            for pair in pairs
        ]


def further_fields(row: Row, parsed: ParsedRow, columns: Mapping[str, str]) -> Row:
    """Fields of a good row that its pair does not hold as they are.

    Of a row that gives several pairs, and of half of one, only those of which no answer is made.
    columns: what the row calls Trimtab's columns. Of messages the pair holds all.
    """
    if parsed.is_waiting or parsed.rows or len(parsed.better_worse) > 1:
        further = {*parsed.ignored, *(columns.get(name, name) for name in METADATA)}
        return {name: value for name, value in row.items() if name in further}
    if parsed.messages:
        row = {name: value for name, value in row.items() if name not in _TEXTS}
    better, worse = parsed.better_worse[0]
    held: dict[str, tuple[str | None, ...]] = {
        "id": (parsed.id,),
        "category": (parsed.category,),
        "prompt": (parsed.prompt,),
    }
    for name, index in (("chosen", better), ("rejected", worse)):
        answer = parsed.answers[index]
        held[name] = (answer, parsed.prompt + answer)
    return {name: value for name, value in row.items() if value not in held.get(name, ())}


def _joined(lines: Sequence[bytes]) -> bytes:
    fields = {
        f"{half}{name}": value
        for half, line in zip(HALVES, lines, strict=True)
        for name, value in json.loads(line).items()
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n"


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict | list | tuple):
        if depth == MAX_DEPTH:
            return json.dumps(value, default=str)
        if isinstance(value, dict):
            return {_text(str(name)): plain(item, depth + 1) for name, item in value.items()}
        return [plain(item, depth + 1) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
