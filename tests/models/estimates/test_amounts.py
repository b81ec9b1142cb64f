"""Counts and bounds of a plan against what the stages really write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.conftest import run_stage
from trimtab.flows.config.recipes.synthetic import smoke
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.records import read_rows
from trimtab.models.estimates.amounts import ASSUMED_PAIRS, amounts_of_preferences, amounts_of_world
from trimtab.models.estimates.shapes import PlanError


@pytest.mark.parametrize("num_demonstrations", [400, 3000])
def test_the_world_is_as_large_as_planned(tmp_path: Path, num_demonstrations: int) -> None:
    """3,000 demonstrations come with more expert prompts than are shown, 400 with fewer."""
    config = smoke()
    world = config.world.model_copy(update={"num_demonstrations": num_demonstrations})
    output = run_stage("world", world, tmp_path)
    summary = json.loads((output / "summary.json").read_text())
    planned = amounts_of_world(world, config.comparisons, max_length=64)
    assert planned.demonstrations == summary["num_demonstrations"]
    assert planned.pair_prompts == planned.pairs == summary["num_pair_prompts"]
    assert planned.policy_prompts == summary["num_policy_prompts"]
    assert (planned.train_rankings, planned.max_responses) == (planned.train_pairs, 2)
    three = config.comparisons.model_copy(update={"pairs_per_prompt": 3})
    ranked = amounts_of_world(world, three, max_length=64)
    assert ranked.pairs == 3 * ranked.pair_prompts == 3 * planned.pairs
    assert (ranked.train_rankings, ranked.max_responses) == (planned.train_pairs, 4)
    sets = ("main", "validation", "forget", "held_out")
    assert planned.eval_prompts == sum(summary[f"num_eval_{name}"] for name in sets)
    assert planned.eval_sets == len(list((output / "eval").iterdir()))

    rows = read_rows(output / "demonstrations.jsonl")
    prompts = [len(row["prompt"].split()) for row in rows]
    dialogues = [
        length + len(row["response"].split()) + 1 for length, row in zip(prompts, rows, strict=True)
    ]
    assert max(prompts) <= planned.prompt_tokens
    assert max(dialogues) <= planned.dialogue_tokens
    # A bound far above every row would be of no use.
    assert max(prompts) > 0.8 * planned.prompt_tokens
    assert max(dialogues) > 0.8 * planned.dialogue_tokens


def _write(path: Path, count: int) -> str:
    rows = [
        {"prompt": f"question {index}", "chosen": "yes", "rejected": "no"} for index in range(count)
    ]
    rows.append({"prompt": "ranked", "responses": ["a", "b", "c", "d"]})  # 4 answers: 6 pairs
    rows.append({"prompt": "tied", "chosen": "x", "rejected": "y", "tie": True})
    rows.append({"prompt": "", "chosen": "x"})
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\nnot json\n")
    return str(path)


def test_pairs_of_files_are_counted(tmp_path: Path) -> None:
    sources = (_write(tmp_path / "a.jsonl", 74), _write(tmp_path / "b.jsonl", 14))
    config = PreferencesConfig(
        sources=sources, validation_share=0.1, test_share=0.2, num_eval_prompts=15, max_tokens=100
    )
    planned = amounts_of_preferences(config, max_length=64)
    # 74 + 6 and 14 + 6 pairs; of 100, 70 train, 10 validate, 15 of 20 test prompts are answered.
    assert (planned.pairs, planned.train_pairs, planned.demonstrations) == (100, 70, 70)
    assert (planned.policy_prompts, planned.eval_prompts) == (70, 25)
    # 75 and 15 prompts, 70 % of them; four answers are ranked.
    assert (planned.train_rankings, planned.max_responses) == (63, 4)
    # Prompt and answer: 100, cut by SFT at 64; a pair: prompt, two answers, two end tokens.
    assert (planned.prompt_tokens, planned.dialogue_tokens) == (100, 64)
    assert planned.pair_tokens == 202
    assert "100 pairs counted" in planned.assumptions[0]
    fewer = amounts_of_preferences(config.model_copy(update={"max_pairs": 50}), max_length=64)
    assert (fewer.pairs, fewer.train_pairs) == (50, 35)
    assert "max_pairs keeps 50" in fewer.assumptions[0]


def test_sources_that_are_not_here_are_not_fetched(tmp_path: Path) -> None:
    sources = (_write(tmp_path / "a.jsonl", 4), "owner/name")
    config = PreferencesConfig(sources=sources)
    planned = amounts_of_preferences(config, max_length=64)
    assert planned.pairs == ASSUMED_PAIRS
    assert (planned.train_rankings, planned.max_responses) == (planned.train_pairs, 2)
    assert "UNKNOWN" in planned.assumptions[0]
    limited = amounts_of_preferences(config.model_copy(update={"max_pairs": 50}), max_length=64)
    assert limited.pairs == 50
    assert "from preferences.max_pairs" in limited.assumptions[0]


def test_a_broken_source_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("prompt,chosen,rejected\n")
    with pytest.raises(PlanError, match=r"preferences\.sources: .*pairs\.txt"):
        amounts_of_preferences(PreferencesConfig(sources=(str(path),)), max_length=64)


def test_demonstrations_of_files_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\nnot json\n{"text": "c"}\n')
    sources = (_write(tmp_path / "a.jsonl", 94),)
    config = PreferencesConfig(sources=sources, demonstrations=(str(path),))
    planned = amounts_of_preferences(config, max_length=64)
    assert (planned.demonstrations, planned.train_pairs) == (3, 75)
    assert "3 rows counted in preferences.demonstrations" in planned.assumptions[-1]
    elsewhere = config.model_copy(update={"demonstrations": (str(path), "owner/name")})
    assumed = amounts_of_preferences(elsewhere, max_length=64)
    assert assumed.demonstrations == 75
    assert "demonstrations: UNKNOWN" in assumed.assumptions[-1]
    renamed = str(path.rename(tmp_path / "shown.txt"))
    with pytest.raises(PlanError, match=r"preferences\.demonstrations: .*shown\.txt"):
        amounts_of_preferences(
            config.model_copy(update={"demonstrations": (renamed,)}), max_length=64
        )
