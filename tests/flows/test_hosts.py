"""Every stage of the recipes of small models on hosts without, with one and with two GPUs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows import on_gpus_by_name
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline import experiment
from trimtab.flows.pipeline.run import PlannedRun, PlannedStage
from trimtab.infra.processes.gpus import hold_gpus
from trimtab.infra.settings import Settings
from trimtab.infra.store.store import open_store
from trimtab.infra.tracking.runs import Tracking
from trimtab.models.specs import StageSpec
from trimtab.tasks import stages
from trimtab.tasks.execution import StageContext, StageModules, run_stage
from trimtab.tasks.resources import Resources, Slot, share_of
from trimtab.tasks.stages import TASKS

SMALL = ("smoke", "default", "papers", "rlaif", "constitutional")


@dataclass
class Host(PlannedRun):
    """A run whose tasks are called, up to what `run_stage_task` would start them with on a host.

    shares: for each stage its name and its ranks, threads and GPUs.
    """

    settings: Settings = field(default_factory=Settings.from_env)
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)
    shares: list[tuple[str, Any]] = field(default_factory=list)

    def submit(
        self, spec: StageSpec, config: Any, *, wait_for: Sequence[Any] = (), **keywords: Any
    ) -> PlannedStage:
        def share(_: Any, config: Any, __: Any, ___: str, resources: Resources, ____: Any) -> Any:
            takes_gpu = spec.device == "gpu"
            found = share_of(self.settings, config, resources, takes_gpu=takes_gpu)
            self.shares.append((spec.name, found))
            return SimpleNamespace(summary={"collapsed": False}, cached=True)

        self.patch.setattr(stages, "run_stage_task", share)
        task = TASKS[spec.name]
        bound = inspect.signature(task.fn).bind(config, **keywords)
        bound.apply_defaults()
        task.fn(*bound.args, **bound.kwargs)
        return super().submit(spec, config, wait_for=wait_for, **keywords)


def _on(monkeypatch: pytest.MonkeyPatch, recipe: str, gpus: str, cores: int = 4) -> Host:
    env = {"CUDA_VISIBLE_DEVICES": gpus, "TRIMTAB_MAX_PARALLEL": str(cores)}
    host = Host(recipe_named(recipe), settings=Settings.from_env(env), patch=monkeypatch)
    experiment.rlhf(host)
    return host


@pytest.mark.parametrize("recipe", SMALL)
@pytest.mark.parametrize("gpus", ["", "0", "0,1"])
def test_recipes_of_small_models_run_on_any_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: str, gpus: str
) -> None:
    host = _on(monkeypatch, recipe, gpus)
    assert len(host.shares) > 20
    for _, share in host.shares:
        with hold_gpus(host.settings.gpus, share.num_devices, tmp_path) as mine:
            assert len(mine) <= 1
        if gpus:
            assert share.num_ranks == 1
        assert share.num_ranks * share.num_threads <= host.settings.max_parallel


def test_on_a_cpu_small_models_that_train_alone_have_a_rank_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores in (1, 2, 4):
        host = _on(monkeypatch, "smoke", "", cores)
        found = Counter(
            (stage, share.num_ranks, share.num_threads)
            for stage, share in host.shares
            if stage in ("sft", "meta_rm")
        )
        assert found == {("sft", cores, 1): 1, ("meta_rm", cores, 1): 1}, cores


@pytest.mark.slow
def test_members_of_hh_7b_train_at_once_on_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few GPUs a member as it fits on (its plan has a test), and all of a host at work."""
    members = recipe_named("hh-7b").ensemble
    at_once = on_gpus_by_name.NUM_GPUS // members.member.train.ranks
    assert at_once > 1 and members.size >= at_once
    (tmp_path / "meeting").mkdir()
    monkeypatch.setenv(on_gpus_by_name.MEETING, str(tmp_path / "meeting"))
    number = on_gpus_by_name.NUM_GPUS
    host = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(number))),
        "TRIMTAB_MAX_PARALLEL": str(number),
        "TRIMTAB_HOME": str(tmp_path / "home"),
    }
    settings = Settings.from_env(host)
    modules = StageModules(entry=on_gpus_by_name.__name__, preload=None)
    store = open_store(settings.store_url)
    context = StageContext(settings, store, Tracking("", ""), modules=modules)

    def train(index: int) -> bool:
        config = members.member.model_copy(update={"seed": index})
        resources = Resources(Slot(index, members.size))
        share = share_of(settings, config, resources, takes_gpu=True)
        return run_stage(context, "reward_model", config, {}, share=share).cached

    with ThreadPoolExecutor(at_once) as threads:
        assert not any(threads.map(train, range(at_once)))
