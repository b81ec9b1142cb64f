"""Units of systemd and the proxy's configuration: what they start, and with which secrets."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trimtab.infra.stack import programs
from trimtab.infra.stack.__main__ import _parser
from trimtab.infra.stack.services import Ports

INFRA = Path(__file__).parents[2] / "infra"
SERVICES = sorted((INFRA / "systemd").glob("*.service"))


def _unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(path)
    return unit


def _line(path: Path) -> str:
    """What `sh -c` is given."""
    shell, option, line = shlex.split(_unit(path)["Service"]["ExecStart"])
    assert (shell, option) == ("/bin/sh", "-c")
    return line


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_unit_gives_the_secrets_of_its_credential_to_what_it_starts(
    path: Path, tmp_path: Path
) -> None:
    values = dict.fromkeys(programs.SECRETS, "it's $HOME")
    (tmp_path / "secrets").write_text(programs.export_lines(values) + "\n")
    show = f"{sys.executable} -c 'import os; print(*os.environ.values(), sep=chr(10))'"
    line, _, _ = _line(path).replace("%d", str(tmp_path)).partition("exec ")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line} exec {show}"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines().count("it's $HOME") == len(programs.SECRETS)
    assert _unit(path)["Service"]["User"] == "trimtab"


@pytest.mark.parametrize("name", ["stack", "backup"])
def test_a_unit_runs_a_command_of_the_stack(name: str) -> None:
    command = shlex.split(
        _line(INFRA / "systemd" / f"trimtab-{name}.service").partition("exec ")[2]
    )
    assert command[:4] == ["/opt/trimtab/bin/python", "-P", "-m", "trimtab.infra.stack"]
    options = _parser().parse_args(command[4:])
    assert options.command == {"stack": "up", "backup": "backup"}[name]
    assert options.folder == Path("/var/lib/trimtab/stack")


def test_no_worker_has_a_limit_or_a_name_of_its_own() -> None:
    """Its limit would end it where it gets a run once more; its name says which process it is."""
    of_units = [_line(path) for path in SERVICES if "worker start" in path.read_text()]
    compose = yaml.safe_load((INFRA / "docker" / "compose.yaml").read_text())
    of_containers = [str(each.get("command")) for each in compose["services"].values()]
    found = [line for line in of_units + of_containers if "worker start" in line]
    assert len(found) == 2
    assert not [line for line in found if "--limit" in line or "--name" in line]


def test_the_proxy_leads_to_the_stack_s_servers() -> None:
    lines = (INFRA / "proxy" / "Caddyfile").read_text().split("\n")
    to = {line.split()[1] for line in lines if line.strip().startswith("reverse_proxy")}
    assert to == {f"127.0.0.1:{port}" for port in (Ports.prefect, Ports.mlflow, Ports.s3)}
