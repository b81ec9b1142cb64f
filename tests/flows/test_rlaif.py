"""AI feedback in the plan of a run: who reads the judge's labels, and who is asked."""

from __future__ import annotations

import pytest

from trimtab.flows.config.config import ConfigError, load_config
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.plan import PlannedRun, PlanRow, make_plan
from trimtab.flows.study import submit_arms
from trimtab.models.estimates.machine import Machine
from trimtab.models.studies.registry import exhibits_of
from trimtab.models.studies.variants import JUDGES_RIGHT

KINDS = ("distilled", "direct")
GOLD = "judge_preferences.judge.gold_accuracy=0.8"
DISTILLED = (GOLD, "ai_labels.soft=true")


def _rows(*overrides: str, flow: str = "policy") -> dict[str, PlanRow]:
    config = apply_changes(recipe_named("smoke"), parse_overrides(overrides))
    plan = make_plan(config, flow, Machine(1, 10**15, 2, False))
    return {role: row for row in plan.rows for role in row.roles}


def test_everything_downstream_reads_the_judges_labels() -> None:
    rows = _rows(*DISTILLED)
    given, labelled = rows["pairs_as_given"].stage, rows["preferences"].stage
    assert (given.stage, labelled.stage) == ("comparisons", "ai_labels")
    assert labelled.inputs == {"preferences": given, "judgements": rows["judged"].stage}
    assert rows["judged"].stage.inputs == {"preferences": given}
    readers = {
        role for role, row in rows.items() if row.stage.inputs.get("preferences") is labelled
    }
    assert readers == {
        *("member_0", "member_1", "relabelled", "reward_model", "advantage_model", "audit")
    }
    assert rows["preferences"].work.examples == rows["relabelled"].work.examples
    # Without it nothing is otherwise than it was, but for the judge.
    assert "pairs_as_given" not in _rows(GOLD)


def test_a_label_audit_is_of_the_judges_labels() -> None:
    rows = _rows(*DISTILLED, flow="label-audit")
    assert rows["audit"].stage.inputs["preferences"] is rows["preferences"].stage
    assert rows["preferences"].stage.stage == "ai_labels"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ai_labels.soft=true"], "where ai_labels is given, found none"),
        (
            [*DISTILLED, 'judge_preferences.splits=["test"]'],
            "judge of the split train where ai_labels is given, found splits ('test',)",
        ),
        ([*DISTILLED, "judge_preferences.categories=[]"], "at least 1 item"),
        (['arms=["rlaif_direct"]'], "ppo.scoring.judge must name a judge for the arm rlaif_direct"),
    ],
)
def test_what_cannot_be_run_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _rows(*overrides)
    assert message in str(error.value)


def test_the_studys_judges_differ_and_everything_else_is_shared() -> None:
    run = PlannedRun(recipe_named("rlaif"))
    submit_arms(*exhibits_of("rlaif", "alignment"), run)
    given = run["preferences"]
    assert given.stage == "comparisons"
    for accuracy in JUDGES_RIGHT:
        labelled = run[f"labelled_{accuracy:g}"]
        assert labelled.inputs["preferences"] is given
        assert run[f"judged_{accuracy:g}"].config.judge.gold_accuracy == accuracy
        assert run[f"scorer_{accuracy:g}"].inputs["preferences"] is labelled
        distilled, direct = (run[f"policy_{kind}_{accuracy:g}"] for kind in KINDS)
        assert distilled.inputs["scorer"] is run[f"scorer_{accuracy:g}"]
        assert "scorer" not in direct.inputs
        assert direct.config.scoring.judge.gold_accuracy == accuracy
        judges = {id(run[f"eval_{kind}_{accuracy:g}"].inputs["judge"][0]) for kind in KINDS}
        assert judges == {id(run["member_1"])}
    assert run["member_1"].inputs["preferences"] is given


def test_the_recipe_is_whole() -> None:
    config = recipe_named("rlaif")
    assert load_config(config.model_dump()) == config
    assert config.judge_preferences is not None and config.ai_labels is not None
    assert config.arms == ("full", "rlaif_direct")
