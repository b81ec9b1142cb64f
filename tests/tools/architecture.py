"""The structure of a checkout in numbers: rooms, arrows, floors, circles, files and lines.

    python -m tests.tools.architecture            # this checkout, room by room
    python -m tests.tools.architecture ../other   # another one, or an older revision's work tree
    python -m tests.tools.architecture --arrows   # each arrow too, with how many imports make it
    python -m tests.tools.architecture --check docs/architecture.md   # status 1 above a limit
    python -m tests.tools.architecture --write docs/architecture.md   # its numbers as they are now

A room is flows, tasks, infra, or what lies directly in models: a folder, or a file that lies loose
there. An arrow leads from a room to another that its files import, wherever in a file the import
stands. Floors are the rooms of the longest chain of arrows, where rooms that import each other in a
circle count as one. Circles are counted between rooms, and inside each room between its modules.
Lines are those of the four packages' files, with blank ones and comments. Nothing is imported:
files are read by `ast`.

The page has a table whose rows are `| room | files | lines | at most | ...`. --write lowers what is
allowed, in steps of 50, and never raises it: who needs more lines says in that row what for.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from math import ceil
from pathlib import Path

PACKAGES = ("flows", "tasks", "models", "infra")
DIVIDED = "models"  # the package whose parts are rooms of their own
WRAPPER = "trimtab"  # a package that may hold the four
STEP = 50  # lines
ROW = re.compile(r"^\| (\S+) \| [\d,]+ \| [\d,]+ \| ([\d,]+) \|", re.MULTILINE)

Arrow = tuple[str, str]


@dataclass(frozen=True)
class Structure:
    """What a checkout is made of. modules: lines by dotted name; imports: pairs of modules."""

    modules: Mapping[str, int]
    imports: frozenset[Arrow]

    @property
    def rooms(self) -> dict[str, list[str]]:
        """The modules of each room."""
        rooms = defaultdict(list)
        for name in self.modules:
            if name != DIVIDED:
                rooms[_room(name)].append(name)
        return dict(sorted(rooms.items()))

    @property
    def arrows(self) -> Counter[Arrow]:
        """From room to room, how many imports there are."""
        pairs = [(_room(start), _room(end)) for start, end in self.imports]
        return Counter(pair for pair in pairs if pair[0] != pair[1])

    @property
    def circles(self) -> list[frozenset[str]]:
        """Rooms that import each other, directly or not."""
        return _circles(self.arrows)

    @property
    def inner_circles(self) -> dict[str, list[frozenset[str]]]:
        """Modules of one room that import each other, directly or not, by room."""
        inside = defaultdict(list)
        for start, end in self.imports:
            if _room(start) == _room(end):
                inside[_room(start)].append((start, end))
        return {room: _circles(pairs) for room, pairs in inside.items()}

    @property
    def floors(self) -> int:
        """The rooms of the longest chain of arrows, a circle counting as one."""
        circle = {room: circle for circle in self.circles for room in circle}
        below: dict[frozenset[str], set[frozenset[str]]] = {}
        for room in self.rooms:
            below.setdefault(circle.get(room, frozenset({room})), set())
        for start, end in self.arrows:
            upper, lower = (circle.get(room, frozenset({room})) for room in (start, end))
            if upper != lower:
                below[upper].add(lower)
        height: dict[frozenset[str], int] = {}
        for block in TopologicalSorter(below).static_order():
            height[block] = 1 + max((height[lower] for lower in below[block]), default=0)
        return max(height.values(), default=0)


def _circles(pairs: Iterable[Arrow]) -> list[frozenset[str]]:
    """Names that reach each other along the pairs, several at a time."""
    ends = defaultdict(set)
    for start, end in pairs:
        ends[start].add(end)
    reach = {start: _reached(start, ends) for start in list(ends)}
    groups = {
        frozenset({name, *(other for other in reach[name] if name in reach.get(other, ()))})
        for name in reach
    }
    return sorted((group for group in groups if len(group) > 1), key=sorted)


def _reached(start: str, ends: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = ends.get(waiting.pop(), set()) - reached
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
    known = frozenset(paths)
    imports = {
        (name, imported)
        for name, path in paths.items()
        for imported in _imports(path, _name(path.parent.relative_to(root)), known)
        if imported != name
    }
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in paths.items()
    }
    return Structure(lines, frozenset(imports))


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
    inner = sum(map(len, structure.inner_circles.values()))
    return (
        f"{len(structure.rooms)} rooms, {len(structure.arrows)} arrows, "
        f"{structure.floors} floors, {len(structure.circles)} circles, {inner} inside rooms, "
        f"{len(lines)} files, {sum(lines):,} lines, median {statistics.median(lines):g} lines"
    )


def describe_rooms(structure: Structure) -> dict[str, tuple[int, int]]:
    """Files and lines by room."""
    return {
        room: (len(modules), sum(structure.modules[name] for name in modules))
        for room, modules in structure.rooms.items()
    }


def excesses(structure: Structure, page: str) -> list[str]:
    """What is above a limit of the page's table, or has none there; a sentence for each."""
    limits = {room: _number(limit) for room, limit in ROW.findall(page)}
    complaints = []
    for room, (_, lines) in describe_rooms(structure).items():
        if room not in limits:
            complaints.append(f"{room}: has no row in the table of rooms")
        elif lines > limits[room]:
            complaints.append(
                f"{room}: {lines:,} lines; allowed: at most {limits[room]:,}. Find what the new "
                "lines replace, or raise the limit in the table and say there what they are for"
            )
    return complaints


def rewrite(structure: Structure, page: str) -> str:
    """The page with its numbers as they are now, and no limit higher than it was.

    Raises SystemExit where it has no row `| now |`.
    """
    page, count = re.subn(
        r"^\| now \|.*$", f"| now | {describe(structure)} |", page, flags=re.MULTILINE
    )
    if count != 1:
        raise SystemExit(f"the page has {count} rows `| now |`; it must have one")
    rooms = describe_rooms(structure)

    def row(match: re.Match[str]) -> str:
        room, limit = match[1], _number(match[2])
        if room not in rooms:
            return match[0]
        files, lines = rooms[room]
        return f"| {room} | {files} | {lines:,} | {min(limit, ceil(lines / STEP) * STEP):,} |"

    return ROW.sub(row, page)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def main() -> None:
    """Print the numbers; raises SystemExit where a room is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.architecture")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--arrows", action="store_true")
    parser.add_argument("--check", type=Path, metavar="PAGE")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    structure = structure_of(options.checkout)
    for room, (files, lines) in describe_rooms(structure).items():
        print(f"{room:20} {files:4} files {lines:7,} lines")
    print(describe(structure))
    if options.arrows:
        for (start, end), count in sorted(structure.arrows.items()):
            print(f"{start} -> {end}: {count}")
        for circles in ([structure.circles], structure.inner_circles.values()):
            for circle in (circle for group in circles for circle in group):
                print(f"circle: {', '.join(sorted(circle))}")
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        options.write.write_text(rewrite(structure, text), encoding="utf-8")
    if options.check:
        complaints = excesses(structure, options.check.read_text(encoding="utf-8"))
        if complaints:
            raise SystemExit("\n".join(complaints))


if __name__ == "__main__":
    main()
