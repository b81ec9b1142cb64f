"""Names that are hard to read and literals in literals are pointed at, others are not."""

from __future__ import annotations

from tests.tools.wording import complaints

TEXT = """
def by_length(rows): ...
async def _of_pair(): ...
def from_json(text): ...
def with_end(text): ...
def of(): ...
def order_by_length(rows, each): ...
found = [row.own for row in rows]
class Problem: found: str
names = (*("a", "b"), "c")
more = [*names, *(name for name in names), *[f(1)]]
"""


def test_what_is_hard_to_read_is_named_with_its_line() -> None:
    assert [line for line, _ in sorted(complaints(TEXT))] == [2, 3, 7, 8, 10]
