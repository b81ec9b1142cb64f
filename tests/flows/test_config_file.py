"""`trimtab run --config FILE`: settings from YAML or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.flows.cli.cli import main
from trimtab.flows.cli.commands import recipe_and_changes
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.overrides import apply_changes, load_yaml
from trimtab.flows.config.recipes import RECIPES, recipe_named


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> RunConfig:
    assert main(["run", *arguments, "--print-config"]) == 0
    return RunConfig.model_validate_json(capsys.readouterr().out)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_printed_can_be_read_and_changes_nothing(recipe: str, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    file.write_text(recipe_named(recipe).model_dump_json())
    assert recipe_and_changes(None, file, ()) == (recipe, {})


def test_settings_of_the_command_line_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(
        "recipe: smoke\nseed: 3\nppo:\n  kl_coef: 0.3\n  policy_learning_rate: 1e-5\n"
        "arms: [vanilla]\nsft: {train: {zero: {stage: 2}, num_ranks: 2}}\n"
    )
    found = _printed(capsys, "--config", str(file), "ppo.kl_coef=0.4", "arms=full")
    assert (found.recipe, found.seed, found.arms) == ("smoke", 3, ("full",))
    assert (found.ppo.kl_coef, found.ppo.policy_learning_rate) == (0.4, 1e-5)
    assert found.sft.train.zero is not None and found.sft.train.zero.stage == 2
    # An override may stand where a recipe does, as the file has one.
    assert _printed(capsys, "seed=4", "--config", str(file)).seed == 4
    assert _printed(capsys, "smoke", "--config", str(file)).seed == 3


def test_numbers_and_switches_are_those_of_yaml_1_2() -> None:
    text = "{on: pairs, off: no, a: [5e-6, 1e3, 2.5, .5, -1, +2, 010, true, null, ~, 1:30, 1.]}"
    numbers = [5e-6, 1e3, 2.5, 0.5, -1, 2, 10, True, None, None, "1:30", 1.0]
    assert load_yaml(text) == {"on": "pairs", "off": "no", "a": numbers}
    assert load_yaml('{\n\t"a": 5e-6\n}') == {"a": 5e-6}  # JSON may have tabs


def test_only_what_differs_from_the_recipe_is_a_change(tmp_path: Path) -> None:
    changed = apply_changes(recipe_named("smoke"), {"ppo": {"num_steps": 7}, "seed": 1})
    file = tmp_path / "all.json"
    file.write_text(changed.model_dump_json())
    assert recipe_and_changes(None, file, ()) == ("smoke", {"ppo": {"num_steps": 7}, "seed": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", r"is no YAML: .* line 1"),
        ("- 1\n", r"found \[1\] in .*; allowed: settings by name"),
        ("", r"found null in .*; allowed: settings by name"),
        ("1: 2\n", r"allowed: settings by name"),
        ("!!python/object/apply:os.getcwd []\n", r"is no YAML: could not determine a constructor"),
        ("ppo: {}\nseed: 1\nppo: {}\n", r"'ppo' comes twice"),
        ('{"seed": 1, "seed": 2}', r"'seed' comes twice"),
        ("seed: !!int abc\n", r"is no YAML: invalid literal"),
        ("a: !!timestamp 2024-99-99\n", r"is no YAML: "),
        ("recipe: 5\n", r"recipe: found 5 in .*; allowed: smoke"),
        ("recipe: default\n", r"found recipe 'smoke', but .* is of 'default'; allowed: one"),
        ("ppo: {kl_coeff: 1, num_steps: x}\n", r"(?s)num_steps.*found 'x'.*did you mean 'kl_coef'"),
    ],
)
def test_mistakes_in_a_file(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    assert main(["run", "smoke", "--config", str(file), "--print-config"]) == 2
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(capsys.readouterr().err)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "missing.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main(["run", "--config", str(file)]) == 2
    assert "missing.yaml, which cannot be read: " in capsys.readouterr().err


def test_without_a_recipe_all_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "found no recipe; allowed: smoke, default" in capsys.readouterr().err


def test_one_value_is_a_list_of_one_and_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    found = _printed(capsys, "hh-smollm2", f"preferences.sources={pairs}", "arms=dpo")
    assert (found.preferences.sources, found.arms) == ((str(pairs),), ("dpo",))
    assert found.preferences.categories == ()
    for wrong in ("arms=ful", "preferences.sources={}", "relabel.rating_margins=1", "arms=true"):
        assert main(["run", "hh-smollm2", wrong, "--print-config"]) == 2
        assert "Input should be" in capsys.readouterr().err
