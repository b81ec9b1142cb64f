"""The dry run: the flow's own stages, what is too large, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.config.config import require_flow
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import MACHINES, recipe_named
from trimtab.flows.runs.plan import Plan, make_plan
from trimtab.flows.runs.plan_text import plan_text, size, too_large
from trimtab.models.estimates.machine import GIB, PYTHON_PROCESS, Machine
from trimtab.models.estimates.shapes import KNOWN_SHAPES

ROOT = Path(__file__).parents[2]
LARGE = Machine(1, 10**15, 2, False)


GPUS_OF_24 = Machine.with_gpus(8, 24)
# `hh-7b` with the whole of every model on one GPU.
ALONE = [
    f"{trainer}{setting}"
    for trainer in (
        *("sft.train", "ensemble.member.train", "reward_model.train", "advantage_model.train"),
        *("ppo", "rounds.meta_rm.train"),
    )
    for setting in (".num_ranks=1", ".zero=null")
] + ["rehearsal.num_ranks=1", "evaluate.num_ranks=1"]


def test_the_largest_recipe_fits_on_its_machine_with_room() -> None:
    """Every stage at most 70 of 80 GiB, and those that train one model at most 50."""
    plan = _plan("hh-7b", machine=MACHINES["hh-7b"])
    text = " ".join(plan_text(plan).split())
    assert too_large(plan) is None
    assert "DOES NOT FIT" not in text
    assert "CLOSE" not in text
    for row in plan.rows:
        # The CUDA context and NCCL's buffers, 1.5 GiB each, beside what is counted.
        assert row.work.peak[1].total / GIB + 3 <= 70, row.name
        if "training" in row.work.phases:
            assert row.work.phases["training"].total / GIB < 50, row.name


def _plan(name: str, *overrides: str, flow: str = "rlhf", machine: Machine = LARGE) -> Plan:
    return make_plan(apply_changes(recipe_named(name), parse_overrides(overrides)), flow, machine)


def _steps(plan: Plan) -> dict[str, int]:
    return {role: row.stage.step for row in plan.rows for role in row.roles}


def test_smoke_has_every_stage_once_after_what_it_needs() -> None:
    """The order by hand; tests/flows/test_smoke.py compares the roles with a real run's."""
    steps = _steps(_plan("smoke"))
    assert list(steps)[:3] == ["data", "sft", "preferences"]
    chain = [
        *("data", "sft", "preferences", "member_1", "strength", "relabelled", "advantage_model"),
        *("rehearsal", "policy_full", "meta_rm_2", "policy_round_2", "eval_round_2"),
        "judge_round_2",
    ]
    assert [steps[role] for role in chain] == list(range(1, 14))
    # Every round is promoted in smoke, so that the next waits for no judgement.
    assert steps["eval_full"] == steps["meta_rm_2"]
    waits = _steps(_plan("smoke", "rounds.promote=by_judgement"))
    assert waits["meta_rm_2"] == waits["judge_full"] + 1
    # Vanilla PPO needs the first member only, but must not hold up what the full method needs.
    assert steps["policy_vanilla"] == steps["policy_full"]
    assert steps["reward_model"] == steps["advantage_model"]
    assert steps["audit"] == steps["advantage_model"]
    assert len(steps) == 23


def test_meta_rm_may_be_in_every_round_and_start_anew_in_each() -> None:
    def made_of(plan: Plan, role: str) -> dict[str, Any]:
        (row,) = (row for row in plan.rows if role in row.roles)
        return {name: each.stage for name, each in row.stage.inputs.items() if name == "scorer"}

    settings = ["rounds.meta_rm_from=1", "rounds.meta_rm_start=advantage_model"]
    plain, paper = _plan("smoke"), _plan("smoke", *settings)
    assert "meta_rm_1" not in _steps(plain)
    steps = _steps(paper)
    assert steps["advantage_model"] < steps["meta_rm_1"] < steps["policy_full"]
    assert made_of(plain, "policy_full") == {"scorer": "advantage_model"}
    assert made_of(paper, "policy_full") == {"scorer": "meta_rm"}
    assert made_of(paper, "meta_rm_1") == {"scorer": "advantage_model"}
    assert made_of(_plan("smoke", settings[0]), "meta_rm_2") == {"scorer": "meta_rm"}
    assert made_of(paper, "meta_rm_2") == {"scorer": "advantage_model"}
    assert "meta_rm_1" not in _steps(
        _plan("smoke", *settings, 'arms=["ppo_max_am"]', flow="policy")
    )


def test_the_flow_reward_trains_the_scorers_that_are_named() -> None:
    """MetaRM from round 1 on starts from an Advantage Model."""
    settings = ("rounds.meta_rm_from=1", "scorers=reward_model")
    both = set(_steps(_plan("smoke", settings[0], flow="reward")))
    one = set(_steps(_plan("smoke", *settings, flow="reward")))
    assert both - one == {"advantage_model", "meta_rm_1"} and "reward_model" in one
    named = set(_steps(_plan("reward", "preferences.sources=s3://pairs", flow="reward")))
    assert {"base", "advantage_model"}.isdisjoint(named)
    assert {"sft", "trunk", "embedding_linear", "self_test", "audit", "reward_model"} <= named


@pytest.mark.parametrize("flow", ["rlhf", "policy", "compare", None])
def test_flows_with_policies_need_both_scorers(flow: str | None) -> None:
    config = apply_changes(recipe_named("smoke"), {"scorers": ["advantage_model"]})
    require_flow(config, "reward")
    with pytest.raises(ConfigError, match="scorers: found advantage_model; allowed: reward_model"):
        require_flow(config, flow)


def test_a_judge_of_the_pairs_is_there_where_it_is_asked_for() -> None:
    gold = "judge_preferences.judge.gold_accuracy=0.8"
    for flow in ("rlhf", "label-audit"):
        asked, others = _steps(_plan("smoke", gold, flow=flow)), _steps(_plan("smoke", flow=flow))
        assert asked.pop("judged") == others["preferences"] + 1
        assert asked == others


def test_the_plan_follows_the_configuration() -> None:
    roles = set(
        _steps(
            _plan(
                "default",
                'ensemble.votes=["in_sample","cross_fitted"]',
                "ensemble.size=3",
                'arms=["full"]',
                "rounds.max_rounds=4",
            )
        )
    )
    members = {f"{vote}member_{index}" for vote in ("", "cross_fitted_") for index in range(3)}
    assert members <= roles
    assert "strength_cross_fitted" in roles
    steps = _steps(_plan("default"))
    assert steps["cross_fitted_member_0"] > max(steps["reward_model"], steps["rehearsal"])
    assert {"meta_rm_2", "meta_rm_3", "meta_rm_4", "judge_round_4_sft"} <= roles
    assert not {"policy_vanilla", "meta_rm_5", "member_3"} & roles
    assert not any(role.startswith("meta_rm") for role in steps)
    label_audit = _steps(_plan("default", flow="label-audit"))
    assert label_audit["audit"] == label_audit["relabelled"] + 1
    reward = _steps(_plan("default", flow="reward"))
    assert set(reward) - set(label_audit) == {"reward_model", "advantage_model"}
    assert not any(role.startswith(("policy", "eval", "rehearsal")) for role in reward)


def test_frozen_layers_run_once_for_all_that_leave_them_frozen() -> None:
    plan = _plan("hh-smollm2")
    readers = {row.name for row in plan.rows if "trunk" in row.stage.inputs}
    scorers = {"member_0", "member_1", "member_2", "reward_model", "advantage_model", "meta_rm_2"}
    scorers.add("vectors_states")
    assert readers == scorers
    # A fully trained Advantage Model, and MetaRM after it, have lower layers of their own.
    plan = _plan("hh-smollm2", "advantage_model.train.trainable_layers=null")
    readers = {row.name for row in plan.rows if "trunk" in row.stage.inputs}
    assert readers == scorers - {"advantage_model", "meta_rm_2"}
    # What is kept lies below all that anyone trains.
    plan = _plan("hh-smollm2", "reward_model.train.trainable_layers=9")
    kept = next(row.stage for row in plan.rows if row.stage.stage == "trunk_cache")
    assert (kept.config.trainable_layers, kept.config.precision) == (9, "auto")
    readers = ("ensemble.member", "reward_model", "advantage_model", "rounds.meta_rm")
    plan = _plan("hh-smollm2", *(f"{reader}.train.precision=bfloat16" for reader in readers))
    kept = next(row.stage for row in plan.rows if row.stage.stage == "trunk_cache")
    assert kept.config.precision == "bfloat16"
    plan = _plan("hh-smollm2", "reward_model.train.precision=bfloat16")  # the others: auto
    kept = next(row.stage for row in plan.rows if row.stage.stage == "trunk_cache")
    assert kept.config.precision == "float32"
    for others in (_plan("hh-smollm2", "cache_trunk=false"), _plan("default")):
        assert not any(row.stage.stage == "trunk_cache" for row in others.rows)


OTHER = [
    'scorer_base={"model": {"hidden_size": 48, "num_layers": 3, "num_heads": 2, "max_length": 64}}',
    "ppo.critic_init=policy",
]


def test_scorers_of_another_base_are_planned_as_such() -> None:
    """Their start is one more SFT stage, their weights are of its size wherever they are held."""
    plain, plan = _plan("smoke"), _plan("smoke", *OTHER)
    assert set(_steps(plan)) == {*_steps(plain), "scorer_base"}
    rows = {role: row for row in plan.rows for role in row.roles}
    for role in ("member_0", "reward_model", "advantage_model"):
        assert rows[role].stage.inputs["policy"] is rows["scorer_base"].stage
        assert rows[role].inputs.shape.hidden_size == 48
    small, large = rows["sft"].inputs.shape, rows["scorer_base"].inputs.shape
    for role in ("policy_full", "rehearsal", "eval_full", "meta_rm_2", "policy_round_2"):
        assert (rows[role].inputs.shape, rows[role].inputs.scorer_shape) == (small, large)
    assert sum(rows["policy_full"].inputs.scorer_bytes) == 4 * large.scorer_parameters(2)
    assert rows["meta_rm_2"].work.parameters == large.scorer_parameters(2)
    pair = small.policy_parameters + small.scorer_parameters(1)
    assert rows["policy_full"].work.parameters == pair  # policy and critic
    usual = {role: row for row in plain.rows for role in row.roles}
    for role in ("rehearsal", "eval_full", "policy_full", "meta_rm_2"):
        assert rows[role].operations > usual[role].operations
        assert rows[role].work.needed > usual[role].work.needed


def test_a_critic_may_start_from_scorers_of_another_size() -> None:
    rows = {role: row for row in _plan("smoke", OTHER[0]).rows for role in row.roles}
    small, large = rows["sft"].inputs.shape, rows["scorer_base"].inputs.shape
    both = small.policy_parameters + large.scorer_parameters(2)
    assert rows["policy_full"].work.parameters == both


def test_frozen_layers_of_the_scorers_base_are_kept_for_scorers_alone() -> None:
    layers = ("ensemble.member", "reward_model", "advantage_model", "rounds.meta_rm", "dpo")
    upper = [f"{part}.train.trainable_layers=1" for part in layers]
    plan = _plan("smoke", *OTHER, *upper, 'arms=["full","dpo"]')
    rows = {role: row for row in plan.rows for role in row.roles}
    of_scorers, of_policy = rows["scorer_trunk"].stage, rows["trunk"].stage
    assert of_scorers.inputs["policy"] is rows["scorer_base"].stage
    assert of_policy.inputs["policy"] is rows["sft"].stage
    for role in ("member_0", "reward_model", "advantage_model", "meta_rm_2"):
        assert rows[role].stage.inputs["trunk"] is of_scorers
    assert rows["policy_dpo"].stage.inputs["trunk"] is of_policy


def test_work_reaches_the_rows_with_the_stage_s_own_settings() -> None:
    plan = _plan("default", 'ensemble.votes=["in_sample","cross_fitted"]', "rounds.max_rounds=2")
    work = {role: row.work for row in plan.rows for role in row.roles}
    train = plan.amounts.train_pairs
    assert work["member_0"].examples == train
    assert work["cross_fitted_member_1"].examples == train - train // 2
    # Rehearsal data and the Advantage Model's second head belong to `full`; vanilla has neither.
    assert work["policy_full"].trained_tokens > work["policy_vanilla"].trained_tokens
    hidden = plan.shape.hidden_size
    assert work["policy_full"].parameters - work["policy_vanilla"].parameters == hidden
    assert work["meta_rm_2"].parameters == plan.shape.scorer_parameters(2)


def test_a_slice_by_strength_trains_on_fewer_pairs_and_scores_as_many() -> None:
    whole, tenth = (
        {role: row.work for row in _plan("smoke", *changes).rows for role in row.roles}
        for changes in ((), ("relabel.keep_from=0.9",))
    )
    for role in ("reward_model", "advantage_model", "meta_rm_2"):
        assert tenth[role].examples == round(0.1 * whole[role].examples)
    few = {r: row.work for row in _plan("smoke", "relabel.max_pairs=8").rows for r in row.roles}
    assert few["reward_model"].examples == 8
    assert tenth["reward_model"].forward_tokens == whole["reward_model"].forward_tokens
    assert tenth["member_0"] == whole["member_0"]


def test_frozen_layers_run_once_for_policies_that_learn_from_pairs_too() -> None:
    plan = _plan("hh-smollm2", 'arms=["dpo","cpl"]', "dpo.train.trainable_layers=9")
    readers = {row.name for row in plan.rows if "trunk" in row.stage.inputs}
    assert {"policy_dpo", "policy_cpl"} <= readers
    kept = next(row.stage for row in plan.rows if row.stage.stage == "trunk_cache")
    assert kept.config.trainable_layers == 9


def test_real_data_has_one_stage_in_two_roles(tmp_path: Path) -> None:
    row = {"prompt": "a question", "chosen": "yes", "rejected": "no"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(row)}\n" * 100)
    plan = _plan("hh-7b", f'preferences.sources=["{tmp_path}"]', 'preferences.categories=["x"]')
    assert plan.rows[0].roles == ("data", "preferences")
    assert plan.amounts.pairs == 100


def test_a_small_computer_is_warned_of_what_runs_at_once() -> None:
    one = max(row.work.peak[1].total for row in _plan("smoke").rows) + PYTHON_PROCESS
    for memory, verdict in ((one - 1, "DOES NOT FIT"), (one, "CLOSE"), (2 * one, "memory")):
        text = " ".join(plan_text(_plan("smoke", machine=Machine(1, memory, 1, False))).split())
        assert f"- {verdict}: preferences:" in text or verdict == "memory"
    assert (
        f"- memory: at most {size(one)} (preferences) of this computer's {size(2 * one)}, "
        f"{size(one)} stay free"
    ) in text
    # Two members run at once, and the largest two stages of a step share the memory.
    member = next(row for row in _plan("smoke").rows if row.name == "member_0").work.peak[1]
    for spare, is_warned in ((0, False), (-1, True)):
        machine = Machine(1, 2 * (member.total + PYTHON_PROCESS) + spare, 2, False)
        text = plan_text(_plan("smoke", machine=machine))
        assert ("DOES NOT FIT: member_0…1:" in text) == is_warned


def test_gpus_are_given_one_trainer_each_and_what_is_too_large_is_named() -> None:
    text = plan_text(_plan("hh-7b", *ALONE, machine=Machine.with_gpus(4, 80)))
    assert "step 3: member_0…9 at once, on 4 of 4 GPUs in 3 waves" in text
    plan = _plan("hh-7b", *ALONE, machine=MACHINES["hh-7b"])
    text = " ".join(plan_text(plan).split())
    row = next(row for row in plan.rows if row.name == "sft")
    sft, work = row.work.peak[1], row.sharded(1, 8)
    assert sft.optimiser + sft.gradients + sft.weights == 16 * 7_241_732_096
    needed, shared = sft.total / GIB + 1.5, work.peak[1].total / GIB
    assert f"one GPU: sft. {needed:.1f} GiB in the phase `training`, a GPU has 80.0 GiB" in text
    assert f"ZeRO stage 1 over 8 GPUs ({shared:.1f} GiB each): train.num_ranks=8" in text
    assert "policy_full, policy_round_2…4" in text
    assert "GiB each): num_ranks=8 zero.stage=3" in text
    small = _plan("hh-7b", *ALONE, "ppo.gradient_checkpointing=false", machine=GPUS_OF_24)
    text = " ".join(plan_text(small).split())
    assert "No ZeRO stage is enough: under stage 3 over 8 GPUs" in text
    assert "It also needs gradient_checkpointing=true or smaller micro batches" in text
    # Where nothing is trained, there are no parts.
    assert "Nothing is trained in it: it needs GPUs with more memory, or a smaller model" in text
    # Moments of 8 bits are not parted: what is said to fit has those of 32.
    eight = _plan("hh-7b", *ALONE, "ppo.optimiser=adamw_8bit", machine=plan.machine)
    assert "num_ranks=8 zero.stage=3 optimiser=adamw" in " ".join(plan_text(eight).split())
    # A model of 135 million parameters fits on one such GPU.
    small = plan_text(_plan("hh-7b", "sft.model.base=smollm2-135m-instruct", machine=plan.machine))
    assert "memory: at most" in small


def test_more_ranks_than_gpus_are_named() -> None:
    text = " ".join(plan_text(_plan("hh-7b", machine=Machine.with_gpus(4, 80))).split())
    assert "TOO FEW GPUS: sft. Its 8 ranks (num_ranks) take one each, there are 4" in text
    assert "step 2: sft, on 4 of 4 GPUs" in text


def test_ranks_in_parts_take_the_gpus_of_several_trainers() -> None:
    zero = ("ensemble.member.train.num_ranks=4", "ensemble.member.train.zero.stage=2")
    text = " ".join(plan_text(_plan("hh-7b", *ALONE, *zero, machine=MACHINES["hh-7b"])).split())
    assert "step 3: member_0…9 at once, on 8 of 8 GPUs in 5 waves" in text
    assert "one GPU: member_0…9" not in text
    parts = ("sft.train.num_ranks=2", "sft.train.zero.stage=1")
    text = " ".join(plan_text(_plan("hh-7b", *ALONE, *parts, machine=MACHINES["hh-7b"])).split())
    assert "step 2: sft, on 2 of 8 GPUs" in text
    assert "It already uses ZeRO" in text


def test_the_page_quotes_the_plan_as_it_is_printed() -> None:
    """Every line of the excerpt is a line of the plan."""
    page = ROOT / "docs" / "how-to" / "plan.md"
    section = page.read_text().partition("trimtab run hh-7b --dry-run")[2]
    quoted = section.partition("```\n")[2].partition("```text\n")[2].partition("```")[0]
    lines = [line for line in quoted.splitlines() if line.strip() not in ("", "...")]
    assert len(lines) > 10
    printed = plan_text(_plan("hh-7b", machine=MACHINES["hh-7b"])).splitlines()
    assert not [line for line in lines if line not in printed]


def test_voters_of_an_audit_are_planned_with_the_models_that_they_have() -> None:
    """The audit itself has none: its shape is that of no model that is run."""
    models = [
        "ensemble.cross_fitted.size=2",
        'embedding_models=[{"encoder":"smollm2-135m-instruct"}]',
    ]
    given = ["preferences.sources=[a/b]", "preferences.max_pairs=100", *models]
    yours = 'ensemble.rewards=[{"model":"some/model"},{"function":"my:rule"}]'
    plan = _plan("audit", *given, yours, flow="label-audit")
    steps, rows = _steps(plan), {role: row for row in plan.rows for role in row.roles}
    assert steps["base"] < steps["base_trunk"] < steps["cross_fitted_0"] == steps["cross_fitted_1"]
    assert steps["cross_fitted_0"] < steps["strength"] < steps["audit"]
    assert steps["external_reward_votes_0"] == steps["vectors_states"] < steps["strength"]
    size = KNOWN_SHAPES["smollm2-135m-instruct"]
    for role in ("base", "base_trunk", "cross_fitted_0"):
        assert rows[role].inputs.shape == size
    assert plan.shape.num_layers == 4
    work = rows["cross_fitted_0"].work
    # Six of thirty layers, the last norm and the head.
    assert work.parameters == 6 * size.layer_parameters + 2 * size.hidden_size
    assert rows["vectors_states"].work.phases["lower layers"].frozen == 4 * size.policy_parameters
    assert rows["external_reward_votes_0"].work.phases == {}  # of which nothing is known here


def test_embedding_models_of_one_encoder_share_its_embeddings() -> None:
    both = 'embedding_models=[{"kind":"linear"},{"kind":"nearest"}]'
    steps = _steps(_plan("smoke", both, flow="label-audit"))
    assert steps["vectors_linear"] == steps["vectors_nearest"]
    assert steps["preferences"] < steps["vectors_linear"] < steps["embedding_nearest"]
    with pytest.raises(ValueError, match="must be of different kinds, found"):
        _plan("smoke", 'embedding_models=[{"kind":"linear"},{"kind":"linear"}]')
    with pytest.raises(ValueError, match="takes a sentence encoder, found encoder=policy"):
        _plan("smoke", 'embedding_models=[{"kind":"nearest","encoder":"policy"}]')
    steps = _steps(_plan("hh-smollm2"))
    assert "embedding_linear" in steps
    assert steps["trunk"] < steps["vectors_states"] < steps["states_linear"]
