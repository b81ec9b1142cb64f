"""What all stages of a run may spend together is the run's limit, whichever they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from prefect import Task
from pydantic import BaseModel

from flows import experiment
from flows.compare_config import of_seeds
from flows.config import ConfigError, RunConfig
from flows.judge_shares import share_limits, shares_in_words
from flows.overrides import changed
from flows.pipeline.policies import measure
from flows.recipes import recipe_named
from flows.run import PlannedStage, Run
from flows.studies.registry import ARMS
from models.config.base import deciding
from models.config.judge import JudgeAnswersConfig, JudgePreferencesConfig, endpoints_of, with_share
from models.config.reporting import EvaluateConfig

ENDPOINT = {"model": "m", "input_price": 1.0, "max_cost": 5.0, "max_total_tokens": 1000}
JUDGE = {"judge": {"endpoint": ENDPOINT}}
HARMLESS = {"judge": {"endpoint": ENDPOINT, "rubric": "harmlessness"}, "categories": ["harmless"]}
REAL = {"preferences": {"sources": ["harmless.jsonl.gz"]}, "evaluate": {"harmless": HARMLESS}}
Stages = Callable[..., Any]


def _config(**changes: Any) -> RunConfig:
    return changed(recipe_named("hh-smollm2"), REAL | changes)


def _shares(runs: Sequence[Run], stages: Stages) -> dict[str, int]:
    share_limits(runs, stages)
    (found,) = {tuple(sorted(run.num_sharing.items())) for run in runs}
    return dict(found)


def test_stages_that_ask_are_counted_by_hand() -> None:
    """SFT, two arms and round 2 are evaluated; pairs are judged once; PPO has its scorer."""
    config = _config(judge_preferences=JUDGE, arms=["vanilla", "full"], rounds={"max_rounds": 2})
    assert _shares([Run(config)], experiment.rlhf) == {"evaluate": 4, "judge_preferences": 1}


def test_seeds_share_and_what_no_judge_rates_has_no_part() -> None:
    arms = ["vanilla", "full", "rlaif_direct", "best_of_n"]
    changes = REAL | {"ppo": {"scoring": JUDGE}}
    runs = [Run(config) for config in of_seeds("hh-smollm2", arms, (2, 3, 4), changes)]
    # SFT and four arms; of the PPO stages one a seed is rated by the judge.
    assert _shares(runs, experiment.compare) == {"evaluate": 3 * 5, "ppo_max": 3}


def test_judges_of_policies_have_their_limits_to_themselves(submitted: list[BaseModel]) -> None:
    judges = [{"name": name, **JUDGE} for name in ("one", "other")]
    configs = of_seeds("hh-smollm2", ["dpo"], (2, 3), REAL | {"judges": judges})
    runs = [Run(config) for config in configs]
    assert _shares(runs, experiment.compare) == {"evaluate": 4}
    experiment.compare(*runs)
    found = [each for each in submitted if isinstance(each, JudgeAnswersConfig)]
    assert [next(endpoints_of(each)).max_cost for each in found] == [5.0, 5.0]
    stages = [PlannedStage("judge_answers", each, {}, 1) for each in found]
    assert shares_in_words(stages, 2) == 2 * [
        "1 x judge_answers asks the endpoint's m: each may take 5 of max_cost = 5 and 1000 of "
        "max_total_tokens = 1000"
    ]


def test_without_limits_nothing_is_planned_for_it() -> None:
    def fail(*_: Run) -> None:
        pytest.fail("there is nothing to share")

    free = {"judge": {"endpoint": {"model": "m"}}}
    runs = [Run(changed(recipe_named("smoke"), {"judge_preferences": free}))]
    assert _shares(runs, fail) == {}


def test_a_limit_that_leaves_a_stage_nothing_is_refused() -> None:
    """SFT, two arms and round 2 are evaluated."""
    few = {"endpoint": ENDPOINT | {"max_total_tokens": 3}, "rubric": "harmlessness"}
    evaluate = {"harmless": HARMLESS | {"judge": few}}
    config = _config(evaluate=evaluate, arms=["vanilla", "full"], rounds={"max_rounds": 2})
    with pytest.raises(ConfigError, match="must be at least 4, found 3: 4 stages evaluate"):
        share_limits([Run(config)], experiment.rlhf)


def test_a_plan_says_who_may_spend_what() -> None:
    config = _config(judge_preferences=JUDGE)
    stages = [PlannedStage("evaluate", config.evaluate, {}, 1)] * 2
    stages.append(PlannedStage("judge_preferences", config.judge_preferences, {}, 1))
    assert shares_in_words([*stages, PlannedStage("sft", config.sft, {}, 1)], 2) == [
        "4 x evaluate asks the endpoint's m: each may take 1.25 of max_cost = 5 and 250 of "
        "max_total_tokens = 1000",
        "2 x judge_preferences asks the endpoint's m: each may take 2.5 of max_cost = 5 and 500 of "
        "max_total_tokens = 1000",
    ]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[BaseModel]:
    """The configurations that Prefect gets."""
    found: list[BaseModel] = []

    def note(_task: Task[..., object], *given: Any, **_named: Any) -> object:
        found.append(given[0])
        return object()

    monkeypatch.setattr(Task, "submit", note)
    return found


def test_together_they_get_no_more_than_the_limit(submitted: list[BaseModel]) -> None:
    configs = of_seeds(
        "hh-smollm2", ["vanilla", "dpo"], (2, 3), REAL | {"judge_preferences": JUDGE}
    )
    runs = [Run(config) for config in configs]
    share_limits(runs, experiment.compare)
    experiment.compare(*runs)
    evaluations = [config for config in submitted if isinstance(config, EvaluateConfig)]
    assert len(evaluations) == 6
    judged = [config for config in submitted if isinstance(config, JudgePreferencesConfig)]
    for count, found in ((6, evaluations), (2, judged)):
        endpoints = [each for config in found for each in endpoints_of(config)]
        assert len(endpoints) == count
        assert [each.max_total_tokens for each in endpoints] == [1000 // count] * count
        assert sum(each.max_cost or 0 for each in endpoints) == pytest.approx(5.0)
    # A share is another limit, and no other work.
    config = runs[0].config.evaluate
    assert with_share(config, 7) != config
    assert deciding(with_share(config, 7)) == deciding(config)


def test_further_evaluations_of_a_run_share_alike() -> None:
    def answer(run: Run) -> None:
        for name in ("one", "other"):
            measure(run, name, run[name], run["sft"])

    roles = ("sft", "data", "one", "other", *(f"member_{index}" for index in range(5)))
    run = Run(_config(), {role: object() for role in roles})
    assert _shares([run], answer) == {"evaluate": 2}


@pytest.mark.parametrize("slug", ARMS)
def test_every_exhibit_can_be_counted(slug: str) -> None:
    shares = _shares([Run(_config())], ARMS[slug])
    assert set(shares) <= {"evaluate"}
