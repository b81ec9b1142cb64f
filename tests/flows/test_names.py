"""Names: one configuration has one, two have two; files count by their contents."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows import rounds as rounds_module
from trimtab.flows.cli import commands
from trimtab.flows.cli.cli import main
from trimtab.flows.cli.pair_files import changes_of_audit, files_and_overrides
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.names import (
    MAX_NAME,
    NAME_PATTERN,
    check_free,
    data_name,
    name_run,
    registered_model_name,
)
from trimtab.flows.config.over_seeds import (
    METHODS,
    SEEDS,
    comparison_name,
    configs_of_seeds,
    study_config,
    study_name,
)
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import ONLY_FLOW, RECIPES, recipe_named
from trimtab.flows.rounds import NoChampionError, champion_of
from trimtab.infra.reports import write_run
from trimtab.infra.settings import Settings


def _config(recipe: str, *overrides: str) -> RunConfig:
    return apply_changes(recipe_named(recipe), parse_overrides(overrides))


def _name(recipe: str, *overrides: str) -> str:
    return name_run(_config(recipe, *overrides), "rlhf").name


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each not in ONLY_FLOW])
def test_a_recipe_with_its_seed_only(recipe: str) -> None:
    assert _name(recipe) == f"{recipe}-seed0"
    assert name_run(_config(recipe, "seed=3"), "label-audit").name == f"{recipe}-seed3-label-audit"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["ppo.kl_coef=0.05"], "default-seed0-ppo.kl_coef=0.05"),
        (["ppo.kl_coef=0.2"], "default-seed0"),  # the recipe's own value
        (['arms=["full","dpo"]', "ppo.num_steps=9"], "default-seed0-ppo.num_steps=9-arms=full+dpo"),
        (
            ["judge_preferences.judge.gold_accuracy=0.8"],
            "default-seed0-judge_preferences.judge.gold_accuracy=0.8",
        ),
        (["ppo.score_clip=null", "seed=2"], "default-seed2-ppo.score_clip=null"),
    ],
)
def test_changes_are_said(overrides: list[str], name: str) -> None:
    assert _name("default", *overrides) == name


def test_much_is_cut_and_still_told_apart() -> None:
    many = ["ppo.num_steps=9", "sft.train.learning_rate=0.001", "evaluate.temperature=0.7"]
    names = {
        _name("default", *many, "ppo.kl_coef=0.1"),
        _name("default", *many, "ppo.kl_coef=0.3"),
        _name("default", *many),
        _name(
            "default",
            "judge_preferences.judge.endpoint.base_url=http://a/b",
            "judge_preferences.judge.endpoint.model=m",
        ),
        _name(
            "default",
            "judge_preferences.judge.endpoint.base_url=http://a_b",
            "judge_preferences.judge.endpoint.model=m",
        ),
    }
    assert len(names) == 5
    for name in names:
        assert len(name) <= MAX_NAME and re.fullmatch(NAME_PATTERN, name), name


def test_files_count_by_content_and_not_by_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def audited(path: Path) -> RunConfig:
        return _config("hh-smollm2", f'preferences.sources=["{path}"]', "preferences.categories=[]")

    for folder, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my.jsonl.gz").write_text(text)
    names, models, data = zip(
        *(
            (name_run(config, "rlhf").name, registered_model_name(config), data_name(config))
            for config in (audited(tmp_path / folder / "my.jsonl.gz") for folder in "abc")
        ),
        strict=True,
    )
    assert re.fullmatch(r"my-[0-9a-f]{8}", data[0])
    assert names[0] == f"hh-smollm2-seed0-{data[0]}-preferences.categories=none"
    assert models[0].startswith(f"trimtab-policy-hh-smollm2-{data[0]}")
    for each in (names, models, data):
        assert each[0] == each[1] != each[2]
    # What is edited is other data, and so are files of the names that the recipe has.
    before = _name("hh-smollm2")
    monkeypatch.chdir(tmp_path)
    for name in ("hh-helpful.jsonl.gz", "hh-harmless.jsonl.gz"):
        Path(name).write_text(name)
    own = _name("hh-smollm2")
    Path("hh-helpful.jsonl.gz").write_text("longer")
    assert len({before, own, _name("hh-smollm2")}) == 3
    assert own.startswith("hh-smollm2-seed0-hh-helpful+1-")


def test_a_review_counts_by_content_too(tmp_path: Path) -> None:
    path = tmp_path / "review.jsonl"
    path.write_text("a")
    before = _name("smoke", f"relabel.review={path}")
    path.write_text("other")
    assert before.startswith("smoke-seed0-relabel.review=review.jsonl-")
    assert _name("smoke", f"relabel.review={path}") != before


def test_champions_compete_on_the_same_pairs_before_the_same_judges() -> None:
    def model(*overrides: str) -> str:
        return registered_model_name(_config("default", *overrides))

    own = "trimtab-policy-default"
    for same in (
        "ppo.kl_coef=0.1",
        "reward_model.train.num_epochs=2",
        "rounds.max_rounds=4",
        'arms=["full"]',
        "relabel.smoothing=0.1",
        "ensemble.size=7",
        "judge_preferences.judge.gold_accuracy=0.8",
    ):
        assert model(same) == own, same
    assert model("seed=1") == f"{own}-seed1"
    others = [
        model(other)
        for other in (
            "world.num_pair_prompts=100",
            "comparisons.flip_share=0.1",
            "evaluate.temperature=0.7",
            "sft.train.num_epochs=1",
            "ensemble.size=3",
            "ensemble.member.train.num_epochs=2",
        )
    ]
    assert len({own, *others}) == 7
    for each in others:
        assert re.fullmatch(rf"{own}-[0-9a-f]{{8}}", each)


def test_a_comparison_says_what_is_not_usual() -> None:
    config = _config("smoke")
    assert comparison_name(config, METHODS, SEEDS).name == "compare-smoke"
    name = comparison_name(config, ["dpo", "cpl"], [0, 1]).name
    assert name == "compare-smoke-seeds=0+1-arms=dpo+cpl"
    assert comparison_name(config, METHODS, SEEDS, "mine").name == "mine"


def test_a_study_has_no_pre_training_loss_unless_it_is_asked_for() -> None:
    usual, asked = (
        study_config("papers", parse_overrides(words)) for words in ([], ["ppo.ptx_coef=0.1"])
    )
    assert recipe_named("papers").ppo.ptx_coef == asked.ppo.ptx_coef == 0.1
    assert usual.ppo.ptx_coef == 0
    assert study_name(usual, "part-2-figure-3", SEEDS).name == "study-part-2-figure-3-papers"
    name = study_name(asked, "part-2-figure-3", [0]).name
    assert name == "study-part-2-figure-3-papers-seeds=0-ppo.ptx_coef=0.1"


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "", "x" * 151, "a b"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name: found .*, allowed are up to 150 letters"):
        name_run(_config("smoke"), "rlhf", name)


def test_a_name_of_another_configuration_is_refused_before_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "local_prefect_server", lambda: pytest.fail("work has begun"))
    mine = name_run(_config("smoke", "ppo.kl_coef=0.07"), "rlhf", "mine")
    write_run(tmp_path / "reports" / "mine", mine.about)
    check_free(mine, Settings.from_env())
    assert main(["run", "smoke", "--name", "mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'mine' is taken" in line
    assert "has the report of smoke-seed0-ppo.kl_coef=0.07, and this run is smoke-seed0" in line
    # A folder of an earlier Trimtab is its recipe's and seed's.
    (tmp_path / "reports" / "smoke-seed0").mkdir()
    assert main(["run", "smoke", "--name", "smoke-seed0", "--dry-run"]) == 0
    assert main(["run", "smoke", "--name", "smoke-seed0", "--dry-run", "ppo.num_steps=7"]) == 2


def _report(folder: Path, name: str, *overrides: str) -> None:
    found = folder / name
    config = _config("smoke", *overrides)
    write_run(found, name_run(config, "rlhf", name).about)
    card = {"claims": [], "scorers": {}, "policies": [], "recipe": "smoke"}
    (found / "scorecard.json").write_text(json.dumps(card))
    (found / "summary.json").write_text(json.dumps({"score": config.ppo.kl_coef + config.seed}))


def test_compare_shows_the_settings_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    reports = tmp_path / "reports"
    _report(reports, "gentle", "ppo.kl_coef=0.5")
    _report(reports, "a", "ppo.kl_coef=0.25")
    _report(reports, "b", "ppo.kl_coef=0.25", "seed=1")
    _report(reports, "unknown")
    (reports / "unknown" / "run.json").unlink()
    assert main(["compare", "gentle", "a", "b"]) == 0
    text = capsys.readouterr().out
    assert "| setting | gentle | a, b |" in text
    assert "| ppo.kl_coef | 0.5 | 0.25 |" in text
    assert "| seed |" not in text
    # Mean of .25 and 1.25, deviations of .5: standard deviation sqrt(.5).
    assert "| score | 0.500 | 0.750 ± 0.707 |" in text
    assert main(["compare", "a", "b"]) == 0
    assert "settings" not in capsys.readouterr().out.lower()
    assert main(["compare", "a", "unknown"]) == 2
    assert "no settings in" in capsys.readouterr().err


def test_rounds_without_a_champion_are_idle_and_say_what_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds_module, "registered", lambda *_: None)
    state: Any = rounds_module.rounds.fn("default")
    assert state.is_completed()
    assert state.name == "Idle"
    assert "trimtab-policy-default has no champion" in state.message
    assert "first run `trimtab run default` (deployment rlhf) on its data" in state.message
    for name in ("hh-smollm2-my-3f2a9c12", "trimtab-policy-hh-smollm2-my-3f2a9c12"):
        with pytest.raises(NoChampionError, match="run `trimtab run hh-smollm2`"):
            champion_of(name)
    with pytest.raises(ConfigError, match="unknown recipe or registered model 'defualt'") as error:
        rounds_module.rounds.fn("defualt")
    assert not isinstance(error.value, NoChampionError)


def test_the_command_of_a_run_makes_it_again() -> None:
    config = apply_changes(recipe_named("smoke"), parse_overrides(["ppo.kl_coef=0.25"]))
    command = name_run(config, "reward").command
    assert command == "trimtab run smoke --flow reward ppo.kl_coef=0.25"
    (*_, change) = command.split()
    again = apply_changes(recipe_named("smoke"), parse_overrides([change]))
    assert name_run(again, "reward") == name_run(config, "reward")
    first, _ = configs_of_seeds("smoke", ["dpo"], [3, 4], None)
    compared = comparison_name(first, ["dpo"], [3, 4])
    assert compared.command == "trimtab run smoke --flow compare --arms dpo --seeds 3,4"
    assert name_run(config, "rounds").command == ""
    named = name_run(config, "rlhf", "mine").command
    assert named == "trimtab run smoke --name mine ppo.kl_coef=0.25"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"preferences": {"max_pairs": 500}}, "-max_pairs=500"),
        ({"preferences": {"columns": {"prompt": "Question"}}}, "-columns.prompt=Question"),
        ({"relabel": {"drop_below": 0.0}}, "-relabel.drop_below=0.0"),
    ],
)
def test_the_name_of_an_audit_says_its_files_and_what_was_changed(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "sheet.csv").write_text("x")
    sources = {"sources": [str(tmp_path / "sheet.csv")]}
    merged = {**changes, "preferences": {**changes.get("preferences", {}), **sources}}
    config = apply_changes(recipe_named("audit"), merged)
    name = name_run(config, "label-audit").name
    assert re.fullmatch(rf"audit-sheet-[0-9a-f]{{8}}{re.escape(said)}", name), name
    seeded = name_run(apply_changes(config, {"seed": 1}), "label-audit").name
    assert seeded == name.replace("audit-", "audit-seed1-")


def test_the_command_of_an_audit_is_that_which_was_given(tmp_path: Path) -> None:
    """Files where they were, and the options: pasted, it is the same run."""
    texts = {"my pairs.jsonl": "a", "votes.csv": "b", "panel.csv": "c", "review.jsonl": "d"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    pairs, votes, panel, review = (str(tmp_path / name) for name in texts)
    changes = changes_of_audit(
        [pairs, "someone/pairs"],
        ["relabel.drop_below=0"],
        columns="chosen=better,rejected=worse",
        options={
            "relabel.review": review,
            "ensemble.scores": [votes, panel],
            "ensemble.rewards": [{"model": "someone/model"}],
        },
    )
    config = apply_changes(recipe_named("audit"), changes)
    command = name_run(config, "label-audit", "mine").command
    assert command == (
        f"trimtab audit '{pairs}' someone/pairs --columns chosen=better,rejected=worse "
        f"--votes {votes} --votes {panel} --apply {review} "
        """'ensemble.rewards=[{"model": "someone/model"}]' relabel.drop_below=0.0 --name mine"""
    )


def test_the_command_of_a_reward_model_is_that_which_was_given(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("a")
    changes = changes_of_audit([str(pairs)], ["relabel.flip_below=0.5", "sft.model.base=lab/base"])
    config = apply_changes(recipe_named("reward"), changes)
    command = name_run(config, "reward", "mine").command
    options = "--base lab/base relabel.flip_below=0.5 --name mine"
    assert command == f"trimtab reward {pairs} {options}"


def test_a_column_with_a_comma_in_an_audits_command_stays_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("a")
    given = ["preferences.columns={chosen: 'a, b'}"]
    config = apply_changes(recipe_named("audit"), changes_of_audit([str(path)], given))
    command = name_run(config, "label-audit").command
    assert command == f"trimtab audit {path} 'preferences.columns.chosen=a, b'"
    sources, overrides = files_and_overrides(shlex.split(command)[2:])
    again = apply_changes(recipe_named("audit"), changes_of_audit(sources, overrides))
    assert again == config
