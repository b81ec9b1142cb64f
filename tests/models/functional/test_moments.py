"""moments: the running mean and variance of the score history."""

import json
import math

import pytest
import torch

from trimtab.models.functional.ppo import RunningMoments

F64 = torch.float64


def test_moments_by_hand() -> None:
    # 1, 3: mean 2, variance 1. Then 5, 7: all four have mean 4, variance (9 + 1 + 1 + 9)/4 = 5.
    moments = RunningMoments()
    moments.update(torch.tensor([1.0, 3.0]))
    assert (moments.count, moments.mean, moments.var, moments.std) == (2.0, 2.0, 1.0, 1.0)
    moments.update(torch.tensor([[5.0], [7.0]]))
    assert (moments.count, moments.mean, moments.var) == (4.0, 4.0, 5.0)
    assert moments.std == pytest.approx(math.sqrt(5), abs=1e-12)


def test_batches_equal_all_at_once() -> None:
    scores = 1e3 + torch.randn(200, dtype=F64)
    moments = RunningMoments()
    for batch in scores.split([1, 3, 46, 100, 50]):
        moments.update(batch)
    values = scores.tolist()
    mean = sum(values) / 200
    var = sum((v - mean) ** 2 for v in values) / 200
    assert moments.count == 200
    assert moments.mean == pytest.approx(mean, abs=1e-9)
    assert moments.var == pytest.approx(var, abs=1e-9)


def test_merged_ranks_equal_one_rank() -> None:
    scores = torch.randn(30, dtype=F64)
    ranks = RunningMoments(), RunningMoments()
    ranks[0].update(scores[:11])
    ranks[1].update(scores[11:])
    ranks[0].merge(**ranks[1].state_dict())
    whole = RunningMoments()
    whole.update(scores)
    assert ranks[0].state_dict() == pytest.approx(whole.state_dict(), abs=1e-12)


def test_empty_changes_nothing_and_before_data_is_the_identity() -> None:
    moments = RunningMoments()
    assert (moments.mean, moments.std) == (0.0, 1.0)
    moments.update(torch.zeros(0))
    moments.merge(0.0, 5.0, 5.0)
    assert moments == RunningMoments()
    # A single score has no spread.
    moments.update(torch.tensor(3.0))
    assert (moments.count, moments.mean, moments.std) == (1.0, 3.0, 0.0)


def test_state_survives_json_bit_for_bit() -> None:
    moments, again = RunningMoments(), RunningMoments()
    moments.update(torch.randn(7))
    again.load_state_dict(json.loads(json.dumps(moments.state_dict())))
    assert again == moments
    more = torch.randn(4)
    moments.update(more)
    again.update(more)
    assert again == moments


def test_half_precision_scores_are_summed_in_float64() -> None:
    moments = RunningMoments()
    moments.update(torch.full((1000,), 0.1, dtype=torch.bfloat16))
    assert moments.mean == pytest.approx(torch.tensor(0.1).bfloat16().item(), abs=1e-15)
    assert moments.var == pytest.approx(0.0, abs=1e-20)


def test_scores_that_are_not_finite_are_refused_and_leave_the_history() -> None:
    moments = RunningMoments(2.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        moments.update(torch.tensor([0.0, torch.nan]))
    assert moments == RunningMoments(2.0, 1.0, 1.0)
    with pytest.raises(KeyError):
        moments.load_state_dict({"count": 1.0})
