"""`make gpu-bundle`: the GPU check runs on a machine that has a few libraries and no network."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tools.gpu_bundle import MOST_MIB, make_bundle

pytestmark = pytest.mark.slow

ON_THE_MACHINE = ("torch", "transformers", "accelerate", "peft", "sentence-transformers")
IMPORTS = """
import importlib, pkgutil, sys
import trimtab.models.gpu_check, trimtab.models.training.preload, deepspeed
package = trimtab.models.gpu_check
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("trimtab.models.stages.")]))
print(trimtab.__file__, importlib.util.find_spec("prefect"), importlib.util.find_spec("mlflow"))
"""


STEP = "a step, without its save"


def dependencies(names: tuple[str, ...]) -> set[str]:
    """The distributions of some names and all that they require."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            required = Requirement(text)
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                left.append(required.name)
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment that has nothing, where the bundle's own line has installed it.

    Beside it `libraries`: what the machine has, of this environment.
    """
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "empty"], check=True)
    make_bundle(folder / "bundle", f"{sys.version_info.major}.{sys.version_info.minor}")
    size = sum(path.stat().st_size for path in (folder / "bundle").rglob("*.whl"))
    assert 2**20 < size < MOST_MIB * 2**20
    (folder / "libraries").mkdir()
    for name in dependencies(ON_THE_MACHINE):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {".."}:
            link = folder / "libraries" / top
            if not link.exists():
                link.symlink_to(str(distribution.locate_file(top)))
    install, _ = _line(folder)
    command = install.replace("python3", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return folder


def _line(folder: Path) -> tuple[str, str]:
    """The command that installs the bundle, and the one that runs the check."""
    (line,) = [
        each
        for each in (folder / "bundle" / "README").read_text().splitlines()
        if each.startswith("python3")
    ]
    install, _, check = line.partition(" && ")
    return install, check


def _python(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The empty environment's Python, which has the bundle and the machine's libraries alone."""
    path = os.pathsep.join([str(machine / "site"), str(machine / "libraries")])
    return subprocess.run(
        [str(machine / "empty" / "bin" / "python"), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=machine, capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip


def test_trainers_and_parts_import(machine: Path) -> None:
    done = _python(machine, "-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    *_, count, places = done.stdout.splitlines()
    assert int(count) > 20
    assert places == f"{machine / 'site' / 'trimtab' / '__init__.py'} None None"


def test_the_check_is_rehearsed_there(machine: Path) -> None:
    """By the bundle's own line; only a part of the parts, as all take minutes more."""
    _, check = _line(machine)
    _, python, *arguments = shlex.split(check)
    assert python == "python3"
    parts = ["reward-model", "ppo", "resume"]
    wanted = [*arguments, "--rehearse", "--minutes", "18", "--part", *parts]
    done = _python(machine, *wanted)
    assert done.returncode == 3, done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads((machine / "gpu-check" / "results.json").read_text())
    assert [row["part"] for row in results["parts"] if row["ok"]] == [
        *("card", "material", "stages", "reward-model", "ppo", "resume")
    ]
    values = {v["name"]: v["value"] for row in results["parts"] for v in row["values"]}
    assert values["resumed"] == values["run twice"] == "the same bytes"
    assert values["card float32: weights differ by"] == 0
    assert 0 < values["cpu bfloat16: weights differ by"] < 0.1
    phases = ("sample", "log-probs, values", "score", "update")
    assert all(values[f"{phase}, a step"] > 0 for phase in phases) and values["save, once"] > 0
    assert sum(values[f"{phase}, a step"] for phase in phases) < 2 * values[STEP]
    assert results["is_rehearsal"]
