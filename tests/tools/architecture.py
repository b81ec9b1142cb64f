"""The structure of a checkout in numbers: rooms, arrows between them, floors, files and lines.

    python -m tests.tools.architecture            # this checkout
    python -m tests.tools.architecture ../other   # another one, or an older revision's work tree
    python -m tests.tools.architecture --arrows   # each arrow too, with how many imports make it
    python -m tests.tools.architecture --write docs/architecture.md   # its row `| now |` anew

A room is flows, tasks, infra, or what lies directly in models: a folder, or a file that lies loose
there. An arrow leads from a room to another that its files import, wherever in a file the import
stands. Floors are the rooms of the longest chain of arrows, where rooms that import each other in a
circle count as one. Lines are those of the four packages' files, with blank ones and comments.
Nothing is imported: files are read by `ast`.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGES = ("flows", "tasks", "models", "infra")
DIVIDED = "models"  # the package whose parts are rooms of their own
WRAPPER = "trimtab"  # a package that may hold the four

Arrow = tuple[str, str]


@dataclass(frozen=True)
class Structure:
    """What a checkout is made of. modules: lines by dotted name; arrows: imports of each."""

    modules: Mapping[str, int]
    arrows: Mapping[Arrow, int]
    rooms: frozenset[str]

    @property
    def circles(self) -> list[frozenset[str]]:
        """Rooms that import each other, directly or not; each of several."""
        reach = {room: self._reached(room) for room in self.rooms}
        found = {
            frozenset({room, *(other for other in reach[room] if room in reach[other])})
            for room in self.rooms
        }
        return sorted((each for each in found if len(each) > 1), key=sorted)

    @property
    def floors(self) -> int:
        """The rooms of the longest chain of arrows, a circle counting as one."""
        circle = {room: circle for circle in self.circles for room in circle}
        below: dict[frozenset[str], set[frozenset[str]]] = {}
        for room in self.rooms:
            below.setdefault(circle.get(room, frozenset({room})), set())
        for start, end in self.arrows:
            one, other = (circle.get(each, frozenset({each})) for each in (start, end))
            if one != other:
                below[one].add(other)
        height: dict[frozenset[str], int] = {}
        for each in TopologicalSorter(below).static_order():
            height[each] = 1 + max((height[other] for other in below[each]), default=0)
        return max(height.values(), default=0)

    def _reached(self, room: str) -> set[str]:
        reached: set[str] = set()
        waiting = [room]
        while waiting:
            now = waiting.pop()
            new = {end for start, end in self.arrows if start == now} - reached
            reached |= new
            waiting += new
        return reached


def structure_of(checkout: Path) -> Structure:
    """Read a checkout. Raises SystemExit where none of the packages is there."""
    root = checkout / WRAPPER if (checkout / WRAPPER / PACKAGES[0]).is_dir() else checkout
    paths = {
        _name(path.relative_to(root)): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    if not paths:
        raise SystemExit(f"none of {', '.join(PACKAGES)} is a folder of Python files in {root}")
    rooms = {name: _room(name) for name in paths}
    arrows: Counter[Arrow] = Counter()
    for name, path in paths.items():
        folder = _name(path.parent.relative_to(root))
        for imported in set(_imports(path, folder, frozenset(paths))):
            if rooms[imported] != rooms[name]:
                arrows[rooms[name], rooms[imported]] += 1
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in paths.items()
    }
    return Structure(lines, arrows, frozenset(rooms.values()) - {DIVIDED})


def _room(name: str) -> str:
    """The room of a module."""
    package, *parts = name.split(".")
    return ".".join([package, *parts[:1]]) if package == DIVIDED else package


def _name(path: Path) -> str:
    """The dotted name of a file or folder; that of `__init__.py` is its package's."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path, folder: str, known: frozenset[str]) -> Iterator[str]:
    """The modules of the checkout that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = folder.split(".")[: folder.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            module = _module_of(name.removeprefix(f"{WRAPPER}."), known)
            if module:
                yield module


@cache
def _module_of(name: str, known: frozenset[str]) -> str | None:
    """The module that has a name, or that a name is an attribute of."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def describe(structure: Structure) -> str:
    """The numbers in a line."""
    lines = structure.modules.values()
    return (
        f"{len(structure.rooms)} rooms, {len(structure.arrows)} arrows, "
        f"{structure.floors} floors, {len(structure.circles)} circles, {len(lines)} files, "
        f"{sum(lines):,} lines, median {statistics.median(lines):g} lines"
    )


def write(line: str, page: Path) -> None:
    """Put the numbers into a page's row `| now |`. Raises SystemExit where it has none."""
    before = page.read_text(encoding="utf-8")
    text, count = re.subn(r"^\| now \|.*$", f"| now | {line} |", before, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{page} has {count} rows `| now |`; it must have one")
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Print the numbers; with --arrows every arrow and circle."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.architecture")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--arrows", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    structure = structure_of(options.checkout)
    print(describe(structure))
    if options.write:
        write(describe(structure), options.write)
    if options.arrows:
        for (start, end), count in sorted(structure.arrows.items()):
            print(f"{start} -> {end}: {count}")
        for circle in structure.circles:
            print(f"circle: {', '.join(sorted(circle))}")


if __name__ == "__main__":
    main()
