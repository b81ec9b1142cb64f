"""Constitutional AI in the flow: where its stages stand, and what they take in."""

from __future__ import annotations

import pytest

from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.plan import Plan, PlanRow, make_plan
from trimtab.flows.runs.plan_text import plan_text
from trimtab.models.estimates.machine import Machine


def _plan(name: str, *overrides: str) -> Plan:
    config = apply_changes(recipe_named(name), parse_overrides(overrides))
    return make_plan(config, "rlhf", Machine(1, 10**15, 2, False))


def _rows(plan: Plan) -> dict[str, PlanRow]:
    return {role: row for row in plan.rows for role in row.roles}


def _steps(plan: Plan) -> dict[str, int]:
    return {role: row.stage.step for role, row in _rows(plan).items()}


def test_under_a_constitution_sft_goes_on_from_its_revisions() -> None:
    gold = "constitution.revise.judge.gold_accuracy=0.8"
    plan, before = _plan("smoke", gold), _steps(_plan("smoke"))
    steps, stages = _steps(plan), {role: row.stage for row in plan.rows for role in row.roles}
    assert [steps[role] for role in ("data", "helpful_sft", "revisions", "sft")] == [1, 2, 3, 4]
    assert stages["revisions"].inputs["policy"] is stages["helpful_sft"]
    assert stages["sft"].inputs["policy"] is stages["helpful_sft"]
    assert stages["sft"].inputs["revisions"] is stages["revisions"]
    assert stages["sft"].config.train == plan.config.sft.train
    # Everything else stands as it did, on the policy that has learned its revisions.
    later = {role: step + 2 for role, step in before.items() if step > 2}
    assert {role: step for role, step in steps.items() if role in later} == later
    for role in ("preferences", "policy_vanilla", "member_0"):
        assert stages[role].inputs.get("reference", stages[role].inputs["policy"]) is stages["sft"]
    own = _plan("smoke", gold, "constitution.learn.train.num_epochs=9")
    (learned,) = [row.stage for row in own.rows if row.stage.stage == "constitutional_sft"]
    assert learned.config.train.num_epochs == 9
    real = ['preferences.sources=["x.jsonl"]', "preferences.categories=[]"]
    with pytest.raises(ConfigError, match="gold_accuracy must be none with preferences.sources"):
        _plan("hh-smollm2", *real, gold)


def test_constitutional_revises_and_judges_by_principles() -> None:
    plan = _plan("constitutional")
    stages = {role: row.stage for role, row in _rows(plan).items()}
    assert stages["revisions"].config.categories == ("harmful",)
    assert stages["judged"].config.judge.constitution == "harmlessness"
    text = " ".join(plan_text(plan).split())
    assert "so all prompts are counted, here and in constitutional_sft" in text
    assert "judge_preferences asks about pairs of some categories" in text
    assert "of some categories" not in plan_text(_plan("smoke"))
