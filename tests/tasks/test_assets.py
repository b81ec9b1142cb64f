"""Pairs, scorers and policies as Prefect's assets: events of what was computed, none of what was
found."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import prefect.events
import pytest
from prefect.assets import Asset
from prefect.context import AssetContext
from prefect.states import Completed, State

from trimtab.models.config.policy import PPOConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks import stages as module
from trimtab.tasks.execution import StageResult
from trimtab.tasks.resources import ONE_CORE
from trimtab.tasks.stages import TASKS, asset_task


def test_pairs_scorers_and_policies_are_assets_and_nothing_else_is() -> None:
    assert asset_task(TASKS["report"], "smoke", None) is TASKS["report"]
    made: Any = asset_task(TASKS["ppo_max"], "smoke-seed3", "PPO round 2")
    (asset,) = made.assets
    assert asset.key == "trimtab://smoke-seed3/ppo-round-2"
    assert asset.properties.name == "policy: PPO round 2"
    before = TASKS["ppo_max"]
    for option in ("retries", "retry_condition_fn", "task_run_name", "tags", "name"):
        assert getattr(made, option) == getattr(before, option)


@pytest.mark.parametrize("cached", [False, True])
def test_only_what_was_computed_is_materialised(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(prefect.events, "emit_event", lambda **given: told.append(given))
    result = StageResult(ArtifactRef("ppo_max", "k", "d"), {"collapsed": False}, cached, 1.0)
    monkeypatch.setattr(module, "run_stage_task", lambda *_: result)
    task = asset_task(TASKS["ppo_max"], "smoke", "PPO full")
    context = AssetContext.from_task_and_inputs(task, uuid4())
    context.upstream_assets.add(Asset(key="trimtab://smoke/reward-model"))
    with context:
        state: Any = task.fn(PPOConfig(), "PPO full", ONE_CORE, None)
        context.emit_events(state if isinstance(state, State) else Completed())
    if cached:
        assert told == []
        return
    referenced, made = told
    assert referenced["event"] == "prefect.asset.referenced"
    assert made["event"] == "prefect.asset.materialization.succeeded"
    assert made["resource"]["prefect.resource.id"] == "trimtab://smoke/ppo-full"
    assert made["payload"] == {"stage": "ppo_max", "key": "k", "digest": "d"}
    assert made["related"][0]["prefect.resource.id"] == "trimtab://smoke/reward-model"
