"""The key of a stage's result: its name, configuration, inputs and the version of its code.

The version is a hash over the sources of every module of `models` that the stage imports, directly
or not, found by reading the import statements (nothing is imported), over the other files that lie
in the folder of a package among them, and over the versions of the libraries that compute.
Comments, layout and docstrings take no part: editing them reruns nothing. Nor do the classes of
configurations, whose values are in the key.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import trimtab
from trimtab.infra.processes.fork_server import State, file_states
from trimtab.infra.processes.launch import ENTRY, PRELOAD
from trimtab.infra.store.manifest import hash_file
from trimtab.models.data.records import ArtifactRef

ROOT = Path(trimtab.__file__).parents[1]
PACKAGE = "trimtab.models"
CONFIG = "trimtab.models.config"
LIBRARIES = ("torch", "transformers")
_parsing = threading.Lock()


@dataclass(frozen=True)
class StageModules:
    """Where stages are found: their package and its root folder, entry and preload modules."""

    package: str = "trimtab.models.stages"
    root: Path = ROOT
    entry: str = ENTRY
    preload: str | None = PRELOAD


class CodeChangedError(RuntimeError):
    """A stage's code was edited while it ran, so its key does not describe its result."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"stage {name}: its code on disk changed while it ran; nothing of it was published"
        )


def code_of(modules: StageModules, stage: str) -> str:
    """The version of the stage's code as it is on disk now."""
    module = f"{modules.package}.{stage}"
    return code_version(module, root=modules.root, package=modules.package.rpartition(".")[0])


def stage_key(
    stage: str, config: Mapping[str, Any], inputs: Mapping[str, ArtifactRef], code: str
) -> str:
    """sha256 over the canonical JSON of what decides a stage's result.

    config: without its limits, as `trimtab.models.config.base.values_in_key` gives it. Raising a
    limit continues the same work. Inputs count by their digest, not by their key: an upstream
    change that leaves its output as it was reruns nothing downstream.
    """
    content = {
        "stage": stage,
        "config": config,
        "inputs": {name: ref.digest for name, ref in inputs.items()},
        "code": code,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class UnknownModuleError(ValueError):
    """A module name without a source file."""


@dataclass(frozen=True)
class _Source:
    """The hash of a module's code without comments and docstrings; the names it may import."""

    digest: str
    imports: frozenset[str]


def code_version(module: str, *, root: Path = ROOT, package: str = PACKAGE) -> str:
    """sha256, in hex, of the project code that `module` can reach, and of library versions.

    `root` holds `package`; modules outside of that count by LIBRARIES' versions only.
    Raises UnknownModuleError if `module` has no source file.
    """
    folder = root.joinpath(*package.split("."))
    closure = _closure(module, root, folder, tuple(file_states(folder).items()))
    if module not in closure:
        raise UnknownModuleError(f"no module {module!r} below {root}")
    hashes = {name: source.digest for name, source in closure.items()}
    payload = json.dumps([hashes, library_versions()], sort_keys=True)
    return hashlib.sha256(payload.encode()).hexdigest()


def source_of(function: str) -> Path:
    """The folder that the package or module of `package.module:function` is imported from.

    Nothing is imported. Raises UnknownModuleError if there is no such source file.
    """
    module = function.partition(":")[0]
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, [*sys.path, os.getcwd()])
    places: list[str | None] = []
    if spec is not None:
        places = [*(spec.submodule_search_locations or (spec.origin,))]
    root = Path(places[0]).parent if places and places[0] else None
    if root is None or _source_below(root, module) is None:
        raise UnknownModuleError(
            f"found no source of {module} for {function}; allowed: a module of an installed "
            "package, of PYTHONPATH or of the current folder"
        )
    return root


def require_function(function: str) -> None:
    """UnknownModuleError if there is no source of `package.module:function`, or if its text does
    not have the function's name. Nothing is imported."""
    module, _, name = function.partition(":")
    source = _source_below(source_of(function), module)
    assert source is not None
    text = source.read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{name}\b|import \*|__getattr__", text):
        defined = ", ".join(re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)) or "none"
        raise UnknownModuleError(f"found no {name} in {source.name}; its functions: {defined}")


def function_version(function: str) -> str:
    """sha256, in hex, of the code of `package.module:function` and of what its module imports,
    directly or not, of the same package; of a loose module, of the files beside it.

    Other libraries do not count, nor do files that it reads. Raises UnknownModuleError.
    """
    root, module = source_of(function), function.partition(":")[0]
    top = module.partition(".")[0]
    is_loose = (root / f"{top}.py").is_file() and "site-packages" not in root.parts

    def find(name: str) -> Path | None:
        return _source_below(root, name) if is_loose or name.split(".")[0] == top else None

    hashes = {name: source.digest for name, source in _reach(module, find).items()}
    return hashlib.sha256(json.dumps([function, hashes], sort_keys=True).encode()).hexdigest()


def _source_below(root: Path, module: str) -> Path | None:
    """The file of a module or package in a folder, if it has one."""
    place = root.joinpath(*module.split("."))
    paths = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in paths if path.is_file()), None)


def read_sources() -> None:
    """Parse everything now, which takes a second, rather than when it is waited for."""
    for name, path in _modules(ROOT, ROOT.joinpath(*PACKAGE.split("."))).items():
        _source(name, path)


def library_versions() -> dict[str, str]:
    """Public versions of the computing libraries, read without importing them.

    The local part is left out (2.13.0+cpu is 2.13.0), so that a GPU machine and a CPU machine
    share artifacts.
    """
    return {name: _version(name) for name in LIBRARIES}


@lru_cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "absent"


@lru_cache(maxsize=128)
def _closure(
    module: str, root: Path, folder: Path, states: tuple[tuple[str, State], ...]
) -> Mapping[str, _Source]:
    """The module and what it imports of the package in `folder`; cached for each state of the
    folder's files, for which alone `states` is there."""
    return _reach(module, _modules(root, folder).get)


def _reach(module: str, find: Callable[[str], Path | None]) -> dict[str, _Source]:
    """A module and what it imports, directly or not, as far as `find` knows the files."""
    sources: dict[str, _Source] = {}
    waiting = [module]
    while waiting:
        # Importing a.b.c runs a and a.b first.
        parts = waiting.pop().split(".")
        for name in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            if name not in sources and (path := find(name)) is not None:
                sources[name] = _source(name, path)
                waiting.extend(sources[name].imports)
    return sources


def _modules(root: Path, folder: Path) -> dict[str, Path]:
    """The source of every module but those of CONFIG; of a package, its __init__.py."""
    paths = {}
    for file in folder.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        if ".".join(parts[:3]) == CONFIG:
            continue
        if parts[-1] == "__init__":
            paths[".".join(parts[:-1])] = file
        else:
            paths.setdefault(".".join(parts), file)  # Python prefers a package of that name
    return paths


def _source(module: str, path: Path) -> _Source:
    stat = path.stat()
    # One thread at a time: in Python 3.11 two that parse at once may raise SystemError.
    with _parsing:
        source = _parse(path, module, stat.st_mtime_ns, stat.st_size)
    data = _data_beside(path) if path.name == "__init__.py" else {}
    if not data:
        return source
    content = json.dumps([source.digest, data])
    return replace(source, digest=hashlib.sha256(content.encode()).hexdigest())


def _data_beside(path: Path) -> dict[str, str]:
    """sha256 of the files beside a package's __init__.py that are no modules, such as texts."""
    files = sorted(file for file in path.parent.iterdir() if file.is_file())
    return {
        file.name: hash_file(file)
        for file in files
        if file.suffix != ".py" and not file.name.startswith(".")
    }


@lru_cache(maxsize=4096)
def _parse(path: Path, module: str, mtime_ns: int, size: int) -> _Source:
    """Parse once for each state of the file; `mtime_ns` and `size` are there for the cache."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    statements = _statements(tree)
    imports = frozenset(_imports(statements, package))
    for node in statements:
        _drop_docstring(node)
    # Unparsed rather than dumped: the dump's form changes with the version of Python.
    return _Source(hashlib.sha256(ast.unparse(tree).encode()).hexdigest(), imports)


def _statements(tree: ast.Module) -> list[ast.AST]:
    """The module and all statements in it: a twelfth of the nodes that `ast.walk` goes through."""
    statements: list[ast.AST] = [tree]
    for node in statements:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements.extend(getattr(node, block, ()))
    return statements


def _imports(statements: Iterable[ast.AST], package: str) -> Iterator[str]:
    """Every name that an import statement among these may load."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            # `from trimtab.models.functional import reward` may name a module or an attribute.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()))]:
            node.body = node.body[1:] or [ast.Pass()]
