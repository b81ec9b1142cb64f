"""Runs without Prefect and MLflow: stages are computed where they are submitted, by trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.pipeline.run import Run
from trimtab.infra.settings import Settings
from trimtab.infra.store.store import open_store
from trimtab.infra.tracking.runs import Tracking
from trimtab.models.specs import StageSpec
from trimtab.tasks.cache_key import StageModules
from trimtab.tasks.context import WEIGHTS
from trimtab.tasks.execution import StageContext, StageResult, run_stage


class Done:
    """What a task's future is once the stage has run."""

    def __init__(self, found: StageResult) -> None:
        self.found = found
        self.state = self

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def is_completed(self) -> bool:
        """A stage that fails raises at once."""
        return True

    def result(self) -> StageResult:
        """The stage's artifact."""
        return self.found


def _refs(given: Any) -> Any:
    """The artifacts that futures, or lists or dictionaries of them, stand for."""
    if isinstance(given, dict):
        return {name: _refs(each) for name, each in given.items()}
    if isinstance(given, list):
        return [_refs(each) for each in given]
    return given.result().ref if isinstance(given, Done) else given.ref


def submit_directly(home: Path, preload: str, monkeypatch: pytest.MonkeyPatch) -> StageContext:
    """Have runs compute their stages; `preload`: what the fork server of their trainers loads."""
    settings = Settings.from_env({"TRIMTAB_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""})
    modules = StageModules(preload=preload)
    context = StageContext(
        settings, open_store(settings.store_url), Tracking("", ""), modules=modules
    )

    def submit(run: Run, spec: StageSpec, config: Any, **keywords: Any) -> Done:
        given = {name: keywords[name] for name in spec.inputs if keywords.get(name) is not None}
        inputs = spec.named({name: _refs(each) for name, each in given.items()})
        spec.check(inputs)
        without = () if spec.reads_weights else WEIGHTS
        return Done(run_stage(context, spec.name, config, inputs, without=without))

    monkeypatch.setattr(Run, "submit", submit)
    return context
