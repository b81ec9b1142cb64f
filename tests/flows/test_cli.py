"""The command line: its help, the ways to write a command, mistakes and the nearest right name."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from trimtab.flows.cli import cli
from trimtab.flows.cli.cli import main
from trimtab.flows.config.over_seeds import METHODS
from trimtab.flows.config.recipes import RECIPES
from trimtab.models.config.arms import ARMS

COMMANDS = {
    "Run": ["run", "audit", "reward", "study", "rounds", "stage"],
    "Before a run": ["recipes", "fields", "doctor", "look", "gpu-check"],
    "Read results": ["report", "compare", "export", "papers", "ui"],
    "Operate": ["serve-reward", "deploy", "rollback", "clean"],
}
# What was loaded by the end, of what takes long to load.
LOADED = """
import sys
from trimtab.flows.cli.cli import main
status = main(sys.argv[1:])
slow = {"prefect", "mlflow", "torch", "transformers", "sklearn", "matplotlib"} & set(sys.modules)
print(status, *sorted(slow))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _process(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_help_stands_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["-h"]) == 0
    first, second = capsys.readouterr().out.split("Usage:")[1:]
    assert first == second
    sections = dict(part.split(":\n", 1) for part in first.split("\n\n") if ":\n" in part)
    for heading, commands in COMMANDS.items():
        found = [line.split()[0] for line in sections[heading].splitlines() if line[2:3] != " "]
        assert found == commands


@pytest.mark.parametrize("command", [each for group in COMMANDS.values() for each in group])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == main([command, "-h"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"Usage: trimtab {command} ")
    assert said.err == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trimtab {version('trimtab')}\n"


@pytest.mark.parametrize(("no_color", "has_color"), [("", True), ("1", False)])
def test_boxes_and_colours_are_for_terminals(no_color: str, has_color: bool) -> None:
    env = {"NO_COLOR": no_color, "TERM": "xterm-256color", "COLUMNS": "90"}
    command = ["-m", "trimtab", "--help"]
    piped = _process(*command, env=env)
    assert "\x1b" not in piped and piped.isascii()
    reading, writing = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command], env={**os.environ, **env}, stdout=writing, stderr=writing
    ) as process:
        os.close(writing)
        shown = b""
        while part := _read(reading):
            shown += part
    assert process.returncode == 0
    text = shown.decode()
    assert "╭─ Read results ─" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert bool(re.search(r"\x1b\[(\d;)*3[0-7]", text)) == has_color


def _read(terminal: int) -> bytes:
    """Some bytes; none where the other end is closed, which Linux calls an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rn"], "unknown command 'rn' (did you mean 'run'?); known: run, audit, reward, study, r"),
        (["xyz"], "unknown command 'xyz'; known: run, audit, reward, study"),
        (["run", "smok"], "unknown recipe 'smok' (did you mean 'smoke'?); known: smoke, default"),
        (["run", "smoke", "--flow", "polcy"], "--flow: unknown flow 'polcy' (did you mean 'polic"),
        (["run", "smoke", "ppo.kl_coeff=1"], "ppo.kl_coeff: unknown field 'kl_coeff'; did you me"),
        (["run", "smoke", "--flw", "rlhf"], "No such option: --flw (Possible options: --flow). S"),
        (["run"], "found no recipe; allowed: smoke, default"),
        (["run", "smoke", "--seeds"], "Option '--seeds' requires an argument. See trimtab --help"),
        (["run", "smoke", "--seeds", "two"], "Invalid value for '--seeds': "),
        (["run", "smoke", "--dry-run", "--print-config"], "found --dry-run and --print-config; "),
        (["run", "smoke", "--arms", "dpo"], "--arms and --seeds are for --flow compare, found -"),
        (["run", "smoke", "--flow", "compare", "--arms", "dop"], "arms.0: Input should be 'vanil"),
        (
            ["run", "smoke", "ppo.critic_init=score"],
            "ppo.critic_init: Input should be 'scorer' or 'policy'; found 'score'; did you m",
        ),
        (["study", "part-2", "figure-3", "--scale", "larg"], "unknown recipe 'larg'; known: "),
        (["rounds", "smoke", "sft.seed=1"], "sft: unknown field 'sft'"),
        (["ui", "--port", "0"], "Invalid value for '--port': "),
        (["ui", "--port", "x"], "Invalid value for '--port': "),
        (["clean", "--idle-days", "0"], "Invalid value for '--idle-days': 0 is not above 0. See "),
        (["clean", "--idle-days", "nan"], "Invalid value for '--idle-days': nan is not above 0."),
        (["deploy", "--gpus", "0"], "Invalid value for '--gpus': "),
        (["deploy", "--pool-type", "proces"], "Invalid value for '--pool-type': "),
        (["report"], "no report below "),
        (["compare", "a"], "no scorecard in "),
    ],
)
def test_a_mistake_is_a_line_and_the_status_is_2(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"trimtab: {message}")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        (["--version"], 0),
        (["rn"], 2),
        (["run", "smok"], 2),
        (["run", "smoke", "--flow", "polcy"], 2),
        (["run", "smoke", "ppo.kl_coeff=0.1"], 2),
        (["run", "smoke", "--print-config"], 0),
        (["study", "part-2", "figure-3", "ppo.kl_coeff=0.1"], 2),
        (["rounds", "smoke", "ppo.kl_coeff=0.1"], 2),
    ],
)
def test_nothing_slow_is_loaded_before_work_begins(command: list[str], status: int) -> None:
    said = _process("-c", LOADED, *command)
    assert said.splitlines()[-1] == str(status), said


@pytest.mark.parametrize(
    "given",
    [
        ["--arms", "dpo", "rest", "--seeds", "0", "1"],
        ["--arms", "dpo,rest", "--seeds", "0,1"],
        ["--arms=dpo,rest", "--seeds=0,1"],
        ["--arms", "dpo", "--seeds", "0", "--arms", "rest", "--seeds=1"],
        ['arms=["dpo","rest"]', "seed=[0,1]"],
    ],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_arms_and_seeds_can_be_written_in_several_ways(
    given: list[str], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _parameters(monkeypatch, given, place)
    assert (found["arms"], found["seeds"]) == (["dpo", "rest"], [0, 1])
    assert found["changes"] == {"ppo": {"num_steps": 7}}


def _parameters(
    monkeypatch: pytest.MonkeyPatch, given: list[str], place: int
) -> Mapping[str, object]:
    """Those of the flow, where the options stand behind so many of the other arguments."""
    found = []
    monkeypatch.setattr(
        "trimtab.flows.cli.commands.run_recipe", lambda request, _: found.append(request.parameters)
    )
    rest = ["smoke", "ppo.num_steps=7", "--flow=compare"]
    assert main(["run", *rest[:place], *given, *rest[place:]]) == 0
    (parameters,) = found
    return dict(parameters)


def test_a_seed_of_a_comparison_is_its_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _parameters(monkeypatch, ["seed=0"], 1)
    assert (found["arms"], found["seeds"]) == (list(METHODS), [0])


def test_a_list_ends_at_the_next_option(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _parameters(monkeypatch, ["--seeds", "0", "1", "--arms", "dpo", "--name=mine"], 0)
    assert (found["recipe"], found["arms"], found["seeds"]) == ("smoke", ["dpo"], [0, 1])


def test_a_seed_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "smoke", "--flow", "compare", "--seeds", "1", "2", "--", "seed=0"]) == 2
    assert "found --seeds and seed=0; allowed: one of them" in capsys.readouterr().err
    assert main(["run", "smoke", "--flow", "compare", 'seed={"a":1}']) == 2
    assert "seed: Input should be a valid integer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trimtab r", ["run", "reward", "rounds", "recipes", "report", "rollback"]),
        ("trimtab run ", list(RECIPES)),
        ("trimtab run smoke --flow ", list(cli.FLOWS)),
        ("trimtab run smoke --flow compare --arms ", list(ARMS)),
        ("trimtab run smoke --dry", ["--dry-run"]),
        (
            "trimtab run smoke ppo.kl",
            ["ppo.kl_coef=", "ppo.kl_target=", "ppo.kl_horizon=", "ppo.kl_weights="],
        ),
        ("trimtab run smoke --dry-run sft.train.zero.", ["stage=", "offload="]),
        ("trimtab study part-2 figure-3 --scale ", list(RECIPES)),
    ],
)
def test_a_shell_can_complete(line: str, expected: list[str]) -> None:
    words = line.split(" ")
    env = {"_TRIMTAB_COMPLETE": "complete_bash", "COMP_WORDS": line}
    said = _process("-m", "trimtab", env={**env, "COMP_CWORD": str(len(words) - 1)})
    prefix = "sft.train.zero." if words[-1].endswith(".") else ""
    assert said.split() == [f"{prefix}{each}" for each in expected]


def test_a_script_for_completion_is_shown() -> None:
    env = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # which shell runs the tests
    said = _process("-m", "trimtab", "--show-completion", "bash", env=env)
    assert "_TRIMTAB_COMPLETE=complete_bash" in said
