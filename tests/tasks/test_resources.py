"""How many threads, ranks and GPUs a stage gets."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.infra.settings import Settings
from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.config.training import TrainConfig, ZeroConfig
from trimtab.tasks.resources import ALONE, Resources, Share, Slot, cores_of, share_of


@pytest.mark.parametrize(
    ("number", "cores", "threads"),
    [
        (5, 2, [1, 1, 1, 1, 2]),
        (4, 2, [1, 1, 1, 1]),
        (3, 8, [2, 2, 2]),
        (10, 4, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_like_stages_leave_no_core_idle(number: int, cores: int, threads: list[int]) -> None:
    assert [cores_of(Slot(index, number), cores) for index in range(number)] == threads


def test_one_alone_gets_all_and_one_among_others_gets_one() -> None:
    assert cores_of(ALONE, 6) == 6
    assert cores_of(None, 6) == 1


@pytest.mark.parametrize(
    ("visible", "train", "share"),
    [
        ("", {}, (1, 6, 1)),  # threads of one rank, or ranks: here ranks, and one slot
        ("", {"batch_size": 4}, (1, 4, 1)),  # a rank without rows would pass them all
        ("", {"batch_size": 2}, (3, 2, 1)),
        ("", {"num_ranks": 1}, (6, 1, 1)),  # a number is kept to
        ("", {"num_ranks": 2}, (3, 2, 1)),
        ("", {"num_ranks": 2, "zero": ZeroConfig()}, (3, 2, 2)),
        ("", {"zero": ZeroConfig()}, (6, 1, 1)),
        ("0", {}, (6, 1, 1)),
        ("0,1", {}, (6, 1, 1)),
        ("0,1", {"num_ranks": 2}, (3, 2, 2)),
    ],
)
def test_ranks_have_a_gpu_each_or_share_out_the_cores(
    visible: str, train: dict[str, Any], share: tuple[int, int, int]
) -> None:
    settings = Settings.from_env({"TRIMTAB_MAX_PARALLEL": "6", "CUDA_VISIBLE_DEVICES": visible})
    config = RewardModelConfig(train=TrainConfig(**train))
    resources = Resources(ALONE, by_ranks=True)
    assert share_of(settings, config, resources, takes_gpu=True) == Share(*share)
    assert share_of(settings, config, resources, takes_gpu=False).num_devices == 0


def test_stages_that_sample_have_the_ranks_they_ask_for() -> None:
    """And one that compares what was sampled, with the same configuration, has one on its CPU."""
    host = {"TRIMTAB_MAX_PARALLEL": "6", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    settings, resources = Settings.from_env(host), Resources(ALONE, by_ranks=True)
    for config in (EvaluateConfig(num_ranks=3), RehearsalConfig(num_ranks=3)):
        assert share_of(settings, config, resources, takes_gpu=True) == Share(2, 3, 3)
        assert share_of(settings, config, resources, takes_gpu=False) == Share(6, 1, 0)
    assert share_of(settings, EvaluateConfig(), resources, takes_gpu=True) == Share(6, 1, 1)
    no_gpus = Settings.from_env({"TRIMTAB_MAX_PARALLEL": "6", "CUDA_VISIBLE_DEVICES": ""})
    assert share_of(no_gpus, EvaluateConfig(num_ranks=3), resources, takes_gpu=True).num_ranks == 3
    assert share_of(no_gpus, EvaluateConfig(), resources, takes_gpu=True).num_ranks == 6
