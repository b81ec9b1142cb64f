"""The Advantage Model weighed by several policies that wrote the comparisons [AM eq. 8, K > 1]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.functional.advantage import advantage_scores
from trimtab.models.nets.loading import load_policy, load_scorer, load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs, response_scores, reward_heads
from trimtab.models.stages.advantage_model import _log_ratios
from trimtab.models.training.data import read_pairs
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage


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
    found = _log_ratios(config, Stage(inputs, policy), pairs)
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


def test_it_scores_on_the_scale_that_it_was_trained_on(
    tmp_path: Path, config: Any, policy: Path, comparisons: Path
) -> None:
    """All comparisons are the policy's own: every ratio is 1, so that a = (N - K) / N (r - e)."""
    inputs = {"policy": policy, "preferences": comparisons, "behaviour": policy}
    output = run_stage("advantage_model", config, tmp_path, **inputs)
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    scorer = load_scorer(output / "model").eval()
    batch = pack(pairs.rows[:8])
    with torch.no_grad():
        rewards, expected = reward_heads(scorer, batch)
        assert expected is not None
        trained, _ = advantage_scores(rewards, expected, torch.zeros(16, 1), 4.0, 2.0)
        torch.testing.assert_close(response_scores(scorer, batch), trained)
    # MetaRM keeps the scale of the scorer that it starts from.
    save_model(scorer, load_tokenizer(policy / "model"), tmp_path / "again")
    assert load_scorer(tmp_path / "again").config.advantage_scale == 0.75


def test_how_often_the_clip_binds_is_logged(
    tmp_path: Path, config: Any, policy: Path, base: Path, comparisons: Path
) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    inputs = {"policy": policy, "behaviour_0": policy, "behaviour_1": base}
    ratios = _log_ratios(config, Stage(inputs, policy), pairs)
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
    with pytest.raises(ValueError, match="fewer than num_policies = 4, found 0"):
        _log_ratios(config, Stage({"policy": policy}, policy), pairs)
    many = {f"behaviour_{index}": policy for index in range(4)}
    with pytest.raises(ValueError, match="found 4"):
        _log_ratios(config, Stage({"policy": policy, **many}, policy), pairs)
