"""What the stages of a run share, and what one call of `run_stage` takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.launch import ENTRY, PRELOAD
from infra.settings import Settings
from infra.storage import Store, open_store
from infra.tracking import TrackedRun, Tracking
from models.data.records import ArtifactRef
from tasks.code_version import ROOT


class StageInputError(ValueError):
    """An input that is not in the store, or not what the reference says."""


class StageOutputError(Exception):
    """A trainer ended well but left no usable output."""


@dataclass(frozen=True)
class Progress:
    """What a running stage reports: work done of the total, and the newest value of each metric."""

    stage: str
    name: str
    done: int
    total: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Trainers:
    """Where stages are found: their package and its root folder, entry and preload modules."""

    package: str = "models.stages"
    root: Path = ROOT
    entry: str = ENTRY
    preload: str | None = PRELOAD


def no_slots(count: int) -> AbstractContextManager[None]:
    """The slots of a stage that takes no device."""
    return nullcontext()


@dataclass(frozen=True)
class StageContext:
    """What all stages of a run share.

    `parent` is the MLflow run that those of the stages nest in, None without one. `device_slots`
    is held around a trainer, for as many devices as it takes; those of this machine's cores are the
    engine's own. `secrets` are environment variables for the trainer alone, asked for when there is
    one.
    """

    settings: Settings
    store: Store
    tracking: Tracking
    parent: TrackedRun | None = None
    seed: int = 0
    on_progress: Callable[[Progress], None] | None = None
    trainers: Trainers = field(default_factory=Trainers)
    device_slots: Callable[[int], AbstractContextManager[None]] = no_slots
    secrets: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def open(cls, settings: Settings, experiment: str, **more: Any) -> StageContext:
        """Open the store and the tracking that `settings` name."""
        tracking = Tracking.from_settings(settings, experiment)
        return cls(settings, open_store(settings.store_url), tracking, **more)


@dataclass(frozen=True)
class StageResult:
    """A stage's artifact, its final numbers, and whether and how long it had to be computed."""

    ref: ArtifactRef
    summary: dict[str, Any]
    cached: bool
    seconds: float


@dataclass(frozen=True)
class StageJob:
    """One call of run_stage, resolved; `without` are folders of inputs that it does not read."""

    stage: str
    name: str
    key: str
    config: dict[str, Any]
    inputs: Mapping[str, ArtifactRef]
    code: str
    workdir: Path
    num_threads: int
    num_ranks: int
    without: Collection[str] = ()
    gpus: tuple[str, ...] = ()
