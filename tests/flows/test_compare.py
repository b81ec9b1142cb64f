"""Comparisons: every method is submitted, what they share is made once, mistakes are named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import trimtab
from trimtab.flows.cli.cli import main
from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.over_seeds import METHODS, configs_of_seeds
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import Run
from trimtab.flows.runs.plan import make_plan
from trimtab.flows.runs.plan_text import plan_text
from trimtab.models.config.arms import ARMS
from trimtab.models.estimates.machine import Machine
from trimtab.models.specs import StageSpec

LARGE = Machine(1, 10**15, 2, False)
Submitted = list[tuple[str, dict[str, Any]]]
GOOD = {"name": "good", "judge": {"gold_accuracy": 0.9}}
CLUMSY = {"name": "clumsy", "judge": {"gold_accuracy": 0.6}, "max_prompts": 10}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """Names and arguments of the stages handed to Prefect, which makes nothing of them."""
    found: Submitted = []

    def note(_run: Run, spec: StageSpec, config: object, **given: object) -> object:
        found.append((spec.name, {"config": config, **given}))
        return object()

    monkeypatch.setattr(Run, "submit", note)
    return found


def _runs(arms: Sequence[str] = METHODS, seeds: Sequence[int] = (0,)) -> list[Run]:
    runs = [Run(config) for config in configs_of_seeds("smoke", arms, seeds, None)]
    experiment.compare(*runs)
    return runs


def test_every_method_is_trained_and_answers(submitted: Submitted) -> None:
    (run,) = _runs()
    assert len(METHODS) == 14
    for arm in METHODS:
        assert f"eval_{arm}" in run.roles
        assert f"policy_{arm}" in run.roles or arm == "best_of_n"
    counts = [name for name, _ in submitted]
    assert counts.count("ppo_max") == 8
    assert counts.count("evaluate") == 1 + 14


def test_what_methods_share_is_made_once(submitted: Submitted) -> None:
    (run,) = _runs()
    counts = [name for name, _ in submitted]
    for stage in ("world", "sft", "comparisons", "strength", "advantage_model", "rehearsal", "dpo"):
        assert counts.count(stage) == 1
    # Two members and the reward model; PPO goes on from what rejection sampling has come to in two
    # turns, which are not made again for it.
    assert counts.count("reward_model") == 2 + 1
    assert counts.count("rejection_sampling") == 2
    starts = [given["policy"] for name, given in submitted if name == "ppo_max"]
    assert starts.count(run["policy_rejection_sampling"]) == 1
    assert starts.count(run["sft"]) == 7


def test_seeds_share_nothing_but_the_matrix(submitted: Submitted) -> None:
    first, second = _runs(("dpo", "best_of_n"), (2, 5))
    counts = [name for name, _ in submitted]
    assert counts.count("sft") == counts.count("dpo") == 2
    (given,) = [given for name, given in submitted if name == "win_matrix"]
    evaluations = given["evaluations"]
    names = ["2.sft", "2.dpo", "2.best_of_n", "5.sft", "5.dpo", "5.best_of_n"]
    assert list(evaluations) == names
    assert evaluations["2.dpo"] is first["eval_dpo"]
    assert evaluations["5.dpo"] is second["eval_dpo"]
    assert "head_to_head" not in counts  # the matrix has it


def test_each_judge_is_asked_once_about_all_seeds(submitted: Submitted) -> None:
    changes = {"judges": [GOOD, CLUMSY]}
    runs = [Run(config) for config in configs_of_seeds("smoke", ("dpo",), (2, 5), changes)]
    experiment.compare(*runs)
    (matrix,) = [given for name, given in submitted if name == "win_matrix"]
    judged = [given for name, given in submitted if name == "judge_answers"]
    assert [given["config"].name for given in judged] == ["good", "clumsy"]
    assert all(given["evaluations"] == matrix["evaluations"] for given in judged)
    assert matrix["verdicts"] == [runs[1]["judged_good"], runs[1]["judged_clumsy"]]
    assert "judged_good" not in runs[0].roles


def test_the_plan_has_the_judges() -> None:
    """Three policies and so three pairs of them; 24 prompts of three sets, the expert ones."""
    local = {"name": "local", "judge": {"local_model": "smollm2-135m-instruct"}}
    config = configs_of_seeds("smoke", ("dpo", "cpl"), (4,), {"judges": [GOOD, CLUMSY, local]})[0]
    plan = make_plan(config, "compare", LARGE, 1)
    rows = {row.name: row for row in plan.rows}
    prompts = plan.amounts.eval_prompts
    assert rows["judged_good"].work.examples == 3 * prompts
    assert rows["judged_clumsy"].work.examples == 3 * min(prompts, 3 * 10)
    assert rows["judged_local"].work.forward_tokens > 2 * 3 * prompts
    assert rows["win_matrix"].stage.step == rows["judged_good"].stage.step + 1


@pytest.mark.parametrize("is_outside", [False, True])
def test_every_arm_there_is_can_be_compared(submitted: Submitted, is_outside: bool) -> None:
    """Those of a run's own scorers, and those that a reward from outside can score."""
    changes: dict[str, Any] = {"ensemble": {"size": 5}}
    if is_outside:
        arms = tuple(name for name, arm in ARMS.items() if not arm.is_about_scorer)
        changes["reward"] = {"function": "json.decoder:py_scanstring"}
    else:
        arms = tuple(name for name, arm in ARMS.items() if arm.scorer != "reward")
        changes["ppo"] = {"scoring": {"judge": {"gold_accuracy": 0.8}}}
    (config,) = configs_of_seeds("smoke", arms, [3], changes)
    assert (config.arms, config.seed) == (arms, 3)
    experiment.compare(run := Run(config))
    assert {f"eval_{arm}" for arm in arms} <= set(run.roles)


@pytest.mark.parametrize(
    ("arms", "seeds", "changes", "message"),
    [
        (["dpo", "cpl", "dpo"], [1], None, "arms must differ, found dpo, cpl, dpo"),
        (["dpo"], [1, 1], None, "seeds must differ, found 1, 1"),
        (["dpoo"], [1], None, "arms.0: Input should be 'vanilla'"),
        (["ppo_max_ensemble"], [1], None, "ensemble.size must be at least 5"),
        (["dpo"], [1], {"seed": 3}, "seed: unknown field 'seed'"),
        (["dpo"], [1], {"arms": ["cpl"]}, "arms: unknown field 'arms'"),
        (["dpo"], [1], {"judges": [{"nam": "m"}]}, "unknown field 'nam'; did you mean 'name'?"),
        (["dpo"], [1], {"judges": [GOOD, GOOD]}, "different names, found good, good"),
        (
            ["dpo"],
            [1],
            {"judges": [{**GOOD, "name": "gold"}]},
            "must not be gold and not begin with judge_, found gold",
        ),
        (["dpo"], [1], {"judges": [{"name": "m", "judge": {}}]}, "judges.0.judge: Field required"),
        (
            *(["dpo"], [1]),
            {
                "judges": [GOOD],
                "preferences": {"sources": ["pairs.jsonl"]},
                "sft": {"model": {"base": "smollm2-135m-instruct"}},
            },
            "gold_accuracy must be none with preferences.sources, found it for good",
        ),
    ],
)
def test_mistakes_are_named(
    arms: list[str], seeds: list[int], changes: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        configs_of_seeds("smoke", arms, seeds, changes)
    assert message in str(error.value)


def test_the_plan_is_that_of_a_seed() -> None:
    config = configs_of_seeds("smoke", ("dpo",), (4, 5, 6), None)[0]
    plan = make_plan(config, "compare", LARGE, 3)
    assert [row.name for row in plan.rows][-1] == "win_matrix"
    assert "seed 4, flow compare" in plan_text(plan)
    assert "Each of 3 seeds takes as much." in plan_text(plan)
    alone = make_plan(recipe_named("smoke"), "rlhf", LARGE)
    assert "seeds takes" not in plan_text(alone)


def test_the_command_plans_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    given = ["run", "smoke", "--flow", "compare", "--arms", "dpo", "cpl", "--seeds", "0", "1"]
    assert main([*given, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "policy_cpl" in text
    assert "policy_full" not in text
    assert main(["run", "smoke", "--arms", "dpo", "--dry-run"]) == 2
    assert "--arms and --seeds are for --flow compare" in capsys.readouterr().err


def test_finished_runs_are_compared_by_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    folder = tmp_path / "reports" / "compare-smoke"
    folder.mkdir(parents=True)
    for name in ("scorecard.json", "summary.json"):
        (folder / name).write_text("{}")
    assert main(["compare", "compare-smoke"]) == 2
    assert (
        "compare-smoke is the page of a comparison or study, not of a single run"
        in capsys.readouterr().err
    )


def _trained(home: Path) -> Counter[str]:
    """How many models of each stage there are."""
    return Counter(path.parts[-5] for path in home.glob("store/artifacts/*/*/*/model/config.json"))


def _check_judges(matrix: dict[str, Any]) -> None:
    """Who is right more often agrees with gold more often; each was asked about other prompts."""
    assert matrix["judges"] == ["gold", "judge_score", "good", "clumsy"]
    agreed = {(row["first"], row["second"]): row for row in matrix["agreements"]}
    good, clumsy = agreed["gold", "good"], agreed["gold", "clumsy"]
    count = len(matrix["policies"])
    assert clumsy["num_games"] == 10 * count * (count - 1) // 2 < good["num_games"]
    assert good["kappa"]["low"] > clumsy["kappa"]["value"] > -1
    # Gold finds a tie where answers are of nearly one quality, where the judge may see a winner.
    assert good["share"]["value"] > 0.75
    assert {row["judge"] for row in matrix["rated"]} == set(matrix["judges"])
    harmful = {duel["judge"] for duel in matrix["by_category"]["harmful"]}
    assert "good" in harmful
    assert matrix["judge_models"]["good"]["num_asked"] > 0


# The kinds: PPO, a loss on pairs, and a choice that trains nothing.
FEW = (("vanilla", "dpo", "best_of_n"), ())
EVERY = (
    tuple(arm for arm in ARMS if arm not in ("full", "cpl", "ppo_max_external")),
    ("ensemble.size=5", "ppo.scoring.judge.gold_accuracy=0.8"),
)
# 1 + 4 steps of 16 responses; vanilla has no step for the critic alone. Two times 10 prompts, of 4
# answers each; PPO comes on top.
SAMPLED = dict.fromkeys(("ppo_max_rm", "rloo", "grpo", "reinforce_pp"), 5 * 16)
SAMPLED |= {"vanilla": 4 * 16, "dpo": 0, "cpl": 0}
SAMPLED |= dict.fromkeys(("rejection_sampling", "rest", "hir"), 5 * 16)
SAMPLED |= {"rejection_sampling_ppo": 5 * 16 + 5 * 16}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("arms", "needed"),
    [FEW, pytest.param(*EVERY, marks=pytest.mark.nightly)],
    ids=["few", "every arm"],
)
def test_arms_are_trained_once_judged_and_counted(
    finished: Path, tmp_path: Path, arms: Sequence[str], needed: Sequence[str]
) -> None:
    home = shutil.copytree(finished, tmp_path / "home")
    given = ["run", "smoke", *needed, f"judges={json.dumps([GOOD, CLUMSY])}"]
    given += ["--flow", "compare", "--seeds", "0"]
    trimtab(home, *given, "--arms", *arms)

    before = _trained(home)
    assert before["dpo"] == 1 and before["rest"] == ("rest" in arms) and "cpl" not in before
    trimtab(
        home, *given, "--name", "mine", "--arms", *arms, "cpl"
    )  # one method more, and nothing else
    assert _trained(home) == before | {"cpl": 1}
    folder = home / "reports" / "mine"
    assert "CPL" in (folder / "report.html").read_text()
    card = json.loads((folder / "scorecard.json").read_text())
    _check_judges(card["win_matrix"])
    methods = {method["name"]: method for method in card["methods"]}
    assert set(methods) == {"sft", "cpl", *arms}
    for arm in (*arms, "cpl"):
        assert methods[arm]["against_sft"]["judge"] == "gold", arm
    budgets = {arm: methods[arm]["budget"] for arm in (*arms, "cpl") if arm != "best_of_n"}
    for arm in SAMPLED.keys() & budgets.keys():
        assert budgets[arm]["num_sampled"] == SAMPLED[arm], arm
    assert all(budget["num_updates"] > 0 for budget in budgets.values())
