"""Arms beside PPO-max: refused settings, and budgets that equal PPO's in every recipe."""

from __future__ import annotations

import json
from math import ceil
from typing import get_args

import pytest

from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import ONLY_FLOW, RECIPES, recipe_named
from trimtab.flows.runs.plan import Plan, make_plan
from trimtab.models.config.policy import DPOLoss
from trimtab.models.estimates.machine import Machine

LARGE = Machine(1, 10**15, 2, False)


def _smoke(*overrides: str) -> RunConfig:
    return apply_changes(recipe_named("smoke"), parse_overrides(overrides))


def _plan(*overrides: str) -> Plan:
    return make_plan(_smoke(*overrides), "rlhf", LARGE)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dpo.label_smoothing=0.5", "Input should be less than 0.5; found 0.5"),
        ("dpo.loss=robust", "label_smoothing must be above 0 where loss is robust, found 0"),
        ("dpo.loss=ppo", "Input should be 'sigmoid', 'robust', 'hinge', 'ipo', 'kto', 'simpo'"),
        ("dpo.simpo_gamma=1", "simpo_gamma must be 0.5 where loss is not simpo, found 1.0"),
        ("dpo.desirable_weight=2", "desirable_weight must be 1.0 where loss is not kto, found 2.0"),
        (
            'dpo={"loss":"kto","train":{"batch_size":1}}',
            "train.batch_size must be above 1 where loss is kto, found 1",
        ),
        (
            'dpo={"loss":"kto","train":{"batch_tokens":99,"least_batch_size":1}}',
            "train.least_batch_size must be above 1 where loss is kto, found 1",
        ),
        ("cpl.conservative_bias=0", "Input should be greater than 0; found 0"),
        ("best_of_n.num_responses=1", "Input should be greater than or equal to 2; found 1"),
        ("rest.improve.thresholds=[0.9,0.5]", "thresholds must rise from one to the next, found"),
        ("rest.improve.thresholds=[0.5,1.0]", "must be in [0, 1) where threshold_kind is"),
        ('hir.learn.instructions=["a","a"]', "instructions must differ and not be empty, found"),
        ('hir.answers.instruction="b"', "answers.instruction of HIR must be empty, found 'b'"),
        ('arms=["dpoo"]', "Input should be 'vanilla', 'ppo_max_rm'"),
    ],
)
def test_mistakes_are_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _smoke(override)
    assert message in str(error.value)


def test_thresholds_that_are_scores_have_no_range() -> None:
    config = _smoke("rest.improve.threshold_kind=value", "rest.improve.thresholds=[-2.5,0,3.5]")
    assert config.rest.improve.thresholds == (-2.5, 0.0, 3.5)


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - ONLY_FLOW))
def test_arms_that_sample_take_as_many_responses_as_ppo(name: str) -> None:
    config = recipe_named(name)
    ppo = config.ppo
    of_ppo = (ppo.critic_pretrain_steps + ppo.num_steps) * ppo.rollout_batch
    loops = {
        "rejection_sampling": (config.rejection_sampling, "num_iterations"),
        "rest": (config.rest, "num_grow_steps"),
        "hir": (config.hir, "num_iterations"),
    }
    for loop, times in loops.values():
        drawn = loop.answers.num_prompts * loop.answers.num_responses * getattr(loop, times)
        # All but what does not fill a prompt in each turn.
        assert 0 <= of_ppo - drawn < loop.answers.num_responses * getattr(loop, times)
        assert loop.answers.temperature == ppo.temperature
        assert loop.answers.max_new_tokens == ppo.max_new_tokens


def test_the_plan_of_the_demo_has_as_many_samples_and_about_as_many_updates() -> None:
    """Updates within a third of PPO's; DPO and CPL pass the pairs once."""
    arms = '["full","dpo","cpl","rejection_sampling","rest","hir"]'
    config = apply_changes(recipe_named("default"), parse_overrides([f"arms={arms}"]))
    plan = make_plan(config, "policy", LARGE)
    rows = {role: row for row in plan.rows for role in row.roles}
    sampled = rows["policy_full"].work.sampled_tokens
    updates = config.ppo.num_steps * ceil(config.ppo.rollout_batch / config.ppo.train_batch)
    for arm in ("rejection_sampling", "rest", "hir"):
        own = [row.work for role, row in rows.items() if role.startswith((arm, f"policy_{arm}"))]
        assert sum(work.sampled_tokens for work in own) == sampled
        assert abs(sum(work.optimiser_steps for work in own) - updates) < updates / 3


def test_arms_in_turns_learn_from_all_that_was_sampled_before() -> None:
    plan = _plan('arms=["rejection_sampling_ppo","hir","rest"]', "hir.num_iterations=3")
    steps = {role: row.stage.step for row in plan.rows for role in row.roles}
    stages = {role: row.stage for row in plan.rows for role in row.roles}
    chain = [f"hir_{what}_{n}" for n in (1, 2, 3) for what in ("answers", "policy")][:-1]
    begin = steps[chain[0]]
    assert [steps[role] for role in (*chain, "policy_hir", "eval_hir", "judge_hir")] == [
        *range(begin, begin + 8)
    ]
    sampled = [stages[f"hir_answers_{n}"] for n in (1, 2, 3)]
    assert stages["policy_hir"].inputs["responses"] == sampled
    assert [each.config.instruction for each in sampled] == ["", "ten", "ten"]
    assert len({each.config.seed for each in sampled}) == 3
    assert stages["eval_hir"].config.instruction == "ten"
    # Llama 2's sequence trains rejection sampling, and judges what comes of it in the end.
    before = stages["policy_rejection_sampling"]
    assert stages["policy_rejection_sampling_ppo"].inputs["policy"] is before
    assert stages["policy_rejection_sampling_ppo"].inputs["reference"] is stages["sft"]
    assert "eval_rejection_sampling" not in steps
    assert not any(role.startswith(("meta_rm", "policy_full", "rehearsal")) for role in steps)


def test_rejection_sampling_is_trained_once_for_both_arms() -> None:
    arms = ["rejection_sampling", "rejection_sampling_ppo"]
    for order in (arms, arms[::-1]):
        plan = _plan(f"arms={json.dumps(order)}")
        stages = [row.stage.stage for row in plan.rows]
        assert (stages.count("sample_responses"), stages.count("rejection_sampling")) == (2, 2)
        assert any("judge_rejection_sampling" in row.roles for row in plan.rows)


def test_only_the_newest_samples_where_that_is_asked_for() -> None:
    plan = _plan('arms=["rejection_sampling"]', "rejection_sampling.from_all_iterations=false")
    stages = {role: row.stage for row in plan.rows for role in row.roles}
    newest = [stages["rejection_sampling_answers_2"]]
    assert stages["policy_rejection_sampling"].inputs["responses"] == newest


def test_an_arm_rehearses_where_it_is_told_to() -> None:
    arms = 'arms=["dpo","cpl","rejection_sampling_ppo","rest","hir"]'
    assert not any("rehearsal" in row.roles for row in _plan(arms).rows)
    fields = ("rejection_sampling.fine_tune", "rest.improve", "hir.learn", "dpo")
    plan = _plan(arms, *(f"{field}.rehearsal_coef=0.1" for field in fields))
    stages = {role: row.stage for row in plan.rows for role in row.roles}
    first = ("rejection_sampling_policy_1", "policy_rejection_sampling", "hir_policy_1")
    for role in (*first, "policy_rest", "policy_hir", "policy_dpo"):
        assert stages[role].inputs["rehearsal"] is stages["rehearsal"], role
    for role in ("policy_cpl", "policy_rejection_sampling_ppo"):
        assert "rehearsal" not in stages[role].inputs, role
    # PPO goes on from a policy that needs it.
    alone = _plan('arms=["rejection_sampling_ppo"]', f"{fields[0]}.rehearsal_coef=0.1")
    assert any("rehearsal" in row.roles for row in alone.rows)


@pytest.mark.parametrize("loss", get_args(DPOLoss))
def test_a_reference_is_handed_to_losses_that_need_one(loss: str) -> None:
    rate = ["dpo.label_smoothing=0.1"] if loss == "robust" else []
    plan = _plan('arms=["dpo","cpl"]', f"dpo.loss={loss}", *rate)
    stages = {role: row.stage for row in plan.rows for role in row.roles}
    assert stages["policy_dpo"].config.loss == loss
    has_reference = "reference" in stages["policy_dpo"].inputs
    assert has_reference == (loss not in ("simpo", "orpo"))
    assert "reference" not in stages["policy_cpl"].inputs
