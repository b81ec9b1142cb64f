"""Rehearsal's prompts, and its clusters: every algorithm finds groups that are far apart, the same
ones again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.nets.generation import Samples
from trimtab.models.stages.rehearsal import fit_clusters, rank_values, read_prompts
from trimtab.models.training.stage import Stage


@pytest.mark.parametrize("algorithm", ["kmeans", "mini_batch_kmeans", "gaussian_mixture"])
def test_groups_far_apart_are_the_clusters(algorithm: str) -> None:
    generator = np.random.default_rng(0)
    group = np.arange(5_000) % 4
    points = 10 * np.eye(4, 8)[group] + generator.normal(size=(5_000, 8))
    config = RehearsalConfig(algorithm=algorithm, num_clusters=4)
    found, nearest = fit_clusters(points.astype(np.float32), config)
    for number in range(4):
        assert len(found[torch.tensor(group == number)].unique()) == 1
    assert len(found.unique()) == 4
    assert torch.equal(fit_clusters(points.astype(np.float32), config)[0], found)
    # Others near a group are of its cluster.
    others = 10 * np.eye(4, 8) + generator.normal(size=(4, 8))
    assert nearest(others.astype(np.float32)).tolist() == found[:4].tolist()
    few, _ = fit_clusters(points[:3].astype(np.float32), config)
    assert sorted(few.tolist()) == [0, 1, 2]


def test_prompts_are_those_of_ppo_or_of_the_demonstrations_each_once(tmp_path: Path) -> None:
    rows = {"policy_prompts": ["p"], "demonstrations": ["a", "b", "a", ""]}
    for name, prompts in rows.items():
        lines = [json.dumps({"prompt": prompt, "category": prompt}) for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    own, shown = (
        read_prompts(RehearsalConfig(prompts=prompts), Stage({"data": tmp_path}, tmp_path))
        for prompts in ("policy", "demonstrations")
    )
    assert [row["prompt"] for row in own] == ["p"]
    assert [row["prompt"] for row in shown] == ["a", "b"]
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps({"prompt": ""}))
    with pytest.raises(ValueError, match="none of them has a prompt"):
        read_prompts(RehearsalConfig(prompts="demonstrations"), Stage({"data": tmp_path}, tmp_path))


def test_examples_are_ranked_by_score_by_entropy_a_token_or_by_length() -> None:
    # Entropy a token: .5, 1, .25; tokens: 1, 2, 4.
    entropies = torch.tensor([[0.5, 0, 0, 0], [1.5, 0.5, 0, 0], [0.25] * 4])
    sampled = Samples([[7], [7, 8], [7, 8, 9, 2]], torch.zeros(3, 4), entropies)
    scores = torch.tensor([0.0, 2.0, 1.0])
    best = {
        criterion: rank_values(RehearsalConfig(criterion=criterion), scores, sampled)
        .argsort(descending=True)
        .tolist()
        for criterion in ("score", "entropy", "length")
    }
    assert best == {"score": [1, 2, 0], "entropy": [2, 0, 1], "length": [0, 1, 2]}
    many = Samples([[7]] * 100, torch.zeros(100, 1), torch.zeros(100, 1))
    one, again, other = (
        rank_values(RehearsalConfig(criterion="random", seed=seed), torch.zeros(100), many)
        for seed in (0, 0, 1)
    )
    assert one.equal(again) and not one.equal(other) and len(one.unique()) == 100
