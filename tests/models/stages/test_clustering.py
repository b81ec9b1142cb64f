"""Rehearsal's clusters: every algorithm finds groups that are far apart, the same ones again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.stages.rehearsal import cluster_of


@pytest.mark.parametrize("algorithm", ["kmeans", "mini_batch_kmeans", "gaussian_mixture"])
def test_groups_far_apart_are_the_clusters(algorithm: str) -> None:
    generator = np.random.default_rng(0)
    group = np.arange(5_000) % 4
    points = 10 * np.eye(4, 8)[group] + generator.normal(size=(5_000, 8))
    config = RehearsalConfig(algorithm=algorithm, num_clusters=4)
    found = cluster_of(points.astype(np.float32), config)
    for number in range(4):
        assert len(found[torch.tensor(group == number)].unique()) == 1
    assert len(found.unique()) == 4
    assert torch.equal(cluster_of(points.astype(np.float32), config), found)
    few = cluster_of(points[:3].astype(np.float32), config)
    assert sorted(few.tolist()) == [0, 1, 2]
