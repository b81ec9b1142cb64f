"""What commands do before Prefect's server is on its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In place of what starts the server: whether Prefect is loaded by then.
LOOK = """
import sys
from trimtab.flows import cli, commands
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
