"""A stage's key: what is in it, and code that changes before or under a stage."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.toy_stage import count
from trimtab.models.config.base import values_in_key
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.cache_key import CodeChangedError, stage_key
from trimtab.tasks.execution import StageContext


def test_key_depends_on_stage_config_inputs_and_code_only() -> None:
    ref = ArtifactRef("sft", "k", "d")
    arguments = ("ppo", {"lr": 0.1, "a": 1}, {"policy": ref}, "code")
    key = stage_key(*arguments)
    assert key == stage_key("ppo", {"a": 1, "lr": 0.1}, {"policy": ref}, "code")
    assert key == stage_key(*arguments[:2], {"policy": ArtifactRef("x", "y", "d")}, "code")
    others = [
        stage_key("sft", *arguments[1:]),
        stage_key("ppo", {"lr": 0.2, "a": 1}, *arguments[2:]),
        stage_key(*arguments[:2], {"policy": ArtifactRef("sft", "k", "e")}, "code"),
        stage_key(*arguments[:2], {"reference": ref}, "code"),
        stage_key(*arguments[:3], "other"),
    ]
    assert len({key, *others}) == 6


def test_limits_of_what_may_be_spent_take_no_part() -> None:
    """With a higher one the same work goes on; the address is a part, wherever it stands."""

    def key(**changes: Any) -> str:
        endpoint = {"model": "m", "input_price": 1.0, **changes}
        judge = {"endpoint": endpoint, "rubric": "harmlessness"}
        config = {"harmless": {"judge": judge, "categories": ["a"]}}
        return stage_key("s", values_in_key(EvaluateConfig.model_validate(config)), {}, "code")

    assert key() == key(max_cost=1.0) == key(max_cost=2.0, max_total_tokens=5)
    assert key() != key(model="n") and key() != key(input_price=2.0)
    assert values_in_key(EvaluateConfig()) == EvaluateConfig().model_dump(mode="json")


def test_changed_code_runs_again(context: StageContext, trainers: Path) -> None:
    path = trainers / "toy" / "engine" / "counter.py"
    code = path.read_text()
    first = count(context)
    try:
        path.write_text(code + "\n# a comment\n")
        assert count(context).cached
        path.write_text(code + "\nx = 1\n")
        second = count(context)
    finally:
        path.write_text(code)
    assert not second.cached
    assert second.ref.digest == first.ref.digest


@pytest.mark.slow
def test_code_that_changes_under_a_stage_is_not_published_as_either(
    context: StageContext, trainers: Path, plan: Any
) -> None:
    path = trainers / "toy" / "engine" / "counter.py"
    code = path.read_text()
    plan(sleep=0.3)
    edited = dataclasses.replace(context, on_progress=lambda _: path.write_text(code + "\nx = 2\n"))
    try:
        with pytest.raises(CodeChangedError, match="counter: its code on disk changed"):
            count(edited)
        assert context.store.objects.list("artifacts") == {}
        assert not list(context.settings.work.glob("counter-*"))
        again = count(edited)  # the code is as it will be: another key, and no change any more
    finally:
        path.write_text(code)
    assert not again.cached
    plan(sleep=0)
    assert count(context).ref.key != again.ref.key
