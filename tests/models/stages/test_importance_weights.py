"""The Advantage Model weighed by several policies that wrote the comparisons [AM eq. 8, K > 1]."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.advantage_model import _log_ratios
from trimtab.models.training.data import read_pairs
from trimtab.models.training.progress import read_metrics


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path) -> Path:
    """The policy before SFT, which gives every token about the same probability."""
    config = smoke_config.sft.model_copy(update={"fine_tune": False})
    return run_stage("sft", config, tmp_path_factory.mktemp("base"), data=world)


@pytest.fixture
def config(smoke_config: Any) -> Any:
    return smoke_config.advantage_model.model_copy(update={"use_importance_weights": True})


def test_log_ratios_are_those_of_each_policy_by_itself(
    config: Any, policy: Path, base: Path, comparisons: Path
) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    inputs = {"policy": policy, "behaviour_0": policy, "behaviour_1": base}
    found = _log_ratios(config, inputs, pairs)
    assert found.shape == (len(pairs.rows), 2, 2)
    assert not found[:, :, 0].any()
    models = [load_policy(folder / "model").eval() for folder in (policy, base)]
    for index in range(0, len(pairs.rows), 9):
        row = pairs.rows[index]
        for place, response in enumerate(row.responses):
            with torch.no_grad():
                ours, theirs = (
                    response_logprobs(model, pack([Candidates(row.prompt, (response,))]))[0].sum()
                    for model in models
                )
            expected = float(ours - theirs) / len(response)
            assert float(found[index, place, 1]) == pytest.approx(expected, abs=1e-4)


def test_where_all_comparisons_are_its_own_nothing_is_left_to_learn(
    tmp_path: Path, config: Any, policy: Path, comparisons: Path
) -> None:
    """K = N and every ratio 1: a = r - r. The loss stays log 2 + 2 log(1 + e^-m), m = 2.5."""
    config = config.model_copy(update={"num_policies": 2.0})
    inputs = {"policy": policy, "preferences": comparisons}
    several = {**inputs, "behaviour_0": policy, "behaviour_1": policy}
    output = run_stage("advantage_model", config, tmp_path, **several)
    constant = math.log(2) + 2 * math.log1p(math.exp(-2.5))
    for row in read_metrics(tmp_path / "metrics.jsonl"):
        assert row["loss"] == pytest.approx(constant, abs=1e-6)
        assert row["log_ratio_clip_fraction"] == 0.0
    ours, start = (load_file(f / "model/model.safetensors") for f in (output, policy))
    for name, value in start.items():
        if name in ours:
            torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=1e-5)


def test_how_often_the_clip_binds_is_logged(
    tmp_path: Path, config: Any, policy: Path, base: Path, comparisons: Path
) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    inputs = {"policy": policy, "behaviour_0": policy, "behaviour_1": base}
    ratios = _log_ratios(config, inputs, pairs)
    clip = float(ratios[:, :, 1].abs().median())
    train = config.train.model_copy(update={"batch_size": len(pairs.rows)})
    config = config.model_copy(update={"log_ratio_clip": clip, "train": train})
    run_stage("advantage_model", config, tmp_path, preferences=comparisons, **inputs)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    share = float((ratios.abs() > clip).float().mean())
    assert 0.2 < share < 0.3  # half of those of one policy in two
    assert row["log_ratio_clip_fraction"] == pytest.approx(share, abs=1e-5)


def test_too_few_or_too_many_policies_are_refused(
    config: Any, policy: Path, comparisons: Path
) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    with pytest.raises(ValueError, match="from 1 to num_policies = 4 of them, found 0"):
        _log_ratios(config, {"policy": policy}, pairs)
    many = {f"behaviour_{index}": policy for index in range(5)}
    with pytest.raises(ValueError, match="found 5"):
        _log_ratios(config, {"policy": policy, **many}, pairs)
