"""Names and literals that are hard to read: the exit status is 1 where there is one.

    python -m tests.tools.wording

A function is named for what it does, so its name begins with no preposition, but for those that the
field reads at once: `from_` and `to_` convert, `with_` gives a changed copy, `on_` is called back.
A variable is named for what it holds; a class's fields may be those of a file. A literal collection
is written out, not unpacked into another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tools.architecture import PACKAGES

ROOT = Path(__file__).parents[2]
PREPOSITIONS = frozenset(
    "about above after against among as at before behind below beside between beyond by during for "
    "in into of over since through under until up upon within without".split()
)
# Names that hold anything.
VAGUE = frozenset("asked each found own said".split())


def complaints(text: str) -> Iterator[tuple[int, str]]:
    """Line and sentence of all that is hard to read in a module's text."""
    tree = ast.parse(text)
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if node in fields:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, *rest = node.name.strip("_").split("_")
            if rest and first in PREPOSITIONS:
                yield node.lineno, f"{node.name} begins with a preposition: say what it does"
        elif isinstance(node, ast.Name | ast.arg) and _bound_name(node) in VAGUE:
            yield node.lineno, f"a variable is called {_bound_name(node)}: say what it holds"
        elif isinstance(node, ast.Starred) and _is_constant(node.value):
            yield node.lineno, "a literal is unpacked into another: write its elements there"


def _bound_name(node: ast.Name | ast.arg) -> str | None:
    """The name that a node gives to a value; None where it only reads one."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node.ctx, ast.Store) else None


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple | ast.List) and all(
        isinstance(element, ast.Constant) for element in node.elts
    )


def main() -> None:
    """Print what is hard to read in the four packages; raises SystemExit where there is any."""
    lines = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, sentence in complaints(path.read_text(encoding="utf-8"))
    ]
    if lines:
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
