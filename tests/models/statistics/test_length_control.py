"""length_control: the regression on lengths, and the win rate at equal length."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.statistics.win_rates import length_control_loss, length_controlled_win_rate

F64 = torch.float64


def _games(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Wins, ties and losses, and differences of lengths."""
    outcome = torch.randint(0, 3, (count,)).double() / 2
    return outcome, torch.randint(-6, 7, (count,)).double()


# length_control_loss


def test_loss_by_hand() -> None:
    # Differences 3 and -3 have a deviation of 3: tanh(1) and -tanh(1). At theta 0.5, phi 2 the
    # logits are 0.5 + 2 t and 0.5 - 2 t; one win, one tie; penalty 3 / 2 * 2^2 = 6.
    t = math.tanh(1)
    outcome, difference = torch.tensor([1.0, 0.5], dtype=F64), torch.tensor([3.0, -3.0], dtype=F64)
    loss = length_control_loss(torch.tensor([0.5, 2.0], dtype=F64), outcome, difference, 3.0)
    won = math.log(1 + math.exp(-(0.5 + 2 * t)))
    z = 0.5 - 2 * t
    tied = (math.log(1 + math.exp(-z)) + math.log(1 + math.exp(z))) / 2
    assert float(loss) == pytest.approx(won + tied + 6)


def test_loss_equals_loop() -> None:
    outcome, difference = _games()
    coefficients = torch.randn(2, dtype=F64)
    theta, phi = coefficients.tolist()
    values = difference.tolist()
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    loss = 0.7 / 2 * phi**2
    for won, value in zip(outcome.tolist(), values, strict=True):
        chance = 1 / (1 + math.exp(-(theta + phi * math.tanh(value / std))))
        loss -= won * math.log(chance) + (1 - won) * math.log(1 - chance)
    found = length_control_loss(coefficients, outcome, difference, 0.7)
    assert float(found) == pytest.approx(loss, abs=1e-9)


def test_loss_invariants() -> None:
    outcome, difference = _games()
    coefficients = torch.randn(2, dtype=F64)
    loss = length_control_loss(coefficients, outcome, difference, 0.5)
    swapped = coefficients * torch.tensor([-1.0, 1.0], dtype=F64)
    torch.testing.assert_close(length_control_loss(swapped, 1 - outcome, -difference, 0.5), loss)
    torch.testing.assert_close(
        length_control_loss(coefficients, outcome, 7 * difference, 0.5), loss
    )


def test_loss_gradient() -> None:
    outcome, difference = _games(8)
    coefficients = torch.randn(2, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda values: length_control_loss(values, outcome, difference, 0.5), (coefficients,)
    )


# length_controlled_win_rate


def test_longer_always_wins() -> None:
    """Length explains everything: at equal length nobody is ahead."""
    difference = torch.tensor([4.0, 1.0, -1.0, -4.0], dtype=F64)
    rate, found = length_controlled_win_rate((difference > 0).double(), difference)
    assert float(rate) == pytest.approx(0.5, abs=1e-9)
    assert float(found["length_effect"]) > 0


def test_what_is_won_by_being_longer_more_often_is_taken_away() -> None:
    """The longer wins 9 times in 10, and ours is longer 30 times in 40: 70 % won, 50 % controlled.

    The logits of the two lengths are log 9 and -log 9, whose mean is 0.
    """
    difference = torch.tensor([4.0] * 30 + [-4.0] * 10, dtype=F64)
    outcome = torch.tensor([1.0] * 27 + [0.0] * 3 + [1.0] + [0.0] * 9, dtype=F64)
    assert float(outcome.mean()) == pytest.approx(0.7)
    rate, _ = length_controlled_win_rate(outcome, difference, ridge=1e-9)
    assert float(rate) == pytest.approx(0.5, abs=1e-6)


def test_by_hand_from_two_lengths() -> None:
    """With a vanishing penalty each length has its own share of wins, and theta is in between.

    Of longer answers (tanh 1) 9 in 10 win, of shorter ones (-tanh 1) 6 in 10: the logits are log 9
    and log 1.5, and their mean, log 13.5 / 2, is that of equal length.
    """
    difference = torch.tensor([2.0] * 10 + [-2.0] * 10, dtype=F64)
    outcome = torch.tensor([1.0] * 9 + [0.0] + [1.0] * 6 + [0.0] * 4, dtype=F64)
    rate, found = length_controlled_win_rate(outcome, difference, ridge=1e-9)
    theta = math.log(13.5) / 2
    assert float(rate) == pytest.approx(1 / (1 + math.exp(-theta)), abs=1e-6)
    assert float(found["length_effect"]) == pytest.approx(math.log(6) / 2 / math.tanh(1), abs=1e-6)


@pytest.mark.slow
def test_rate_equals_slow_descent() -> None:
    outcome, difference = _games()
    rate, found = length_controlled_win_rate(outcome, difference, ridge=2.0)
    coefficients = torch.zeros(2, dtype=F64, requires_grad=True)
    for _ in range(5000):
        loss = length_control_loss(coefficients, outcome, difference, 2.0)
        (gradient,) = torch.autograd.grad(loss, coefficients)
        coefficients.data -= 0.05 * gradient
    assert float(rate) == pytest.approx(float(coefficients[0].detach().sigmoid()), abs=1e-8)
    assert float(found["length_effect"]) == pytest.approx(float(coefficients[1].detach()), abs=1e-8)


def test_rate_invariants() -> None:
    outcome, difference = _games()
    rate, found = length_controlled_win_rate(outcome, difference)
    theirs, swapped = length_controlled_win_rate(1 - outcome, -difference)
    torch.testing.assert_close(theirs, 1 - rate)
    torch.testing.assert_close(swapped["length_effect"], found["length_effect"])
    order = torch.randperm(len(outcome))
    torch.testing.assert_close(
        length_controlled_win_rate(outcome[order], difference[order])[0], rate
    )
    torch.testing.assert_close(length_controlled_win_rate(outcome, 3 * difference)[0], rate)


@pytest.mark.parametrize("length", [0.0, 5.0])
def test_equal_differences_leave_the_win_rate(length: float) -> None:
    outcome, _ = _games()
    rate, found = length_controlled_win_rate(outcome, torch.full_like(outcome, length))
    torch.testing.assert_close(rate, outcome.mean())
    assert float(found["length_effect"]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("won", [0.0, 1.0])
def test_one_who_wins_everything_does_so_at_any_length(won: float) -> None:
    _, difference = _games()
    rate, found = length_controlled_win_rate(torch.full_like(difference, won), difference)
    assert (float(rate), float(found["length_effect"])) == (won, 0.0)


def test_refused() -> None:
    outcome, difference = _games()
    with pytest.raises(ShapeError):
        length_controlled_win_rate(outcome, difference[1:])
    with pytest.raises(ShapeError):
        length_control_loss(torch.zeros(3), outcome, difference, 1.0)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        length_controlled_win_rate(2 * outcome - 1, difference)
    with pytest.raises(ValueError, match="found ridge 0"):
        length_controlled_win_rate(outcome, difference, ridge=0.0)
