"""Rewards from outside in a run: what is trained, what is refused, what is found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.command import SECONDS, start
from tests.models.training.test_external_scorer import save_scorer
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.over_seeds import study_config
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.checks import check
from trimtab.flows.runs.plan import Plan, make_plan
from trimtab.models.estimates.machine import Machine

LARGE = Machine(1, 10**15, 2, False)
REWARD = "reward.function=json.decoder:py_scanstring"  # of a module that is there; never called
HELD_OUT = 'held_out_rewards=[{"function": "json.encoder:py_encode_basestring"}]'
SAMPLED = ("full", "vanilla", "best_of_n", "rejection_sampling", "rest", "hir", "ppo_max_external")


def _config(*overrides: str, recipe: str = "smoke") -> RunConfig:
    return apply_changes(recipe_named(recipe), parse_overrides(overrides))


def _arms(*names: str) -> str:
    return f"arms={json.dumps(names)}"


def _plan(*overrides: str, flow: str = "rlhf") -> Plan:
    return make_plan(_config(*overrides), flow, LARGE)


def _stages(plan: Plan) -> set[str]:
    return {row.stage.stage for row in plan.rows}


@pytest.mark.parametrize("flow", ["rlhf", "policy", "reward"])
def test_every_stage_scores_by_it_and_no_scorer_is_trained(flow: str) -> None:
    plan = _plan(REWARD, _arms(*SAMPLED), flow=flow)
    (reward,) = [row for row in plan.rows if row.stage.stage == "external_reward"]
    assert reward.roles == ("reward",)
    scored = [row.stage.inputs["scorer"] for row in plan.rows if "scorer" in row.stage.inputs]
    assert all(scorer is reward.stage for scorer in scored)
    assert not _stages(plan) & {"advantage_model", "meta_rm"}
    # Reward models that vote on labels, which judge policies.
    roles = {role for row in plan.rows for role in row.roles}
    assert {"member_0", "member_1", "strength"} <= roles
    assert not roles & {"reward_model", "policy_round_2"}
    if flow != "reward":
        assert len(scored) > 10
        critics = [row.stage.config for row in plan.rows if row.stage.stage == "ppo_max"]
        assert {config.critic_init for config in critics} == {"policy"}


def test_nothing_is_trained_that_nobody_reads() -> None:
    plan = _plan(REWARD, HELD_OUT, _arms(*SAMPLED))
    assert not _stages(plan) & {"reward_model", "advantage_model", "strength", "relabel", "audit"}
    judges = {
        id(judge)
        for row in plan.rows
        if row.stage.stage == "evaluate"
        for judge in row.stage.inputs["judge"]
    }
    (held_out,) = [row for row in plan.rows if row.roles == ("held_out_reward_0",)]
    assert judges == {id(held_out.stage)}
    # Who learns pairs needs them relabelled, and a label audit its vote.
    assert "relabel" in _stages(_plan(REWARD, HELD_OUT, _arms("full", "dpo")))
    assert "audit" in _stages(_plan(REWARD, HELD_OUT, _arms("full"), flow="label-audit"))
    # Beside scorers that the run trains.
    assert "advantage_model" in _stages(_plan(HELD_OUT, _arms("full")))


def test_a_reward_model_is_in_the_plan_with_its_own_size(tmp_path: Path) -> None:
    folder = save_scorer(tmp_path / "theirs")
    of_model = _plan(f"reward.model={folder}", _arms("ppo_max_external"))
    of_function = _plan(REWARD, _arms("ppo_max_external"))
    tokens = []
    for plan in (of_model, of_function):
        (reward,) = [row for row in plan.rows if row.roles == ("reward",)]
        (ppo,) = [row for row in plan.rows if row.roles == ("policy_ppo_max_external",)]
        assert bool(reward.work.phases) == (plan is of_model)
        tokens.append(ppo.work.forward_tokens)
    assert tokens[0] > tokens[1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((_arms("ppo_max_external"),), "reward must be given for the arm ppo_max_external, found"),
        (
            (
                REWARD,
                _arms("ppo_max_am", "full", "rlaif_direct"),
                "ppo.scoring.judge.gold_accuracy=1",
            ),
            "arms must not name ppo_max_am, rlaif_direct where reward is given: they show scorers",
        ),
        (
            (REWARD, HELD_OUT, _arms("full"), "ppo.guard.num_held_out=1"),
            "ppo.guard.num_held_out must be left out where reward and held_out_rewards are given",
        ),
        (
            ("reward.model=a", "reward.function=b:c"),
            "exactly one of model, server, function, judge and panel must be given, found model ",
        ),
        (
            ("reward.function=b.c",),
            "reward.function: found 'b.c'; allowed: package.module:function",
        ),
        ((REWARD, 'reward.server={"url": "http://a"}'), "reward.server.format"),
        (
            (REWARD, 'preferences.prompt_columns=["answer"]'),
            "preferences.prompt_columns must be empty without preferences.sources, found ['ans",
        ),
        ((f"{HELD_OUT[:-1]}, {HELD_OUT.partition('[')[2]}",), "must differ, found reward function"),
    ],
)
def test_mistakes_are_explained(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _config(*overrides)
    assert message in str(error.value)


def test_a_study_has_no_reward_from_outside() -> None:
    with pytest.raises(ConfigError, match="must be left out of a study, found reward function a:b"):
        study_config("smoke", {"reward": {"function": "a:b"}})


def test_what_is_not_there_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    members = [
        {"function": "nothing.of_this:name"},
        {"function": "json.encoder:encodes"},
        {"model": str(tmp_path / "empty")},
        {"model": str(tmp_path / "absent")},
    ]
    mistakes = check(_config(f"reward.panel={json.dumps(members)}", _arms("full"))).mistakes
    assert [line.partition(";")[0] for line in mistakes] == [
        "reward.panel.function: found no source of nothing.of_this for nothing.of_this:name",
        "reward.panel.function: found no encodes in encoder.py",
        f"reward.panel.model: found no config.json in the folder {str(tmp_path / 'empty')!r}",
        f"reward.panel.model: found nothing at {str(tmp_path / 'absent')!r}",
    ]
    assert check(_config(REWARD, HELD_OUT, _arms("full"))).mistakes == []


LENGTH = "def length(prompts, responses):\n    return [len(r.split()) for r in responses]\n"


def _run(home: Path, *arguments: str) -> str:
    """A command of its own process, in the current folder."""
    process = start(home, "run", "smoke", *arguments)
    output = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_a_run_by_a_function_and_judges_from_outside(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reward is in its lineage; unchanged it is found again, changed it is asked anew."""
    (tmp_path / "my_rewards.py").write_text(LENGTH)
    monkeypatch.chdir(tmp_path)
    judge = save_scorer(tmp_path / "judge", "bidirectional", template=False)
    settings = (
        "reward.function=my_rewards:length",
        f"held_out_rewards=[{{model: {judge}}}]",
        _arms("ppo_max_external", "best_of_n"),
    )
    _run(home, *settings, "--name", "mine")
    card = json.loads((home / "reports/mine/scorecard.json").read_text())
    stages = {entry["role"]: entry for entry in card["lineage"]}
    assert not {"member_0", "advantage_model", "strength"} & stages.keys()
    for role in ("policy_ppo_max_external", "eval_sft", "eval_best_of_n"):
        assert stages[role]["parents"]["scorer"]["key"] == stages["reward"]["key"]
        if role.startswith("eval"):
            parent = stages[role]["parents"]["judge_0"]
            assert parent["key"] == stages["held_out_reward_0"]["key"]
    assert stages["reward"]["parents"]["content_0"]["stage"] == "raw"
    scorer = card["scorers"]["external_reward"]
    assert 0 < scorer["label_accuracy"]["value"] < 1 and scorer["label_ece_width"] is None
    assert "reward from outside:" in (home / "reports/mine/report.html").read_text()
    key = stages["eval_best_of_n"]["key"]
    (path,) = home.glob(f"store/artifacts/evaluate/{key}/*/responses.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows and all(row["score"] == len(row["response"].split()) for row in rows)

    found = _run(home, *settings, "--name", "again")
    count = len({entry["key"] for entry in card["lineage"]})
    assert f"{count} of {count} stages before the report were found in the store" in found
    (tmp_path / "my_rewards.py").write_text(LENGTH.replace("r.split()", "r"))
    _run(home, *settings, "--name", "changed")
    other = json.loads((home / "reports/changed/scorecard.json").read_text())
    keys = {entry["role"]: entry["key"] for entry in other["lineage"]}
    same = {role for role, key in keys.items() if key == stages[role]["key"]}
    assert "held_out_reward_0" in same and "sft" in same
    assert not same & {"reward", "policy_ppo_max_external", "eval_sft", "eval_best_of_n"}
