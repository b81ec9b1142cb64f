"""A stage's code version: changes with the code it reaches, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import code_version as module
from tasks.code_version import UnknownModuleError, code_version, modules_of

FILES = {
    "models/__init__.py": "",
    "models/engine/__init__.py": "",
    "models/engine/sft.py": (
        "import torch\nfrom models.functional import loss\nfrom . import batching\n"
        "def run():\n    from models.nets.heads import Head\n    return Head\n"
    ),
    "models/engine/batching.py": "import models.records as records\n",
    "models/engine/ppo.py": "x = 1\n",
    "models/functional/__init__.py": "",
    "models/functional/loss.py": '"""Doc."""\ndef f(x):\n    """Doc."""\n    return x + 1\n',
    "models/nets/__init__.py": "from .heads import Head\n",
    "models/nets/heads.py": "from ..records import R\nclass Head: ...\n",
    "models/records.py": "from models.engine import batching\nR = 1\n",
    "flows/__init__.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_closure_follows_every_form_of_import(root: Path) -> None:
    assert modules_of("models.engine.sft", root=root) == [
        "models", "models.engine", "models.engine.batching", "models.engine.sft",
        "models.functional", "models.functional.loss", "models.nets", "models.nets.heads",
        "models.records",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "old", "new", "changes"),
    [
        ("models/functional/loss.py", "x + 1", "x + 2", True),
        ("models/records.py", "R = 1", "R = 2", True),
        ("models/nets/__init__.py", "import Head", "import Head as H", True),
        ("models/engine/ppo.py", "x = 1", "x = 2", False),
        ("models/functional/loss.py", "Doc.", "Other words.", False),
        ("models/functional/loss.py", "return x + 1", "return  x+1  # add one", False),
    ],
)
def test_version_changes_with_reachable_code_only(
    root: Path, path: str, old: str, new: str, changes: bool
) -> None:
    before = code_version("models.engine.sft", root=root)
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))
    assert (code_version("models.engine.sft", root=root) != before) == changes


def test_version_changes_with_the_texts_of_a_package(root: Path) -> None:
    versions = [code_version("models.engine.sft", root=root)]
    text = root / "models" / "nets" / "prompt.txt"
    for content in ("Which is better?", "Which one is better?"):
        text.write_text(content)
        versions.append(code_version("models.engine.sft", root=root))
    assert len(set(versions)) == 3
    (root / "models" / "nets" / ".prompt.txt.swp").write_text("an editor's")
    (root / "flows" / "prompt.txt").write_text("Elsewhere")
    assert code_version("models.engine.sft", root=root) == versions[-1]


def test_version_changes_with_the_libraries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version("models.engine.sft", root=root)
    versions = {"torch": "9.9.9+cu130", "transformers": "1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    monkeypatch.setattr(module, "_version", module._version.__wrapped__)  # it remembers no other
    after = code_version("models.engine.sft", root=root)
    assert after != before
    versions["torch"] = "9.9.9+cpu"  # the same release for another machine
    assert code_version("models.engine.sft", root=root) == after
    assert module.library_versions() == {"torch": "9.9.9", "transformers": "1"}


def test_unknown_module_is_named(root: Path) -> None:
    with pytest.raises(UnknownModuleError, match=r"'models\.engine\.nothing'"):
        code_version("models.engine.nothing", root=root)


def test_entry_of_this_project_has_a_version() -> None:
    assert "models.engine.signals" in modules_of("models.engine.entry")
    assert len(code_version("models.engine.entry")) == 64
