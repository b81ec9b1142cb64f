"""The command that prints a plan, and what it says of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.changes import changed, parsed
from flows.cli import main
from flows.config import RunConfig
from flows.recipes import recipe_named


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setenv("TRIMTAB_MAX_PARALLEL", "3")
    return tmp_path


def test_dry_run_prints_the_plan_and_runs_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "smoke", "ppo.num_steps=7", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "Plan of smoke, seed 0, flow rlhf: 23 stages" in text
    # 1 round of critic pre-training and 7 more, 2 updates each.
    assert re.search(r"policy_full +ppo_max +128 +16 ", text)
    assert "shared by at most 3 trainers at once" in text
    assert not (home / "store").exists()
    assert not (home / "work").exists()


def test_the_configuration_is_printed_as_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "smoke", "ppo.num_steps=7", "--print-config"]) == 0
    config = RunConfig.model_validate_json(capsys.readouterr().out)
    assert config == changed(recipe_named("smoke"), parsed(["ppo.num_steps=7"]))


def test_gpus_of_the_command_line_replace_the_recipe_s(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "hh-7b", "--dry-run", "--gpus", "16", "--gpu-memory", "141"]) == 0
    assert "Held against: 16 GPUs of 141.0 GiB each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "hh-7b is for 8 GPUs of 80.0 GiB each, one trainer a GPU; this host has 0"),
        (["--gpus", "8"], "--gpus is 8, --gpu-memory is None"),
        (["--gpus", "8", "--gpu-memory", "80"], "--dry-run is False"),
        (["--dry-run", "--gpu-memory", "80"], "a dry run takes both"),
        (["sft.model.base=some/model", "--dry-run"], "'some/model', whose size is not known"),
    ],
)
def test_mistakes_are_explained(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", "hh-7b", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--gpu-memory", "-1"], ["--gpus", "x"]])
def test_numbers_of_gpus_are_above_zero(home: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run", "hh-7b", "--dry-run", *arguments])
    assert error.value.code == 2
