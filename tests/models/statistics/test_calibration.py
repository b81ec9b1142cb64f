"""calibration: expected calibration error and its curve."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics.calibration import (
    Binning,
    calibration_curve,
    expected_calibration_error,
    likeliest_temperature,
    pair_confidence,
)

F64 = torch.float64

PROBABILITY = torch.tensor([0.1, 0.3, 0.6, 0.9, 1.0], dtype=F64)
CORRECT = torch.tensor([False, True, True, False, True])


# calibration_curve and expected_calibration_error


def test_width_by_hand() -> None:
    # Two bins, up to 0.5 and above. First: confidence 0.2, accuracy 1/2, gap 0.3, 2 examples.
    # Second: confidence 2.5/3, accuracy 2/3, gap 1/6, 3 examples. ECE 2/5 * 0.3 + 3/5 / 6 = 0.22.
    confidence, accuracy, count = calibration_curve(PROBABILITY, CORRECT, num_bins=2)
    assert count.tolist() == [2, 3]
    assert confidence.tolist() == pytest.approx([0.2, 2.5 / 3], abs=1e-12)
    assert accuracy.tolist() == pytest.approx([0.5, 2 / 3], abs=1e-12)
    error = expected_calibration_error(PROBABILITY, CORRECT, num_bins=2)
    assert error.item() == pytest.approx(0.22, abs=1e-12)


def test_shares_of_people_by_hand() -> None:
    # The bins above, of which the first holds shares 0.2 and 0.4, the second 0.9, 0.8 and 0.65:
    # gaps 0.1 and 0.05. ECE 2/5 * 0.1 + 3/5 * 0.05 = 0.07.
    low = PROBABILITY <= 0.5
    shares = torch.empty(5)
    shares[low], shares[~low] = torch.tensor([0.2, 0.4]), torch.tensor([0.9, 0.8, 0.65])
    error = expected_calibration_error(PROBABILITY, shares, num_bins=2)
    assert error.item() == pytest.approx(0.07, abs=1e-6)
    exact = expected_calibration_error(PROBABILITY, CORRECT.double(), num_bins=2)
    assert exact == expected_calibration_error(PROBABILITY, CORRECT, num_bins=2)


def test_mass_by_hand() -> None:
    # Two bins of 5 sorted examples: places 0, 1, 2 and 3, 4. First: confidence 1/3, accuracy
    # 2/3, gap 1/3. Second: 0.95, 1/2, gap 0.45. ECE 3/5 / 3 + 2/5 * 0.45 = 0.38.
    confidence, accuracy, count = calibration_curve(
        PROBABILITY, CORRECT, num_bins=2, binning="mass"
    )
    assert count.tolist() == [3, 2]
    assert confidence.tolist() == pytest.approx([1 / 3, 0.95], abs=1e-12)
    assert accuracy.tolist() == pytest.approx([2 / 3, 0.5], abs=1e-12)
    error = expected_calibration_error(PROBABILITY, CORRECT, num_bins=2, binning="mass")
    assert error.item() == pytest.approx(0.38, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bin_edges_belong_to_the_bin_below(dtype: torch.dtype) -> None:
    tenths = torch.arange(11, dtype=F64).div(10).to(dtype)
    _, _, count = calibration_curve(tenths, tenths > 0)
    # 0 and 0.1 in the first bin, then one each.
    assert count.tolist() == [2] + [1] * 9


@pytest.mark.parametrize("num_bins", [1, 3, 10])
def test_width_equals_loop(num_bins: int) -> None:
    probability, correct = torch.rand(50, dtype=F64), torch.rand(50) < 0.6
    error = 0.0
    for g in range(num_bins):
        low, high = g / num_bins, (g + 1) / num_bins
        members = [i for i in range(50) if low < probability[i].item() <= high]
        if members:
            confidence = sum(probability[i].item() for i in members) / len(members)
            accuracy = sum(bool(correct[i]) for i in members) / len(members)
            error += len(members) / 50 * abs(accuracy - confidence)
    got = expected_calibration_error(probability, correct, num_bins)
    assert got.item() == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_mass_equals_loop(num_bins: int) -> None:
    # Rounded to 0.05, so that many are equal; each run goes to the bin of its first place.
    probability = torch.rand(60, dtype=F64).mul(20).round().div(20)
    correct = torch.rand(60) < 0.6
    values = sorted(probability.tolist())
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for i in range(60):
        bins[values.index(probability[i].item()) * num_bins // 60].append(i)
    error = 0.0
    for members in bins:
        if members:
            confidence = sum(probability[i].item() for i in members) / len(members)
            accuracy = sum(bool(correct[i]) for i in members) / len(members)
            error += len(members) / 60 * abs(accuracy - confidence)
    got = expected_calibration_error(probability, correct, num_bins, "mass")
    assert got.item() == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_calibration_invariants(binning: Binning) -> None:
    probability = torch.rand(40, dtype=F64).mul(8).round().div(8)
    correct = torch.rand(40) < 0.5
    error = expected_calibration_error(probability, correct, 5, binning)
    shuffle = torch.randperm(40)
    again = expected_calibration_error(probability[shuffle], correct[shuffle], 5, binning)
    torch.testing.assert_close(again, error, rtol=0, atol=1e-12)
    # One bin: the gap of the overall means. Sure and right: 0. Sure and wrong: 1.
    whole = expected_calibration_error(probability, correct, 1, binning)
    gap = (probability.mean() - correct.double().mean()).abs()
    torch.testing.assert_close(whole, gap, rtol=0, atol=1e-12)
    ones, right = torch.ones(6), torch.ones(6, dtype=torch.bool)
    assert expected_calibration_error(ones, right, 10, binning).item() == 0.0
    assert expected_calibration_error(ones, ~right, 10, binning).item() == 1.0
    # The counts are all the examples; means of empty bins are NaN.
    confidence, accuracy, count = calibration_curve(probability, correct, 30, binning)
    assert count.sum().item() == 40
    assert confidence.isnan().equal(count == 0)
    assert accuracy.isnan().equal(count == 0)


def test_equal_mass_bins_are_equal_without_ties() -> None:
    probability = torch.randperm(40).double() / 40
    _, _, count = calibration_curve(probability, probability > 0.5, 8, "mass")
    assert count.tolist() == [5] * 8


def test_calibration_gradient_is_none_by_design() -> None:
    probability = torch.rand(5, requires_grad=True)
    assert not expected_calibration_error(probability, CORRECT).requires_grad


def test_calibration_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"probabilities must be in \[0, 1\]"):
        calibration_curve(PROBABILITY + 1, CORRECT)
    with pytest.raises(ValueError, match=r"probabilities must be in \[0, 1\]"):
        calibration_curve(PROBABILITY * torch.nan, CORRECT)
    with pytest.raises(ValueError, match="found 0"):
        calibration_curve(PROBABILITY, CORRECT, num_bins=0)
    with pytest.raises(ValueError, match="found 'size'"):
        calibration_curve(PROBABILITY, CORRECT, binning="size")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="correct must be"):
        calibration_curve(PROBABILITY, CORRECT.long())
    with pytest.raises(ValueError, match=r"shares that are right must be in \[0, 1\]"):
        calibration_curve(PROBABILITY, CORRECT * 1.5)


# pair_confidence


def test_pair_confidence_by_hand_and_loop() -> None:
    # Gap log 3 either way: confidence 3/4; the order is right only where the gap is positive.
    gap = torch.tensor([math.log(3), -math.log(3), 0.0], dtype=F64)
    confidence, correct = pair_confidence(gap)
    assert confidence.tolist() == pytest.approx([0.75, 0.75, 0.5], abs=1e-12)
    assert correct.tolist() == [True, False, False]
    gap = torch.randn(20, dtype=F64)
    confidence, correct = pair_confidence(gap)
    for i, value in enumerate(gap.tolist()):
        assert confidence[i].item() == pytest.approx(1 / (1 + math.exp(-abs(value))), abs=1e-12)
        assert bool(correct[i]) == (value > 0)


def test_pair_confidence_invariants_and_gradient() -> None:
    gap = torch.tensor([0.4, -1.3, 2.0], dtype=F64, requires_grad=True)
    confidence, correct = pair_confidence(gap)
    assert pair_confidence(-gap)[0].equal(confidence)
    assert pair_confidence(-gap)[1].equal(~correct)
    assert confidence.ge(0.5).all()
    assert torch.autograd.gradcheck(lambda g: pair_confidence(g)[0], gap)
    with pytest.raises(ShapeError, match="1 axes"):
        pair_confidence(torch.zeros(2, 2))


# auroc


def test_the_likeliest_temperature_makes_confidence_the_share_that_is_right() -> None:
    # Of equal gaps of 4 three in four are right: sigmoid(4 / T) = 3/4 at T = 4 / ln 3.
    gap = torch.tensor([4.0, 4.0, 4.0, -4.0], dtype=torch.float64)
    assert likeliest_temperature(gap) == pytest.approx(4 / math.log(3), rel=1e-3)
