"""Fixtures that tests of models share: tiny models, records, jobs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.flows.config.recipes.synthetic import smoke
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.specs import SPECS
from trimtab.models.training.stage import Stage

RunStage = Callable[..., Path]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run_stage(name: str, config: Any, workdir: Path, **inputs: Path) -> Path:
    """Run a stage here; returns its output folder."""
    workdir.mkdir(parents=True, exist_ok=True)
    SPECS[name].check(inputs)
    importlib.import_module(f"trimtab.models.stages.{name}").run(config, Stage(inputs, workdir))
    return workdir / "output"


@pytest.fixture(scope="session")
def smoke_config() -> Any:
    return smoke()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any) -> Path:
    return run_stage("world", smoke_config.world, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path) -> Path:
    torch.set_num_threads(1)
    return run_stage("sft", smoke_config.sft, tmp_path_factory.mktemp("sft"), data=world)


@pytest.fixture(scope="session")
def comparisons(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path, policy: Path
) -> Path:
    folder = tmp_path_factory.mktemp("comparisons")
    return run_stage("comparisons", smoke_config.comparisons, folder, data=world, policy=policy)


@pytest.fixture(scope="session")
def advantage_model(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, comparisons: Path
) -> Path:
    folder = tmp_path_factory.mktemp("advantage_model")
    return run_stage(
        "advantage_model",
        smoke_config.advantage_model,
        folder,
        policy=policy,
        preferences=comparisons,
    )


@pytest.fixture(scope="session")
def reward_model(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, comparisons: Path
) -> Path:
    folder = tmp_path_factory.mktemp("reward_model")
    return run_stage(
        "reward_model", smoke_config.reward_model, folder, policy=policy, preferences=comparisons
    )


@pytest.fixture(scope="session")
def several_scorers(advantage_model: Path, reward_model: Path) -> dict[str, Path]:
    """An ensemble of two, and one of them for safety as well."""
    ensemble = {"scorer_0": advantage_model, "scorer_1": reward_model}
    return {**ensemble, "safety_scorer": reward_model}


@pytest.fixture
def narrow_products() -> Iterator[None]:
    """Trunks multiply in bfloat16, in this process."""
    set_product_precision("bfloat16")
    yield
    set_product_precision("float32")
