"""MetaRM's ascent under ZeRO: on each rank's own part, the same as with whole parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.jobs import job, launch
from trimtab.models.config.training import ZeroConfig
from trimtab.models.training.progress import read_metrics

pytestmark = pytest.mark.slow

WEIGHTS = "output/model/model.safetensors"


@pytest.fixture(scope="module")
def config(smoke_config: Any) -> Any:
    """A step takes several micro batches, and not all ranks equally many."""
    config = smoke_config.rounds.meta_rm
    train = {"micro_batch_tokens": 150, "checkpoint_every": 1000}
    changes = {"ascent_length": 2.0, "train": config.train.model_copy(update=train)}
    return config.model_copy(update=changes)


@pytest.fixture(scope="module")
def inputs(world: Path, policy: Path, comparisons: Path, advantage_model: Path) -> dict[str, Path]:
    scorer = {"policy": policy, "scorer": advantage_model}
    return {"data": world, "preferences": comparisons, **scorer}


def _launch(folder: Path, config: Any, inputs: dict[str, Path], **train: Any) -> list[Any]:
    """Run it on two ranks; returns what each noted of its ascents."""
    content = job(folder, config, inputs["data"], 2, "meta_rm", inputs, **train)
    launch(content, entry="tests.models.watched_ascent")
    return [json.loads(path.read_text()) for path in (folder / "ascents").iterdir()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, config: Any, inputs: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    _launch(folder, config, inputs)
    return folder


@pytest.mark.parametrize("zero", [(2, False), (3, False), (2, True), (3, True)])
def test_it_is_that_of_whole_parameters_and_is_undone(
    tmp_path: Path, config: Any, inputs: dict[str, Path], whole: Path, zero: tuple[int, bool]
) -> None:
    """Equal to the order of float32 sums over 16 prompts and pairs, and what follows from it."""
    stage, offload = zero
    ranks = _launch(tmp_path, config, inputs, zero=ZeroConfig(stage=stage, offload=offload))
    rows, others = (read_metrics(folder / "metrics.jsonl") for folder in (tmp_path, whole))
    assert len(rows) == len(others) > 3
    for row, other in zip(rows[:3], others, strict=False):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
    for name, value in load_file(whole / WEIGHTS).items():
        found = load_file(tmp_path / WEIGHTS)[name]
        assert (found - value).abs().max() < 2e-3 * value.abs().max(), name
    _assert_undone(ranks, len(rows))


@pytest.mark.narrow
@pytest.mark.parametrize("stage", [2, 3])
def test_narrow_parameters_are_undone(
    tmp_path: Path, config: Any, inputs: dict[str, Path], whole: Path, stage: int
) -> None:
    zero = ZeroConfig(stage=stage)
    ranks = _launch(tmp_path, config, inputs, zero=zero, precision="bfloat16")
    rows, others = (read_metrics(folder / "metrics.jsonl") for folder in (tmp_path, whole))
    _assert_undone(ranks, len(rows))
    # The length is of the gradient that is asked for; rounding is not in it.
    assert rows[0]["ascent_length"] == pytest.approx(2.0)
    assert rows[0]["loss"] == pytest.approx(others[0]["loss"], rel=0.05)


def _assert_undone(ranks: list[list[dict[str, Any]]], num_steps: int) -> None:
    assert len(ranks) == 2
    for ascents in ranks:
        assert len(ascents) == num_steps
        for ascent in ascents:
            assert ascent["after"] == ascent["before"]
            assert ascent["moved"]["parameters"] != ascent["before"]["parameters"]
        assert len({ascent["before"]["parameters"] for ascent in ascents}) == num_steps
