"""The command that prints a plan, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from trimtab.flows.cli.cli import main
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs import checks
from trimtab.infra.settings import Settings

# `hh-7b` with the whole of every model on one rank.
ALONE = [
    f"{trainer}{setting}"
    for trainer in (
        *("sft.train", "ensemble.member.train", "reward_model.train", "advantage_model.train"),
        *("ppo", "rounds.meta_rm.train"),
    )
    for setting in (".num_ranks=1", ".zero=null")
] + ["rehearsal.num_ranks=1", "evaluate.num_ranks=1"]


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


def test_hours_are_printed_for_each_card_of_that_memory(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = ["--gpus", "8", "--gpu-memory", "80"]
    assert main(["run", "hh-7b", "--dry-run", *gpus]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\nroles +A100 80GB +H100\nsft +[\d.]+ to [\d.]+ +[\d.]+ to [\d.]+\n", text)
    assert re.search(r"\ntotal +[\d,]+ to [\d,]+ +[\d,]+ to [\d,]+\n", text)
    assert "H100: 15% to 45% of its data sheet's rate" in text
    assert main(["run", "hh-7b", "--dry-run", "--json", *gpus]) == 0
    plan = json.loads(capsys.readouterr().out)
    stages = [stage["gpu_hours"]["H100"] for stage in plan["stages"]]
    assert plan["gpu_hours"]["H100"] == pytest.approx([sum(x) for x in zip(*stages, strict=True)])
    least, most = plan["gpu_hours"]["H100"]
    assert most == pytest.approx(3 * least, rel=0.05)  # of 15 and 45 %
    assert plan["machine"]["gpus"] == 8
    assert main(["run", "smoke", "--dry-run"]) == 0
    assert "GPU-hours" not in capsys.readouterr().out  # of a computer without GPUs


def test_the_configuration_is_printed_as_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "smoke", "ppo.num_steps=7", "--print-config"]) == 0
    config = RunConfig.model_validate_json(capsys.readouterr().out)
    assert config == apply_changes(recipe_named("smoke"), parse_overrides(["ppo.num_steps=7"]))


def test_gpus_of_the_command_line_replace_the_recipe_s(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "hh-7b", "--dry-run", "--gpus", "16", "--gpu-memory", "141"]) == 0
    assert "Compared with: 16 GPUs of 141.0 GiB each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "8"], "found --gpus 8, --gpu-memory None"),
        (["--json"], "found --json without --dry-run"),
        (
            ["--gpus", "8", "--gpu-memory", "80"],
            "--dry-run False; allowed: --gpus and --gpu-memory together",
        ),
        (["--dry-run", "--gpu-memory", "80"], "found --gpus None, --gpu-memory 80.0"),
        (["sft.model.base=some/model", "--dry-run"], "'some/model', whose size is not known"),
    ],
)
def test_mistakes_are_explained(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", "hh-7b", *arguments]) == 2
    assert message in capsys.readouterr().err


SMALL = ("sft.model.base=smollm2-135m-instruct", *ALONE)


@pytest.mark.parametrize(
    ("recipe", "changes", "gpus", "gib", "message"),
    [
        ("hh-7b", (), "", 64, r"hh-7b does not fit on this host: sft needs \d+.\d GiB; found this"),
        ("hh-7b", (), "0,1", 80, "sft takes 8 GPUs, one a rank .*; found 2 GPUs of 80.0 GiB"),
        ("hh-7b", (), "0,1", None, "sft takes 8 GPUs, one a rank .*; found 2 GPUs"),
        ("hh-7b", (), "0,1,2,3,4,5,6,7", 24, r"sft needs \d+.\d GiB a GPU; found 8 GPUs"),
        ("default", ("ppo.num_ranks=2",), "0", 80, "policy_.* takes 2 GPUs"),
        # The recipe's name is not what decides: with a small model it fits.
        ("hh-7b", SMALL, "", 64, None),
        ("hh-7b", SMALL, "0", 40, None),
        ("hh-7b", SMALL, "0", None, None),
        ("hh-7b", ("sft.model.base=some/model",), "", 64, None),
        # Of the memory a CUDA context takes 1.5 GiB.
        ("default", (), "0", 2, None),
    ],
)
def test_a_run_that_the_host_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    changes: tuple[str, ...],
    gpus: str,
    gib: int | None,
    message: str | None,
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 64 * 2**30 // 4096 if "PHYS" in name else 4096)
    monkeypatch.setattr(checks, "memory_of", lambda _: None if gib is None else gib * 2**30)
    settings = Settings.from_env({"CUDA_VISIBLE_DEVICES": gpus})
    config = apply_changes(recipe_named(recipe), parse_overrides(changes))
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        plan = checks.make_quick_plan(config, "rlhf", settings)
        if plan is not None:  # of a model whose size is unknown there is none
            checks.refuse_too_large(plan, settings)


@pytest.mark.parametrize("is_small", [True, False])
def test_a_run_counts_the_pairs_of_small_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """As many as are assumed of others would be nearly all of what the run has to do."""
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 30)
    if not is_small:
        monkeypatch.setattr(checks, "COUNTED_BYTES", 99)
    config = apply_changes(
        recipe_named("hh-smollm2"),
        parse_overrides([f'preferences.sources=["{path}"]', "preferences.max_pairs=null"]),
    )
    plan = checks.make_quick_plan(config, "rlhf", Settings.from_env({}))
    assert plan is not None
    assert (plan.amounts.pairs == 30) == is_small
    trunk, member = (
        next(r for r in plan.rows if r.name.startswith(n)) for n in ("trunk", "member")
    )
    assert not trunk.inputs.has_trunk and member.inputs.has_trunk


def test_a_plan_is_held_against_the_gpus_of_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(checks, "memory_of", lambda _: 24 * 2**30)
    monkeypatch.setattr(checks, "name_of", lambda _: "NVIDIA GeForce RTX 4090")
    assert main(["run", "default", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "Compared with: 2 GPUs of 24.0 GiB each" in text
    assert re.search(r"\nroles +RTX 4090\n", text)
    monkeypatch.setattr(checks, "memory_of", lambda _: None)
    assert main(["run", "default", "--dry-run"]) == 2
    assert "give --gpus and --gpu-memory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--gpu-memory", "-1"], ["--gpus", "x"]])
def test_numbers_of_gpus_are_above_zero(home: Path, arguments: list[str]) -> None:
    assert main(["run", "hh-7b", "--dry-run", *arguments]) == 2
