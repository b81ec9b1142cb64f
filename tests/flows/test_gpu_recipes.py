"""Recipes for GPUs: their plans leave a tenth of their card free, and each of their stages runs at
tiny size on a CPU with the recipe's own switches, so that no switch is first run by a user."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests.flows.direct import submit_directly
from trimtab.flows.config.config import RunConfig, sections_of
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import MACHINES, recipe_named
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import Run
from trimtab.flows.runs.plan import make_plan
from trimtab.flows.runs.plan_text import hours_text, size, too_large
from trimtab.infra.processes.launch import close_servers
from trimtab.models.config.training import TrainerConfig
from trimtab.models.stages.world import word_tokenizer
from trimtab.models.synthetic.demonstrations import demonstrate, draw_prompts
from trimtab.models.synthetic.tasks import MAIN

PAGE = Path(__file__).parents[2] / "docs/how-to/gpu.md"
# By recipe the model_type of its base, whose weights a tiny model of the same kind has here.
KINDS = {
    "hh-qwen-0.5b": "qwen2",
    "hh-qwen-1.5b-lora": "qwen2",
    "hh-7b-lora": "mistral",
    "hh-7b": "mistral",
}
SWITCHES = ("lora", "gradient_checkpointing", "zero", "optimiser", "precision", "trainable_layers")
NUM_PAIRS = 60
# Fewer and shorter rows and steps; nothing of how a model is trained.
TINY = (
    "preferences.max_tokens=48",
    "preferences.max_pairs=null",
    "preferences.validation_share=0.1",
    "preferences.test_share=0.1",
    "preferences.num_eval_prompts=3",
    "preferences.written_prompts=false",
    "sft.model.max_length=49",
    "sft.train.num_epochs=1",
    "ensemble.size=2",
    "embedding_models=[]",
    "rehearsal.max_prompts=12",
    "rehearsal.num_clusters=2",
    "rehearsal.per_cluster=2",
    "ppo.num_steps=2",
    "ppo.critic_pretrain_steps=1",
    "ppo.rollout_batch=8",
    "ppo.train_batch=4",
    "ppo.rehearsal_batch=2",
    "rounds.max_rounds=2",
    "rounds.promote=always",
    "rounds.meta_rm.num_prompts=4",
    "rounds.meta_rm.num_responses=2",
    "rounds.meta_rm.meta_batch=2",
    *(
        f"{section}.max_new_tokens=6"
        for section in ("rehearsal", "ppo", "rounds.meta_rm", "evaluate")
    ),
)

# Where a recipe has eq. 7; some prompts are held out.
TINY_EXPECTED = [
    f"advantage_model.expected_reward.{name}={value}"
    for name, value in (
        ("num_prompts", 8),
        ("num_held_out", 4),
        ("held_out_responses", 2),
        ("num_responses", 2),
        ("max_new_tokens", 6),
    )
]


@pytest.mark.parametrize("recipe", KINDS)
def test_every_stage_leaves_a_tenth_of_its_card_free(recipe: str) -> None:
    machine = MACHINES[recipe]
    plan = make_plan(recipe_named(recipe), "rlhf", machine)
    assert too_large(plan) is None
    for row in plan.rows:
        assert plan.needed(row) <= machine.memory - machine.margin, row.name
    assert machine.cards


@pytest.mark.parametrize("recipe", KINDS)
def test_the_page_has_the_plan_s_memory_and_hours(recipe: str) -> None:
    plan = make_plan(recipe_named(recipe), "rlhf", MACHINES[recipe])
    hours = ", ".join(
        f"{card.name} {hours_text(plan.gpu_hours(plan.rows, card))}" for card in plan.machine.cards
    )
    expected = f" {size(max(map(plan.needed, plan.rows)))} | {hours} |"
    (row,) = re.findall(rf"^\|.* \| `{recipe}` \|.* GiB \|.*$", PAGE.read_text(), re.MULTILINE)
    assert row.endswith(expected), expected


@pytest.fixture(scope="module")
def fork_server() -> Iterator[str]:
    yield "tests.flows.preload_all"
    close_servers()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", KINDS)
def test_every_stage_runs_with_the_recipe_s_own_switches(
    recipe: str, tmp_path: Path, fork_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [_pairs(tmp_path / f"{name}.jsonl", name) for name in ("helpful", "harmless")]
    whole = recipe_named(recipe)
    config = apply_changes(
        whole,
        parse_overrides(
            [
                f"preferences.sources={json.dumps(sources)}",
                'preferences.categories=["helpful","harmless"]',
                f"sft.model.base={_base(KINDS[recipe], tmp_path / 'base')}",
                *TINY,
                *(TINY_EXPECTED if whole.advantage_model.expected_reward else ()),
                *_two_ranks(whole),
            ]
        ),
    )
    assert _switches(config) == _switches(whole)
    submit_directly(tmp_path / "home", fork_server, monkeypatch)
    run = Run(config)
    experiment.rlhf(run)
    planned = make_plan(config, "rlhf", MACHINES[recipe])
    assert run.roles.keys() == {role for row in planned.rows for role in row.roles}
    for role in run.roles:
        for name, value in run.result(role).summary.items():
            assert not isinstance(value, float) or math.isfinite(value), (role, name)


def _switches(config: RunConfig) -> dict[str, dict[str, Any]]:
    """How every trainer of a run trains."""
    return {
        path: {name: getattr(section, name) for name in SWITCHES}
        for path, section in sections_of(config)
        if isinstance(section, TrainerConfig)
    }


def _two_ranks(config: RunConfig) -> Iterator[str]:
    """Two ranks where a recipe has several."""
    for path, section in sections_of(config):
        if isinstance(section, TrainerConfig) and section.ranks > 1:
            yield f"{path}num_ranks=2"


def _base(kind: str, folder: Path) -> Path:
    """A model of two layers with grouped heads, and a tokenizer whose tokens are words."""
    tokenizer = word_tokenizer()
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=kind == "qwen2",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _pairs(path: Path, name: str) -> str:
    """Pairs of a good answer and one to another prompt."""
    rng = random.Random(name)
    prompts = draw_prompts(MAIN, NUM_PAIRS // 2, rng)
    answers = demonstrate(prompts, 0.0, rng)
    with path.open("w") as stream:
        for prompt, chosen, rejected in zip(
            prompts, answers, [*answers[1:], answers[0]], strict=True
        ):
            row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
            if chosen != rejected:
                stream.write(json.dumps(row) + "\n")
    return str(path)
