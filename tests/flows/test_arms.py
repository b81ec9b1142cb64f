"""What arms of PPO start from and are optimised against, by the plan of a run that has them all."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import PlannedRun
from trimtab.flows.runs.plan import Plan, PlannedStage, PlanRow, make_plan
from trimtab.models.config.arms import ARMS
from trimtab.models.estimates.machine import Machine
from trimtab.models.specs import StageSpec
from trimtab.tasks.resources import cores_of

GOES_ON = "rejection_sampling_ppo"
# All but the one that needs a reward from outside, which takes the place of scorers of a run's own
# (tests/flows/test_external_rewards.py).
OWN = [name for name, arm in ARMS.items() if arm.scorer != "reward"]
# Those that are PPO from a start that is their reference as well.
OF_PPO = [name for name in OWN if ARMS[name].trained_by == "ppo" and name != GOES_ON]


@pytest.fixture(scope="module")
def plan() -> Plan:
    changes = [f"arms={OWN}".replace("'", '"'), "ensemble.size=6"]
    changes += ['ppo.scoring.safety_categories=["harmful","rude"]']
    changes += ["advantage_model.use_importance_weights=true"]
    changes += ["ppo.scoring.judge.gold_accuracy=0.8"]
    return make_plan(
        apply_changes(recipe_named("smoke"), parse_overrides(changes)),
        "policy",
        Machine(1, 10**15, 2, False),
    )


@pytest.fixture(scope="module")
def rows(plan: Plan) -> dict[str, PlanRow]:
    return {role: row for row in plan.rows for role in row.roles}


def _inputs(rows: dict[str, PlanRow], role: str) -> dict[str, PlannedStage | list[PlannedStage]]:
    return rows[role].stage.inputs


@pytest.mark.parametrize(("arms", "cores"), [('["full"]', 2), ('["vanilla","full"]', 1)])
def test_sft_answers_on_all_cores_where_one_arm_would_wait_for_them(arms: str, cores: int) -> None:
    class Recorded(PlannedRun):
        def submit(self, spec: StageSpec, config: Any, **keywords: Any) -> PlannedStage:
            labelled[str(keywords.get("label"))] = keywords.get("resources")
            return super().submit(spec, config, **keywords)

    labelled: dict[str, Any] = {}
    experiment.rlhf(
        Recorded(apply_changes(recipe_named("smoke"), parse_overrides([f"arms={arms}"])))
    )
    assert cores_of(labelled["evaluate sft"].slot, 2) == cores


def test_every_arm_starts_where_its_reference_is(rows: dict[str, PlanRow]) -> None:
    for arm in OF_PPO:
        start = rows["base" if arm == "ppo_max_no_sft" else "sft"].stage
        inputs = _inputs(rows, f"policy_{arm}")
        assert inputs["policy"] is inputs["reference"] is start
    assert rows["base"].stage.config.fine_tune is False
    assert rows["sft"].stage.config.fine_tune is True
    assert rows["base"].work.optimiser_steps == 0
    assert ("rehearsal" in _inputs(rows, "policy_full")) is True
    assert not any("rehearsal" in _inputs(rows, f"policy_{a}") for a in OF_PPO if a != "full")


def test_what_ppo_is_compared_with_starts_from_sft(rows: dict[str, PlanRow]) -> None:
    sft = rows["sft"].stage
    first = ("dpo", "cpl", "rejection_sampling_answers_1", "rest_answers_1", "hir_answers_1")
    for role in (f"policy_{each}" if each in ARMS else each for each in first):
        assert _inputs(rows, role)["policy"] is sft
    for arm in ("dpo", "cpl"):
        assert _inputs(rows, f"policy_{arm}")["pairs"] is rows["relabelled"].stage
    assert _inputs(rows, "policy_dpo")["reference"] is sft
    assert _inputs(rows, "eval_best_of_n")["policy"] is sft
    assert rows["eval_best_of_n"].stage.config.num_candidates > 1
    onwards = _inputs(rows, "policy_rejection_sampling_ppo")
    assert onwards["policy"] is rows["policy_rejection_sampling"].stage
    assert onwards["reference"] is sft


def test_every_arm_has_its_scorers_and_is_measured_by_the_first(rows: dict[str, PlanRow]) -> None:
    scorers = {
        "vanilla": "member_0",
        "ppo_max_rm": "reward_model",
        "ppo_max_safety": "helpfulness_model",
    }
    for arm in OF_PPO:
        inputs, measured = _inputs(rows, f"policy_{arm}"), _inputs(rows, f"eval_{arm}")
        if arm == "ppo_max_ensemble":
            # Members 1 to 3 judge.
            ensemble = [rows[f"member_{index}"].stage for index in (0, 4, 5)]
            assert inputs["scorer"] == ensemble
            assert measured["scorer"] is ensemble[0]
            judges = measured["judge"]
            assert isinstance(judges, list)
            assert not [judge for judge in judges if judge in ensemble]
        elif arm == "rlaif_direct":
            assert "scorer" not in inputs
            assert measured["scorer"] is rows["advantage_model"].stage
            config = rows["policy_rlaif_direct"].stage.config
            assert (config.critic_init, config.scoring.judge.gold_accuracy) == ("policy", 0.8)
        else:
            expected = rows[scorers.get(arm, "advantage_model")].stage
            assert inputs["scorer"] is measured["scorer"] is expected
        assert ("safety_scorer" in inputs) == (arm == "ppo_max_safety")
    assert _inputs(rows, "policy_ppo_max_safety")["safety_scorer"] is rows["safety_model"].stage


def test_two_reward_models_are_trained_on_their_own_categories(rows: dict[str, PlanRow]) -> None:
    helpful, safe = (rows[role].stage.config for role in ("helpfulness_model", "safety_model"))
    assert safe.categories == helpful.without_categories == ("harmful", "rude")
    assert safe.without_categories == helpful.categories == ()
    assert helpful.train == safe.train == rows["reward_model"].stage.config.train
    assert _inputs(rows, "safety_model").keys() == _inputs(rows, "reward_model").keys()


def test_the_plan_counts_every_scorer_and_every_policy_that_weighs(
    plan: Plan, rows: dict[str, PlanRow]
) -> None:
    one, shape = rows["policy_ppo_max_rm"].work, plan.shape
    weights = 4 * shape.scorer_parameters(1)
    row = min(plan.amounts.prompt_tokens, shape.context - 24) + 25  # an answer and its end token
    for arm, more in (("ppo_max_ensemble", 2), ("ppo_max_safety", 1)):
        several = rows[f"policy_{arm}"].work
        assert several.forward_tokens - one.forward_tokens == more * one.examples * row
        assert several.peak[1].frozen - one.peak[1].frozen == more * weights
        assert several.trained_tokens == one.trained_tokens
    train, pair = plan.amounts.train_pairs, min(plan.amounts.pair_tokens, 2 * shape.context)
    weighed = rows["advantage_model"].work
    assert weighed.forward_tokens == (2 * train + plan.amounts.held_out_pairs) * pair
    assert weighed.phases["likelihoods"].frozen == 4 * (
        shape.policy_parameters + shape.scorer_parameters(2)
    )


def test_what_watches_a_policy_neither_judges_nor_is_optimised() -> None:
    changes = [f"arms={OWN}".replace("'", '"'), "ensemble.size=6", "rounds.max_rounds=2"]
    changes += ['ppo.scoring.safety_categories=["harmful","rude"]', "ppo.guard.num_held_out=2"]
    changes += ["ppo.scoring.judge.gold_accuracy=0.8"]
    config = apply_changes(recipe_named("smoke"), parse_overrides(changes))
    plan = make_plan(config, "rlhf", Machine(1, 10**15, 2, False))
    rows = {role: row for row in plan.rows for role in row.roles}
    for arm in (*OF_PPO, "round_2"):
        # Members 1 to 3 judge; vanilla is optimised against the first, the ensemble against all.
        watching = {"vanilla": (4, 5), "ppo_max_ensemble": ()}.get(arm, (0, 4))
        members = [rows[f"member_{index}"].stage for index in watching]
        assert _inputs(rows, f"policy_{arm}").get("held_out_scorer", []) == members
        assert rows[f"policy_{arm}"].inputs.num_heldout_models == len(members)


def test_no_stage_is_trained_that_no_arm_needs() -> None:
    roles = {
        role
        for row in make_plan(recipe_named("smoke"), "policy", Machine(1, 10**15, 2, False)).rows
        for role in row.roles
    }
    assert not roles & {"base", "helpfulness_model", "safety_model"}
