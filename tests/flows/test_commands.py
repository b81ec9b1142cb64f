"""What commands do before Prefect's server is on its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from trimtab.flows.cli.commands import prefect_server
from trimtab.flows.config.errors import CommandError

# In place of what starts the server: whether Prefect is loaded by then.
LOOK = """
import sys
from trimtab.flows.cli import cli
from trimtab.flows.cli import commands
commands.local_prefect_server = lambda: print("prefect" in sys.modules) or sys.exit(0)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("run", "smoke", "seed=1"),
        ("run", "smoke", "--name", "mine"),
        ("run", "smoke", "--flow", "compare", "--arms", "dpo"),
        ("study", "part-2", "figure-3", "ensemble.size=3"),
        ("rounds", "smoke"),
    ],
)
def test_prefect_is_not_loaded_before_its_server_starts(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """It would not know the server's address, and start another one of its own."""
    environment = {**os.environ, "TRIMTAB_HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", LOOK, *command],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "False\n", found.stdout + found.stderr


def test_a_server_that_cannot_write_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk; what it refuses for another reason is a mistake of ours."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    (tmp_path / "reports").mkdir()
    request = httpx.Request("POST", "http://127.0.0.1:1/api/flow_runs")
    for status, wanted in ((500, CommandError), (422, PrefectHTTPStatusError)):
        answer = httpx.Response(status, request=request)
        with pytest.raises(wanted) as raised, prefect_server():
            raise PrefectHTTPStatusError("refused", request=request, response=answer)
        assert "\n" not in str(raised.value)
