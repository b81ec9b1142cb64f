"""The toy stage: its config, a context for it, and running it. Its trainer lies in trainers/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trimtab.infra.settings import Settings
from trimtab.infra.store.store import open_store
from trimtab.infra.tracking.runs import Tracking
from trimtab.tasks.execution import StageContext, StageModules, StageResult, run_stage
from trimtab.tasks.resources import Share


class CounterConfig(BaseModel):
    """The toy stage's config."""

    total: int = 3
    comment: str = ""


def make_context(root: Path, tmp_path: Path) -> StageContext:
    """A context without MLflow, for the trainers below `root`."""
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path / "home")})
    modules = StageModules("toy.engine", root, "toy.entry", None)
    store = open_store(settings.store_url)
    return StageContext(settings, store, Tracking("", ""), modules=modules)


def count(context: StageContext, **options: Any) -> StageResult:
    """Run the stage, with `inputs` and `is_patient` if given and the rest as its config."""
    inputs, share = options.pop("inputs", {}), Share(is_patient=options.pop("is_patient", False))
    return run_stage(context, "counter", CounterConfig(**options), inputs, share=share)


def started_from(context: StageContext, result: StageResult) -> int:
    """The step that the trainer of this result continued from."""
    work = context.settings.work
    return int((work / f"started-counter-{result.ref.key[:16]}").read_text())
