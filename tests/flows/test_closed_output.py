"""Commands whose output is piped into one that has read enough, such as `head`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.flows.cli import cli
from trimtab.models.studies import papers


@pytest.mark.slow
@pytest.mark.parametrize("command", [["papers"], ["--help"], ["run", "smoke", "--print-config"]])
def test_nothing_is_said_when_nobody_reads(tmp_path: Path, command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *command],
        env={**os.environ, "TRIMTAB_HOME": str(tmp_path)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_line_that_goes_dead_elsewhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise BrokenPipeError("a socket")

    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setattr(papers, "all_tables", fail)
    with pytest.raises(BrokenPipeError, match="a socket"):
        cli.main(["papers"])
