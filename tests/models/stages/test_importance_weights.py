"""The Advantage Model weighed by several policies that wrote the comparisons [AM eq. 8, K > 1]."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.functional.advantage import advantage_scores
from trimtab.models.functional.reward import ranking_loss
from trimtab.models.nets.loading import load_policy, load_scorer, load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs, response_scores, reward_heads
from trimtab.models.stages.advantage_model import (
    _importance,
    _log_ratios,
    advantage_of_pairs,
    margins_of,
)
from trimtab.models.training.data import read_pairs, write_rows
from trimtab.models.training.pair_batches import pair_batches_of
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path) -> Path:
    """The policy before SFT, which gives every token about the same probability."""
    config = smoke_config.sft.model_copy(update={"fine_tune": False})
    return run_stage("sft", config, tmp_path_factory.mktemp("base"), data=world)


@pytest.fixture
def config(smoke_config: Any) -> Any:
    return smoke_config.advantage_model.model_copy(
        update={"use_importance_weights": True, "num_policies": 4.0}
    )


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


@pytest.mark.parametrize(("baseline", "scale"), [("itself", 0.75), ("other", 1.0)])
def test_it_scores_on_the_scale_that_it_was_trained_on(
    tmp_path: Path, config: Any, policy: Path, comparisons: Path, baseline: str, scale: float
) -> None:
    """All comparisons are the policy's own: every ratio is 1, so that eq. 8 as printed is
    (N - K) / N (r - e); weighed against the other answer it is r - e whatever the ratios."""
    inputs = {"policy": policy, "preferences": comparisons, "behaviour": policy}
    config = config.model_copy(update={"importance_baseline": baseline})
    output = run_stage("advantage_model", config, tmp_path, **inputs)
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    scorer = load_scorer(output / "model").eval()
    batch = pack(pairs.rows[:8])
    with torch.no_grad():
        rewards, expected = reward_heads(scorer, batch)
        assert expected is not None
        trained = rewards - expected
        if baseline == "itself":
            trained, _ = advantage_scores(rewards, expected, torch.zeros(16, 1), 4.0, 2.0)
        torch.testing.assert_close(response_scores(scorer, batch), trained)
    # MetaRM keeps the scale of the scorer that it starts from.
    save_model(scorer, load_tokenizer(policy / "model"), tmp_path / "again")
    assert load_scorer(tmp_path / "again").config.advantage_scale == scale


def test_what_is_ranked_in_training_is_what_is_answered_in_use(
    config: Any, policy: Path, base: Path, comparisons: Path
) -> None:
    """Whatever the ratios, the loss ranks r - e; as printed, ratios change the ranking."""
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    stage = Stage({"policy": policy, "behaviour_0": policy, "behaviour_1": base}, policy)
    compared = pair_batches_of(pairs).compared(range(8))
    rewards, expected = torch.randn(2, 16)
    gap = rewards[compared.better] - rewards[compared.worse]
    gap -= expected[compared.better] - expected[compared.worse]
    in_use = ranking_loss(gap, torch.zeros(8))[0]
    for baseline, is_same in (("other", True), ("itself", False)):
        weighing = config.model_copy(update={"importance_baseline": baseline, "num_policies": 16.0})
        importance = _importance(weighing, stage, pairs)
        _, metrics = advantage_of_pairs(weighing, None, importance, rewards, expected, compared)
        trained = metrics["ranking_loss"]
        assert torch.allclose(trained, in_use, atol=1e-6) == is_same
    assert float(importance.weight_sums.max()) > 4


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
    config: Any, policy: Path, base: Path, comparisons: Path
) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    with pytest.raises(ValueError, match="fewer than num_policies = 4, found 0"):
        _log_ratios(config, Stage({"policy": policy}, policy), pairs)
    strangers = {"policy": policy, "behaviour_0": policy, "behaviour_1": base}
    itself = config.model_copy(update={"importance_baseline": "itself"})
    with pytest.raises(ValueError, match="above the largest sum of importance weights, .* found 4"):
        _importance(itself, Stage(strangers, policy), pairs)
    many = {f"behaviour_{index}": policy for index in range(4)}
    with pytest.raises(ValueError, match="found 4"):
        _log_ratios(config, Stage({"policy": policy, **many}, policy), pairs)


def test_bounds_go_by_the_labels_probability(config: Any, policy: Path, comparisons: Path) -> None:
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    label = torch.full_like(pairs.label, 0.5)
    label[:3] = torch.tensor([1.0, 0.7, 0.2])
    pairs = replace(pairs, label=label)
    by_label = config.model_copy(update={"margin_by": "label"})
    margins = margins_of(by_label, Stage({}, policy), pairs)
    assert margins is not None
    by_hand = [2.5, 1.5 * math.log(7 / 3), -1.5 * math.log(4), 0.0]
    assert margins[:4].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_bounds_go_by_the_strength_in_the_order_after_the_flip(
    tmp_path: Path, config: Any, policy: Path, comparisons: Path
) -> None:
    """Strengths of 8 that are right three times in four are log-odds of ln 3."""
    pairs = read_pairs(comparisons / "train.jsonl", load_tokenizer(policy / "model"))
    signs = [-1 if index % 4 == 3 else 1 for index in range(len(pairs.rows) // 4 * 4)]
    pairs = replace(
        pairs,
        records=[
            {"id": record["id"], "is_flipped": sign < 0 and index % 8 == 3}
            for index, (record, sign) in enumerate(zip(pairs.records, signs, strict=False))
        ],
    )
    votes = [
        {"id": record["id"], "split": "train", "strength_mean": 8.0 * sign}
        for record, sign in zip(pairs.records, signs, strict=True)
    ]
    votes.append({"id": "another", "split": "test", "strength_mean": -1e6})
    write_rows(tmp_path / "strength.jsonl", votes)
    by_strength = config.model_copy(update={"margin_by": "strength"})
    margins = margins_of(by_strength, Stage({"strength": tmp_path}, policy), pairs)
    assert margins is not None
    bound = 1.5 * math.log(3)
    by_hand = [bound, bound, bound, bound, bound, bound, bound, -bound]
    assert margins[:8].tolist() == pytest.approx(by_hand, rel=1e-3)
    # A person's verdict comes before the vote.
    records = [{**record, "review": None} for record in pairs.records]
    records[3]["review"], records[7]["review"] = "flip", "keep"
    reviewed = margins_of(
        by_strength, Stage({"strength": tmp_path}, policy), replace(pairs, records=records)
    )
    assert reviewed is not None
    by_hand[3] = by_hand[7] = 2.5
    assert reviewed[:8].tolist() == pytest.approx(by_hand, rel=1e-3)
    with pytest.raises(ValueError, match="needs the input `strength`"):
        margins_of(by_strength, Stage({}, policy), pairs)
