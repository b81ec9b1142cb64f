"""What is installed: one package with all of its data, which runs from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy: building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in tracked:
        source, copy = ROOT / name, folder / "source" / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(source.readlink()) if source.is_symlink() else copy.write_bytes(
                source.read_bytes()
            )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(command, check=True)
    (built,) = folder.glob("trimtab-*.whl")
    return built


def test_it_installs_one_package_with_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trimtab"}
    data = [
        path.relative_to(ROOT)
        for top in ("flows", "tasks", "models", "infra")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    missing = {f"trimtab/{path}" for path in data} - names
    assert not missing
    assert {"trimtab/py.typed", "trimtab/prefect.yaml", "trimtab/__main__.py"} <= names


def test_it_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Other packages are those of this environment; Trimtab's own is the wheel's alone."""
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(installed)
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    env.pop("TRIMTAB_HOME", None)

    def python(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=empty, env=env, capture_output=True, text=True, check=True, timeout=900,
        ).stdout  # fmt: skip

    found = python("-c", "import trimtab.models.specs as s; print(s.__file__)")
    assert Path(found.strip()).is_relative_to(installed)
    shown = python("-m", "trimtab", "run", "smoke")
    assert "report: " in shown
    assert (empty / ".trimtab" / "reports").is_dir()
