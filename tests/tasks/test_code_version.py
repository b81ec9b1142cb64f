"""A stage's code version: changes with the code it reaches, and with nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import iter_modules

import pytest

from trimtab.tasks import cache_key as module
from trimtab.tasks.cache_key import (
    ROOT,
    UnknownModuleError,
    code_version,
    function_version,
    stage_key,
)

FILES = {
    "trimtab/models/__init__.py": "",
    "trimtab/models/stages/__init__.py": "",
    "trimtab/models/stages/sft.py": (
        "import torch\nfrom trimtab.models.functional import loss\nfrom . import batching\n"
        "def run():\n    from trimtab.models.nets.heads import Head\n    return Head\n"
    ),
    "trimtab/models/stages/batching.py": "import trimtab.models.data.records as records\n",
    "trimtab/models/stages/ppo.py": "x = 1\n",
    "trimtab/models/functional/__init__.py": "",
    "trimtab/models/functional/loss.py": (
        '"""Doc."""\ndef f(x):\n    """Doc."""\n    return x + 1\n'
    ),
    "trimtab/models/nets/__init__.py": "from .heads import Head\n",
    "trimtab/models/nets/heads.py": "from ..data.records import R\nclass Head: ...\n",
    "trimtab/models/data/records.py": "from trimtab.models.stages import batching\nR = 1\n",
    "trimtab/flows/__init__.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _closure(name: str, root: Path) -> list[str]:
    return sorted(module._closure(name, root, root / "trimtab" / "models", ()))


def test_closure_follows_every_form_of_import(root: Path) -> None:
    assert _closure("trimtab.models.stages.sft", root) == [
        "trimtab.models", "trimtab.models.data.records", "trimtab.models.functional",
        "trimtab.models.functional.loss", "trimtab.models.nets", "trimtab.models.nets.heads",
        "trimtab.models.stages", "trimtab.models.stages.batching", "trimtab.models.stages.sft",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "old", "new", "changes"),
    [
        ("trimtab/models/functional/loss.py", "x + 1", "x + 2", True),
        ("trimtab/models/data/records.py", "R = 1", "R = 2", True),
        ("trimtab/models/nets/__init__.py", "import Head", "import Head as H", True),
        ("trimtab/models/stages/ppo.py", "x = 1", "x = 2", False),
        ("trimtab/models/functional/loss.py", "Doc.", "Other words.", False),
        ("trimtab/models/functional/loss.py", "return x + 1", "return  x+1  # add one", False),
    ],
)
def test_version_changes_with_reachable_code_only(
    root: Path, path: str, old: str, new: str, changes: bool
) -> None:
    before = code_version("trimtab.models.stages.sft", root=root)
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))
    assert (code_version("trimtab.models.stages.sft", root=root) != before) == changes


def test_version_changes_with_the_texts_of_a_package(root: Path) -> None:
    versions = [code_version("trimtab.models.stages.sft", root=root)]
    text = root / "trimtab/models" / "nets" / "prompt.txt"
    for content in ("Which is better?", "Which one is better?"):
        text.write_text(content)
        versions.append(code_version("trimtab.models.stages.sft", root=root))
    assert len(set(versions)) == 3
    (root / "trimtab/models" / "nets" / ".prompt.txt.swp").write_text("an editor's")
    (root / "trimtab/flows" / "prompt.txt").write_text("Elsewhere")
    assert code_version("trimtab.models.stages.sft", root=root) == versions[-1]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real `models`, to be edited."""
    root = tmp_path_factory.mktemp("copied")
    code = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "trimtab/models", root / "trimtab/models", ignore=code)
    (root / "trimtab/__init__.py").touch()
    return root


def _keys(root: Path, stages: Mapping[str, str]) -> dict[str, str]:
    """Keys of stages with the settings that `stages` makes, by expressions, as `root` has them."""
    imports = "from trimtab.models.config import policy, reward, training\n"
    imports += "from trimtab.models.config.base import values_in_key\n"
    made = ", ".join(f"{name!r}: values_in_key({made})" for name, made in stages.items())
    code = f"import json\n{imports}print(json.dumps({{{made}}}))"
    # -B: bytecode counts as current if the file has the same length, written in the same second.
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    return {
        name: stage_key(name, config, {}, code_version(f"trimtab.models.stages.{name}", root=root))
        for name, config in json.loads(done.stdout).items()
    }


@pytest.mark.slow
def test_a_description_changes_no_key_and_a_default_those_that_have_it(copied: Path) -> None:
    stages = {
        "sft": "training.SFTConfig()",
        "reward_model": "reward.RewardModelConfig()",
        "ppo_max": "policy.PPOConfig()",
        "dpo": "policy.DPOConfig(beta=0.3)",
    }
    before = _keys(copied, stages)
    training = copied / "trimtab/models/config/training.py"
    text = training.read_text()
    described = text.replace("Global gradient clip", "Largest norm of the gradient")
    assert described != text
    training.write_text(described)
    assert _keys(copied, stages) == before
    # What every trainer has, but for the one that is told otherwise.
    changed = text.replace("max_grad_norm: Positive = 1.0", "max_grad_norm: Positive = 2.0")
    assert changed != text
    training.write_text(changed)
    given = {**stages, "ppo_max": "policy.PPOConfig(max_grad_norm=1.0)"}
    same = {name for name, key in _keys(copied, given).items() if key == before[name]}
    assert same == {"ppo_max"}
    training.write_text(text)
    policy = copied / "trimtab/models/config/policy.py"
    changed = policy.read_text().replace("beta: Positive = 0.1", "beta: Positive = 0.2")
    assert changed != policy.read_text()
    policy.write_text(changed)
    assert _keys(copied, stages) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("templates/base.html.j2", {"report", "compare", "audit", "study"}),
        ("static/base.css", {"report", "compare", "audit", "study"}),
        ("static/audit/words.js", {"audit"}),
    ],
)
def test_version_changes_with_the_files_of_the_pages_that_a_stage_writes(
    copied: Path, path: str, stages: set[str]
) -> None:
    def versions() -> dict[str, str]:
        names = [found.name for found in iter_modules([str(copied / "trimtab/models/stages")])]
        return {name: code_version(f"trimtab.models.stages.{name}", root=copied) for name in names}

    before = versions()
    with (copied / "trimtab/models/reporting" / path).open("a") as file:
        file.write("\n")
    assert {name for name, version in versions().items() if version != before[name]} == stages


def test_version_changes_with_the_libraries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version("trimtab.models.stages.sft", root=root)
    versions = {"torch": "9.9.9+cu130", "transformers": "1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    monkeypatch.setattr(module, "_version", module._version.__wrapped__)  # it remembers no other
    after = code_version("trimtab.models.stages.sft", root=root)
    assert after != before
    versions["torch"] = "9.9.9+cpu"  # the same release for another machine
    assert code_version("trimtab.models.stages.sft", root=root) == after
    assert module.library_versions() == {"torch": "9.9.9", "transformers": "1"}


def test_unknown_module_is_named(root: Path) -> None:
    with pytest.raises(UnknownModuleError, match=r"'trimtab\.models\.stages\.nothing'"):
        code_version("trimtab.models.stages.nothing", root=root)


def test_entry_of_this_project_has_a_version() -> None:
    assert "trimtab.models.training.signals" in _closure("trimtab.models.training.entry", ROOT)
    assert len(code_version("trimtab.models.training.entry")) == 64


THEIRS = {
    "their_package/__init__.py": "",
    "their_package/rewards.py": "import torch\nfrom .words import WORDS\ndef f(p, r): ...\n",
    "their_package/words.py": "WORDS = 1\n",
    "their_package/other.py": "x = 1\n",
    "their_module.py": "from beside import y\nimport their_package.rewards\ndef f(p, r): ...\n",
    "beside.py": "y = 1\n",
}


@pytest.mark.parametrize(
    ("function", "changed", "counts"),
    [
        ("their_package.rewards:f", "their_package/rewards.py", True),
        ("their_package.rewards:f", "their_package/words.py", True),
        ("their_package.rewards:f", "their_package/__init__.py", True),
        ("their_package.rewards:f", "their_package/other.py", False),
        ("their_package.rewards:f", "beside.py", False),
        ("their_module:f", "their_module.py", True),
        ("their_module:f", "beside.py", True),
        ("their_module:f", "their_package/words.py", True),
        ("their_module:f", "their_package/other.py", False),
    ],
)
def test_a_function_s_version_is_of_what_its_module_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, changed: str, counts: bool
) -> None:
    """In the current folder, without importing any of it."""
    for name, text in THEIRS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before = function_version(function)
    (tmp_path / changed).write_text(THEIRS[changed] + "# a remark\n")
    assert function_version(function) == before
    (tmp_path / changed).write_text(THEIRS[changed] + "z = 2\n")
    assert (function_version(function) != before) == counts
    assert not {"their_module", "their_package", "beside"} & sys.modules.keys()
    assert function_version(function.replace(":f", ":g")) != function_version(function)


@pytest.mark.parametrize("function", ["nowhere:f", "json.nowhere:f", "math:sqrt", "sys:exit"])
def test_a_function_without_a_source_is_named(function: str) -> None:
    with pytest.raises(UnknownModuleError, match=f"found no source of .* for {function}; allowed"):
        function_version(function)
