"""The layout itself: every layer has every stage's file, and functions stay small."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import trimtab
from trimtab.models.specs import SPECS
from trimtab.tasks import stages
from trimtab.tasks.stages import is_transient

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "models", "infra")
SOURCES = sorted(path for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py"))
MAX_FUNCTION_LINES = 60
MODULES = [module.name for module in pkgutil.walk_packages(trimtab.__path__, "trimtab.")]
STAGES = [module.name for module in pkgutil.iter_modules([str(ROOT / "models" / "stages")])]


def test_every_module_imports() -> None:
    for name in MODULES:
        importlib.import_module(name)


def test_every_stage_has_a_specification_a_task_and_a_trainer() -> None:
    assert set(SPECS) == set(stages.TASKS) == set(STAGES)
    assert set(stages.HOOKS) <= set(SPECS)
    assert all(spec.doc for spec in SPECS.values())


@pytest.mark.parametrize("stage", STAGES)
def test_every_task_is_of_its_device_and_is_tried_again(stage: str) -> None:
    task = stages.TASKS[stage]
    assert task.name == stage
    assert task.tags == {SPECS[stage].device}
    assert task.retries == 3
    assert task.retry_condition_fn is is_transient


# Methods of a Stage that are given an input's name.
READING = {"policy", "scorer", "several", "rows"}
# Modules that read inputs for a stage, beside its own.
READERS = {
    "sample_responses": [],  # its module also reads them for those who learn from them
    "audit": ["reporting/audit/pairs.py"],
    "ppo_max": ["stages/ppo_max/scorers.py", "stages/ppo_max/trainer.py"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_trainer_reads_the_inputs_of_its_specification(stage: str) -> None:
    """Every input that a trainer names in its code is one of its specification."""
    spec = SPECS[stage]
    if spec.mapping == "artifacts":
        return
    known = {*spec.inputs, *spec.files}
    for path in READERS.get(stage, [f"stages/{stage}.py"]):
        for name in _inputs_named(ROOT / "models" / path):
            assert name in known or any(name.startswith(f"{each}_") for each in known), (path, name)


def _inputs_named(path: Path) -> set[str]:
    """x of every inputs["x"], inputs.get("x"), `"x" in inputs`, stage.rows("x", ...) and the like,
    and f-string that begins with it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and _is_inputs(node.value):
            names |= _texts(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_asked = _is_inputs(node.func.value) and node.func.attr == "get"
            if node.args and (is_asked or node.func.attr in READING):
                names |= _texts(node.args[0])
        elif isinstance(node, ast.Compare) and _is_inputs(node.comparators[0]):
            names |= _texts(node.left)
    return names


def _is_inputs(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == "inputs"


def _texts(node: ast.expr) -> set[str]:
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


@pytest.fixture(scope="module")
def nodes() -> dict[str, list[ast.AST]]:
    """Everything in the syntax tree of every file, by its path; the module comes first."""
    return {
        str(path.relative_to(ROOT)): list(ast.walk(ast.parse(path.read_text()))) for path in SOURCES
    }


def test_files_say_what_they_are(nodes: dict[str, list[ast.AST]]) -> None:
    undescribed = [path for path, (module, *_) in nodes.items() if not ast.get_docstring(module)]
    assert nodes
    assert not undescribed


def test_functions_stay_small(nodes: dict[str, list[ast.AST]]) -> None:
    functions = [
        (f"{path}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path, each in nodes.items()
        for node in each
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [
        f"{where} has {length} lines" for where, length in functions if length > MAX_FUNCTION_LINES
    ]
    assert functions
    assert not long


def test_modules_have_one_name(nodes: dict[str, list[ast.AST]]) -> None:
    """`models` is `trimtab.models` alone: by two names a module would be loaded twice."""
    imports = [
        (path, name)
        for path, each in nodes.items()
        for node in each
        for name in _imported(node)
        if name.partition(".")[0] in PACKAGES
    ]
    assert not imports


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_no_flow_shadows_a_library() -> None:
    """Loading flows/x.py by path puts flows/ first on sys.path."""
    for path in (ROOT / "flows").glob("*.py"):
        if path.stem not in ("__init__", "config", "cli"):
            spec = importlib.util.find_spec(path.stem)
            assert spec is None or "main" in str(spec.origin), path


def test_files_that_are_no_modules_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = settings["tool"]["setuptools"]["package-data"].items()
    in_wheel = {
        path.resolve()
        for package, names in packaged
        for name in names
        for path in ROOT.joinpath(*package.split(".")).glob(name)
    }
    found = {path for top in PACKAGES for path in (ROOT / top).rglob("*") if path.is_file()}
    texts = {path for path in found if path.suffix not in (".py", ".pyc")}
    assert texts and texts <= in_wheel, sorted(texts - in_wheel)
