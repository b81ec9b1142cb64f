"""The frontier's arms: one strength differs, all else is shared, and samples are as many."""

from __future__ import annotations

import pytest

from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.plan import PlannedRun, PlannedStage
from trimtab.flows.studies.sweeps import frontier, recipe_value
from trimtab.models.studies.variants import STRENGTHS


@pytest.fixture(scope="module")
def run() -> PlannedRun:
    run = PlannedRun(recipe_named("default"))
    frontier(run)
    return run


def _stages(run: PlannedRun, prefix: str) -> dict[float, PlannedStage]:
    """The stages whose roles begin so, by the strength behind it."""
    return {
        float(role.removeprefix(prefix).removesuffix("_recipe")): stage
        for role, stage in run.roles.items()
        if role.startswith(prefix)
    }


def test_every_arm_is_read_at_the_recipes_strength_and_others(run: PlannedRun) -> None:
    for arm, strength in STRENGTHS.items():
        recipe = recipe_value(run.config, strength)
        assert list(_stages(run, f"eval_{arm}_")) == sorted({*strength.values, recipe})
        assert f"eval_{arm}_{recipe:g}_recipe" in run.roles


@pytest.mark.parametrize(
    ("arm", "field"),
    [
        *((arm, "kl_coef") for arm in ("ppo_max_am", "full", "rloo", "grpo", "reinforce_pp")),
        ("dpo", "beta"),
        ("cpl", "alpha"),
    ],
)
def test_one_field_differs(run: PlannedRun, arm: str, field: str) -> None:
    policies = _stages(run, f"policy_{arm}_")
    first = next(iter(policies.values()))
    for value, stage in policies.items():
        assert stage.config == first.config.model_copy(update={field: value})
        assert stage.inputs == first.inputs
        assert stage.inputs["policy"] is run["sft"]


def test_kl_is_measured_alike(run: PlannedRun) -> None:
    for arm in STRENGTHS:
        for value, stage in _stages(run, f"eval_{arm}_").items():
            first, same = run["eval_sft"], ("reference", "data", "scorer", "judge")
            assert all(stage.inputs[name] == first.inputs[name] for name in same)
            candidates = int(value) if arm == "best_of_n" else 1
            assert stage.config == first.config.model_copy(update={"num_candidates": candidates})


def test_more_candidates_are_of_fewer_prompts(run: PlannedRun) -> None:
    drawn, learned = "rejection_sampling_answers_1_", "policy_rejection_sampling_"
    sampled = {
        k: s.config.num_prompts * s.config.num_responses for k, s in _stages(run, drawn).items()
    }
    assert set(sampled) == {2, 4, 8, 16} and len(set(sampled.values())) == 1
    # The recipe has 5 epochs of the best of 8: 2.5 of twice the prompts are 2.
    epochs = {k: stage.config.train.num_epochs for k, stage in _stages(run, learned).items()}
    assert epochs == {2: 1, 4: 2, 8: 5, 16: 10}


def test_thresholds_move_together_on_the_same_samples(run: PlannedRun) -> None:
    policies = _stages(run, "policy_rest_")
    assert {last: stage.config.thresholds for last, stage in policies.items()} == {
        0.5: (0.1, 0.3, 0.5),
        0.7: (0.3, 0.5, 0.7),
        0.9: (0.5, 0.7, 0.9),  # the recipe's
        0.95: (0.55, 0.75, 0.95),
    }
    first = policies[0.5]
    assert all(stage.inputs == first.inputs for stage in policies.values())
