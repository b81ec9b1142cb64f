"""What is installed: one package with all of its data, which runs from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml

from tests.ports import free_ports
from tests.tools.gpu_bundle import own_wheel
from trimtab.infra.stack.services import prefect_server, url
from trimtab.infra.stack.supervisor import LOOPBACK, Supervisor

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "prefect.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return own_wheel(tmp_path_factory.mktemp("wheel"))


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
    own = ("__init__.pyi", "__main__.py", "functional.py", "prefect.yaml", "py.typed", "trl.py")
    assert {f"trimtab/{name}" for name in own} <= names


@dataclass(frozen=True)
class Installed:
    """The wheel, unpacked, and an empty folder to run it from."""

    packages: Path
    empty: Path

    def python(self, *arguments: str, **environment: str) -> str:
        """What Python prints; Trimtab is the wheel's alone, other packages this environment's."""
        env = {**os.environ, "PYTHONPATH": str(self.packages), "OMP_NUM_THREADS": "1"}
        env.pop("TRIMTAB_HOME", None)
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.empty, env={**env, **environment},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is unpacked; whoever imports it first compiles it."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def installed(packages: Path, tmp_path: Path) -> Installed:
    (tmp_path / "empty").mkdir()
    return Installed(packages, tmp_path / "empty")


def test_it_runs_from_an_empty_folder(installed: Installed) -> None:
    found = installed.python("-c", "import trimtab.models.specs as s; print(s.__file__)")
    assert Path(found.strip()).is_relative_to(installed.packages)
    shown = installed.python("-m", "trimtab", "run", "smoke")
    assert "report: " in shown
    assert (installed.empty / ".trimtab" / "reports").is_dir()


def test_it_deploys_from_any_folder(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own deployments, not those of another project whose folder it is."""
    (installed.empty / "prefect.yaml").write_text("deployments: [{name: of-another-project}]\n")
    version = installed.python("-m", "trimtab", "--version").split()[-1]
    address = (LOOPBACK, free_ports(1))
    api = f"{url(address)}/api"
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    variables = {"PREFECT_API_URL": api, "TRIMTAB_HOME": str(tmp_path / "home")}
    with Supervisor([prefect_server(address)], tmp_path / "logs"):
        kubernetes = ["--pool-type", "kubernetes", "--image", "registry.example/trimtab:1"]
        installed.python("-m", "trimtab", "deploy", *kubernetes, **variables)
        pool = requests.get(f"{api}/work_pools/trimtab", timeout=60).json()
        found = requests.post(f"{api}/deployments/filter", json={}, timeout=60).json()
    manifest = pool["base_job_template"]["job_configuration"]["job_manifest"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/trimtab:1"
    names = {each["name"] for each in yaml.safe_load(SHIPPED.read_text())["deployments"]}
    assert {each["name"] for each in found} == names
    assert {each["version"] for each in found} == {version}
    assert all(each["entrypoint"].startswith("trimtab.flows.") for each in found)
    assert [path.name for path in installed.empty.iterdir()] == ["prefect.yaml"]
