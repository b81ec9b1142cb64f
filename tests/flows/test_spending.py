"""What all stages of a run may spend on judges together is the run's limit, whichever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect import Task

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.over_seeds import configs_of_seeds
from trimtab.flows.config.overrides import apply_changes
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import PlannedStage, Run
from trimtab.flows.runs.plan_text import spending_in_words
from trimtab.infra.settings import Settings
from trimtab.models.config.base import values_in_key
from trimtab.models.config.judge import JudgeAnswersConfig
from trimtab.models.judge.budget import RUN_LEDGER_VARIABLE, Ledger
from trimtab.models.judge.chat import Usage
from trimtab.tasks.judges import UnsharedLedgerError, ledger_of_run

ENDPOINT = {"model": "m", "input_price": 1.0, "max_cost": 5.0, "max_total_tokens": 1000}
JUDGE = {"judge": {"endpoint": ENDPOINT}}
HARMLESS = {"judge": {"endpoint": ENDPOINT, "rubric": "harmlessness"}, "categories": ["harmless"]}
REAL = {"preferences": {"sources": ["harmless.jsonl.gz"]}, "evaluate": {"harmless": HARMLESS}}


def _config(**changes: Any) -> RunConfig:
    return apply_changes(recipe_named("hh-smollm2"), REAL | changes)


def test_the_stages_of_all_seeds_that_ask_have_the_run_s_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledgers: dict[str, list[str | None]] = {}

    def note(task: Task[..., object], *_: Any, ledger: str | None = None, **__: Any) -> object:
        ledgers.setdefault(task.name, []).append(ledger)
        return object()

    monkeypatch.setattr(Task, "submit", note)
    judges = [{"name": "one", **JUDGE}, {"name": "free", "judge": {"endpoint": {"model": "m"}}}]
    configs = configs_of_seeds("hh-smollm2", ["vanilla", "dpo"], (2, 3), REAL | {"judges": judges})
    experiment.compare(*[Run(config, name="mine") for config in configs])
    assert ledgers["evaluate"] == ["mine"] * 6
    assert ledgers["judge_answers"] == ["mine", None]
    assert set(ledgers["reward_model"] + ledgers["sft"] + ledgers["dpo"]) == {None}


def _folder(settings: Settings, stage: str, config: Any, run: str | None = "mine") -> Path | None:
    found = ledger_of_run(settings, stage, config, run).get(RUN_LEDGER_VARIABLE)
    return Path(found) if found else None


def test_a_section_has_one_ledger_whatever_arm_seed_and_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path)})
    evaluate = _config().evaluate
    folder = _folder(settings, "evaluate", evaluate)
    assert folder is not None
    best = evaluate.model_copy(update={"num_candidates": 4, "seed": 7})
    assert _folder(settings, "evaluate", best) == folder
    assert _folder(settings, "ppo_max", evaluate) != folder
    assert _folder(settings, "evaluate", evaluate, "other") != folder
    assert _folder(settings, "evaluate", evaluate, None) is None

    ledger = Ledger(folder)
    ledger.reserve("first", Usage(100, 50), (1.0, 0.0))
    more = {**HARMLESS, "judge": {**HARMLESS["judge"], "endpoint": {**ENDPOINT, "max_cost": 9.0}}}
    raised = _config(evaluate={"harmless": more}).evaluate
    assert values_in_key(raised) == values_in_key(evaluate)
    assert _folder(settings, "evaluate", raised) == folder
    assert sum(usage.total for usage in ledger.total().values()) == 150


def test_judges_of_policies_have_their_limits_to_themselves(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path)})
    one, other = (
        JudgeAnswersConfig.model_validate({"name": name, **JUDGE}) for name in ("one", "other")
    )
    folders = {_folder(settings, "judge_answers", each) for each in (one, other)}
    assert len(folders) == 2 and None not in folders


def test_hosts_without_a_folder_in_common_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"TRIMTAB_HOME": str(tmp_path), "TRIMTAB_DASK": "tcp://10.0.0.5:8786"}
    evaluate = _config().evaluate
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    with pytest.raises(UnsharedLedgerError, match="TRIMTAB_ANSWERS to a folder that all hosts"):
        ledger_of_run(Settings.from_env(env), "evaluate", evaluate, "mine")
    monkeypatch.setenv("TRIMTAB_ANSWERS", str(tmp_path / "shared"))
    settings = Settings.from_env({**env, "TRIMTAB_ANSWERS": str(tmp_path / "shared")})
    folder = _folder(settings, "evaluate", evaluate)
    assert folder is not None and folder.is_relative_to(tmp_path / "shared")


def test_a_plan_says_what_may_be_spent() -> None:
    config = _config(judge_preferences=JUDGE)
    stages = [PlannedStage("evaluate", config.evaluate, {}, 1)] * 2
    stages.append(PlannedStage("judge_preferences", config.judge_preferences, {}, 1))
    judge = JudgeAnswersConfig.model_validate({"name": "j", "judge": {"endpoint": {"model": "n"}}})
    stages.append(PlannedStage("judge_answers", judge, {}, 1))
    assert spending_in_words([*stages, PlannedStage("sft", config.sft, {}, 1)], 2) == [
        "4 x evaluate asks the endpoint's m: all may spend max_cost = 5 and max_total_tokens = "
        "1000",
        "2 x judge_preferences asks the endpoint's m: all may spend max_cost = 5 and "
        "max_total_tokens = 1000",
        "1 x judge_answers asks the endpoint's n: no limit is given",
    ]


def test_stages_that_do_not_ask_are_left_out() -> None:
    """PPO with a scorer, and the judgement that has the configuration of `evaluate`."""
    config = _config(ppo={"scoring": JUDGE})
    scorer = PlannedStage("reward_model", config.reward_model, {}, 1)
    stages = [
        PlannedStage("head_to_head", config.evaluate, {}, 1),
        PlannedStage("ppo_max", config.ppo, {"scorer": scorer}, 1),
    ]
    assert spending_in_words(stages, 1) == []
    (line,) = spending_in_words([PlannedStage("ppo_max", config.ppo, {}, 1)], 3)
    assert line.startswith("3 x ppo_max asks the endpoint's m")
