"""The layout itself: every layer has every stage's file, and functions stay small."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

from tasks.retries import may_pass

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "models", "infra")
SOURCES = sorted(path for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py"))
MAX_FUNCTION_LINES = 60
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
]
STAGES = [module.name for module in pkgutil.iter_modules([str(ROOT / "models" / "stages")])]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_task_and_a_docstring(stage: str) -> None:
    task = ROOT / "tasks" / f"{stage}.py"
    assert task.exists(), f"stage {stage} has a trainer and no task"
    assert f"perform('{stage}'" in "".join(task.read_text().split()).replace('"', "'")


@pytest.mark.parametrize("stage", STAGES)
def test_every_task_is_of_a_kind_and_is_tried_again(stage: str) -> None:
    task = getattr(importlib.import_module(f"tasks.{stage}"), stage)
    assert task.tags in ({"cpu"}, {"gpu"})
    assert task.retries == 3
    assert task.retry_condition_fn is may_pass


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_say_what_they_are_and_functions_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path} has no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            where = f"{path}:{node.lineno} {node.name}"
            assert length <= MAX_FUNCTION_LINES, f"{where} has {length} lines"


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
        path for top, names in packaged for name in names for path in (ROOT / top).glob(name)
    }
    found = {path for top in PACKAGES for path in (ROOT / top).rglob("*") if path.is_file()}
    texts = {path for path in found if path.suffix not in (".py", ".pyc")}
    assert texts and texts <= in_wheel, sorted(texts - in_wheel)
