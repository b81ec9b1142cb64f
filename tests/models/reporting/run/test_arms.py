"""Arms without PPO in the report: their budget by hand, the frontier, and what they do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.models.reporting.run.conftest import Write, answers, verdict_of
from trimtab.models.config.policy import DPOLoss
from trimtab.models.config.reporting import LineageEntry, ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.names import DPO_NAMES
from trimtab.models.reporting.run.charts import frontier_chart
from trimtab.models.reporting.run.policies import Budget, budget_of
from trimtab.models.reporting.run.scorecard import assemble
from trimtab.models.reporting.run_tables import policies_table

Inputs = dict[str, Path]


def _entry(role: str, stage: str, **parents: str) -> LineageEntry:
    """An artifact whose key is its role; each took 1.5 s."""
    found = {name: {"stage": "", "key": key, "digest": ""} for name, key in parents.items()}
    return LineageEntry(role=role, stage=stage, key=role, digest="", seconds=1.5, parents=found)


LINEAGE = (
    _entry("sft", "sft", data="data"),
    _entry("advantage_model", "advantage_model", policy="sft"),
    _entry("hir_answers_1", "sample_responses", policy="sft", scorer="advantage_model"),
    _entry("hir_policy_1", "hir", policy="sft", responses_0="hir_answers_1"),
    _entry("hir_answers_2", "sample_responses", policy="hir_policy_1", scorer="advantage_model"),
    _entry(
        *("policy_hir", "hir"),
        policy="hir_policy_1",
        responses_0="hir_answers_1",
        responses_1="hir_answers_2",
    ),
    _entry("policy_dpo", "dpo", policy="sft", reference="sft"),
    _entry("rehearsal", "rehearsal", policy="sft", scorer="advantage_model"),
    _entry("policy_rehearsed", "ppo_max", policy="sft", rehearsal="rehearsal"),
    _entry("rated_first", "ppo_max", policy="sft"),
    _entry("policy_rated", "ppo_max", policy="rated_first"),
)
COUNTS = {
    "sft": {"num_updates": 5000},
    "advantage_model": {"num_updates": 900, "num_trained_pairs": 6},
    "hir_answers_1": {"num_sampled": 40},
    "hir_policy_1": {"num_updates": 5, "num_trained_tokens": 700},
    "hir_answers_2": {"num_sampled": 60},
    "policy_hir": {"num_updates": 13, "num_trained_tokens": 1600},
    "policy_dpo": {"num_updates": 7},
    "rehearsal": {"num_sampled": 30},
    "policy_rehearsed": {"num_sampled": 20, "num_updates": 4},
    "rated_first": {"num_sampled": 20, "num_updates": 4, "judge_tokens": 1000, "judge_cost": 0.25},
    "policy_rated": {"num_sampled": 10, "num_updates": 2, "judge_tokens": 500, "judge_cost": 0.125},
}


@pytest.fixture
def inputs(full_inputs: Inputs, write: Write) -> Inputs:
    """The whole run, with HIR, DPO and the best of n beside its arms."""
    names = [f"{place}_{m}" for place in ("main", "forget") for m in ("gold", "judge_score")]
    verdicts = {name: verdict_of(0.0, -0.25, 0.25) for name in names}
    roles: dict[str, Any] = {role: {"summary.json": found} for role, found in COUNTS.items()}
    for arm, shift in (("hir", 0.3), ("dpo", 0.1), ("best_of_n", 0.15)):
        roles[f"eval_{arm}"] = {"responses.jsonl": answers(shift)}
        roles[f"judge_{arm}"] = {"judgement.json": verdicts}
    best = {"k": [1, 2], "kl_bound": [0.0, 0.19], "score": [0, 1], "gold": [0.4, 0.5]}
    roles["eval_best_of_n"]["best_of_k.json"] = {"main": best}
    return full_inputs | {role: write(role, files) for role, files in roles.items()}


CONFIG = ReportConfig(
    arms=("full", "hir", "dpo", "best_of_n"), rounds=(1, 2), has_gold=True, lineage=LINEAGE
)


def test_budgets_by_hand(inputs: Inputs) -> None:
    artifacts = Artifacts(inputs)
    # Both iterations, their answers once each; what SFT and the scorer took is not its own.
    assert budget_of(artifacts, LINEAGE, "policy_hir", "eval_hir") == Budget(100, 18, 2300, 4 * 1.5)
    assert budget_of(artifacts, LINEAGE, "policy_dpo", "eval_dpo") == Budget(0, 7, 0, 1.5)
    assert budget_of(artifacts, LINEAGE, "policy_rehearsed", "") == Budget(50, 4, 0, 3.0)
    # Rated by a judge from where a rated policy was: 1,000 and 500 tokens, .25 and .125.
    assert budget_of(artifacts, LINEAGE, "policy_rated", "") == Budget(30, 6, 0, 3.0, 1500, 0.375)
    assert budget_of(artifacts, LINEAGE, "policy_best_of_n", "eval_best_of_n") == Budget(
        samples_per_answer=2
    )
    assert budget_of(artifacts, LINEAGE, "sft", "eval_sft") is None
    assert budget_of(artifacts, (), "policy_hir", "eval_hir") is None


@pytest.mark.slow
def test_an_arm_without_ppo_has_all_but_ppo_s_course(inputs: Inputs) -> None:
    card, curves = assemble(Artifacts(inputs), CONFIG)
    by_name = {policy.name: policy for policy in card.policies}
    assert list(by_name) == ["sft", "full", "hir", "dpo", "best_of_n", "round_2"]
    assert set(curves) == {"full", "round_2"}
    for name in ("hir", "dpo", "best_of_n"):
        policy = by_name[name]
        assert set(policy.sets) == set(policy.against_sft) == {"main", "forget"}
        assert policy.drift is None
        assert policy.collapsed is None
    assert by_name["hir"].budget == Budget(100, 18, 2300, 6.0)
    assert by_name["best_of_n"].budget == Budget(samples_per_answer=2)
    assert by_name["dpo"].label == "DPO"


@pytest.mark.slow
def test_dpo_is_called_by_its_loss(inputs: Inputs) -> None:
    ipo = CONFIG.model_copy(update={"config": {"dpo": {"loss": "ipo"}}})
    card, _ = assemble(Artifacts(inputs), ipo)
    assert "IPO" in [policy.label for policy in card.policies]
    assert "DPO" not in [policy.label for policy in card.policies]
    rows = policies_table([card.to_json()])[1]
    assert [row[0] for row in rows] == [policy.label for policy in card.policies]
    assert set(get_args(DPOLoss)) == set(DPO_NAMES)


@pytest.mark.slow
def test_the_frontier_names_the_highest_and_needs_two(inputs: Inputs) -> None:
    artifacts = Artifacts(inputs)
    card, _ = assemble(artifacts, CONFIG)
    chart = frontier_chart(artifacts, card)
    assert chart is not None
    # Gold 0.5 and 0.3, both 0.3 higher; KL is the shift.
    expected = "The main test prompts, by the gold scorer: highest is HIR with 0.70, 0.30 nats"
    assert chart.title.startswith(expected)
    alone = {role: path for role, path in inputs.items() if role in ("preferences", "eval_sft")}
    card, _ = assemble(Artifacts(alone), ReportConfig())
    assert frontier_chart(Artifacts(alone), card) is None
