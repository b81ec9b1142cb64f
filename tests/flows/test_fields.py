"""The command `trimtab fields`: every setting, what it does and what is allowed."""

from __future__ import annotations

import json

import pytest

from trimtab.flows.cli.cli import main
from trimtab.flows.cli.fields import fields_text, settings_of
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.recipes import RECIPES, recipe_named


def test_every_setting_says_what_it_does_and_what_is_allowed() -> None:
    for setting in settings_of(RunConfig):
        assert setting.description, setting.path
        assert setting.allowed, setting.path
        if setting.default != "required":
            json.loads(setting.default)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("seed", "integer from 0 to 4,000,000"),
        ("cache_trunk", "true or false"),
        ("relabel.smooth", "none, negative, not_flipped or all"),
        ("relabel.flip_below", "number from -1,000,000 to 1,000,000 or null"),
        ("preferences.test_share", "number at least 0 and below 1"),
        ("preferences.sources", "list of text"),
        ("rehearsal.num_clusters", "integer from 1 to 100,000"),
        ("ensemble.votes", "list of in_sample, cross_fitted or embedding_models"),
        ("judges", "list of sections"),
        ("sft.train.zero.stage", "1, 2 or 3"),
        ("sft.model.base", "text or null"),
    ],
)
def test_allowed_values_in_words(path: str, allowed: str) -> None:
    assert {each.path: each.allowed for each in settings_of(RunConfig)}[path] == allowed


def test_a_word_finds_settings_by_name_before_descriptions() -> None:
    found = fields_text(["kl_coef"], recipe_named("default"))
    assert found.splitlines()[0] == f"ppo.kl_coef={recipe_named('default').ppo.kl_coef}"
    assert "[PPO: 0.05]. Allowed: number from 0 to 1,000,000." in " ".join(found.split())
    section = fields_text(["rounds.meta_rm"], recipe_named("default"))
    assert all(
        line.startswith(("rounds.meta_rm.", "    ")) for line in section.splitlines() if line
    )
    described = fields_text(["annotators"], recipe_named("default"))
    assert "comparisons." in described


@pytest.mark.parametrize("recipe", RECIPES)
def test_values_are_the_recipe_s(recipe: str) -> None:
    config = recipe_named(recipe)
    assert f"ppo.num_steps={config.ppo.num_steps}\n" in fields_text(["num_steps"], config)
    text = fields_text(["sft.train.zero"], config)
    assert ("(the section is off: sft.train.zero=null)" in text) == (config.sft.train.zero is None)


def test_without_a_word_all_sections_are_listed() -> None:
    text = fields_text([], recipe_named("default"))
    names = [line.split()[0] for line in text.splitlines()[2:]]
    assert names == list(RunConfig.model_fields)
    numbers = [int(line.split()[1]) for line in text.splitlines()[2:]]
    assert sum(numbers) == len(list(settings_of(RunConfig)))
    assert max(map(len, text.splitlines())) <= 100


def test_a_word_that_nothing_has_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match=r"'klcoef'.*did you mean 'kl_coef'"):
        fields_text(["klcoef"], recipe_named("default"))
    assert main(["fields", "klcoef"]) == 2
    assert "kl_coef" in capsys.readouterr().err
    assert main(["fields", "kl_coef", "--recipe", "smok"]) == 2
    assert "smoke" in capsys.readouterr().err
