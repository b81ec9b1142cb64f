"""Further fields of rows as columns of Parquet.

A field is a column of the type of its values, and there each key of an object is a column of its
own. So that rows of very many keys take neither time nor memory without bound, there are at most
MAX_FIELDS such columns, and MAX_PARTS keys of objects in all of them together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from trimtab.models.reporting.kit.artifacts import Row

GIVEN, REST = "given_", "further_fields"
MAX_FIELDS, MAX_PARTS = 500, 500


class FieldColumns:
    """The columns of fields, in the order in which they occur; all rows are to be added first.

    A field is JSON text where its values have no type in common, or more keys than are left of
    MAX_PARTS. Fields beyond MAX_FIELDS are together a JSON object, in the column REST.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        """taken: names of other columns. A field named like one, or REST, has GIVEN before it."""
        self._taken = {*taken, REST}
        self._types: dict[str, pa.DataType | None] = {}  # None: JSON text
        self._keys: dict[str, set[tuple[str, ...]]] = {}
        self._clashing: set[str] = set()
        self._has_rest = False

    def add(self, rows: Sequence[Row]) -> None:
        """Take the fields of some rows into account."""
        for name in dict.fromkeys(name for row in rows for name in row):
            if name in self._taken or name.startswith(GIVEN):
                self._clashing.add(name)
            if name in self._types or len(self._types) < MAX_FIELDS:
                known = self._types.get(name, pa.null())
                if known is not None:
                    self._types[name] = self._type(name, known, [row.get(name) for row in rows])
            else:
                self._has_rest = True

    def _type(self, name: str, known: pa.DataType, values: list[Any]) -> pa.DataType | None:
        keys = self._keys.pop(name, set())
        left = MAX_PARTS - sum(map(len, self._keys.values()))
        if not _add_keys(values, (), keys, left):  # before Arrow makes a column of each
            return None
        kind = _common_type(known, values)
        if kind is not None:
            self._keys[name] = keys
        return kind

    def new_names(self) -> dict[str, str]:
        """What fields are called whose names are taken."""
        found = {}
        for name in self._clashing & self._taken:
            new = name
            while new in self._taken or new in self._clashing:
                new = f"{GIVEN}{new}"
            found[name] = new
        return found

    def schema(self) -> list[pa.Field]:
        """Names and types of the columns."""
        names = self.new_names()
        found = [pa.field(names.get(n, n), _held(kind)) for n, kind in self._types.items()]
        return [*found, pa.field(REST, pa.string())] if self._has_rest else found

    def arrays(self, rows: Sequence[Row]) -> list[pa.Array]:
        """The columns of some rows."""
        found = [_array([row.get(n) for row in rows], kind) for n, kind in self._types.items()]
        if self._has_rest:
            rest = [{n: v for n, v in row.items() if n not in self._types} for row in rows]
            found.append(_array([each or None for each in rest], None))
        return found


def _add_keys(
    value: dict[str, Any] | list[Any], path: tuple[str, ...], keys: set[tuple[str, ...]], most: int
) -> bool:
    """Add the paths of all objects' keys; False, and not all of them, where there are too many."""
    if isinstance(value, dict):
        keys.update((*path, name) for name in value)
        parts = (((*path, name), each) for name, each in value.items())
    else:
        parts = ((path, each) for each in value)
    return len(keys) <= most and all(
        _add_keys(each, place, keys, most) for place, each in parts if isinstance(each, dict | list)
    )


def _common_type(known: pa.DataType, values: Sequence[Any]) -> pa.DataType | None:
    """A type that these values have in common with others; None where there is none."""
    try:
        schemas = [pa.schema([("", kind)]) for kind in (known, pa.array(values).type)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowException, OverflowError):
        return None


def _held(kind: pa.DataType | None) -> pa.DataType:
    """The type of a column: text where Parquet cannot hold the values as they are."""
    return pa.string() if kind is None or _has_empty(kind) else kind


def _has_empty(kind: pa.DataType) -> bool:
    """Whether there is an object without keys, which Parquet cannot hold."""
    if pa.types.is_list(kind):
        return _has_empty(kind.value_type)
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty(each.type) for each in kind)
    return False


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """A column of a type. Of whole numbers beside others it keeps what a float64 holds."""
    if kind is None or _has_empty(kind):
        texts = [None if each is None else json.dumps(each, ensure_ascii=False) for each in values]
        return pa.array(texts, pa.string())
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        return pa.array(values).cast(kind, safe=False)
