"""ppo_max: from scores to token rewards, advantages and returns."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.ppo import RunningMoments, gae, normalise_scores, token_rewards

F64 = torch.float64

# Rows: padded on the left, on both sides, on the right, full, and empty.
MASK = torch.tensor(
    [
        [False, False, True, True, True],
        [False, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, True, True],
        [False, False, False, False, False],
    ]
)


# normalise_scores


def test_normalise_by_hand() -> None:
    # (5 - 1) / 2 = 2, clipped to 0.8; (2 - 1) / 2 = 0.5; (-9 - 1) / 2 = -5, clipped to -0.8.
    scores = torch.tensor([5.0, 2.0, -9.0], dtype=F64)
    assert normalise_scores(scores, 1.0, 2.0, 0.8).tolist() == [0.8, 0.5, -0.8]
    assert normalise_scores(scores, 1.0, 2.0, None).tolist() == [2.0, 0.5, -5.0]


def test_scaling_and_clipping_alone_by_hand() -> None:
    # Reward scaling keeps the mean: 5 / 2 and -9 / 2, clipped to 3. Clipping alone: 3 and -3.
    scores = torch.tensor([5.0, 2.0, -9.0], dtype=F64)
    assert normalise_scores(scores, 0.0, 2.0, None).tolist() == [2.5, 1.0, -4.5]
    assert normalise_scores(scores, 0.0, 2.0, 3.0).tolist() == [2.5, 1.0, -3.0]
    assert normalise_scores(scores, 0.0, 1.0, 3.0).tolist() == [3.0, 2.0, -3.0]


def test_normalise_equals_loop_and_history_gives_mean_zero_std_one() -> None:
    scores = torch.randn(20, dtype=F64)
    moments = RunningMoments()
    moments.update(scores)
    got = normalise_scores(scores, moments.mean, moments.std, 0.3)
    for i, score in enumerate(scores.tolist()):
        slow = min(max((score - moments.mean) / moments.std, -0.3), 0.3)
        assert got[i].item() == pytest.approx(slow, abs=1e-12)
    free = normalise_scores(scores, moments.mean, moments.std, None)
    assert free.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert free.square().mean().item() == pytest.approx(1.0, abs=1e-12)


def test_normalise_invariants() -> None:
    scores = torch.randn(6, dtype=F64)
    assert normalise_scores(scores, 0.0, 1.0, None).equal(scores)
    # Rescaling scores and history alike changes nothing.
    one = normalise_scores(scores, 0.3, 2.0, 0.8)
    other = normalise_scores(5 * scores + 1, 5 * 0.3 + 1, 10.0, 0.8)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    # A history of one value: nothing to tell apart, and nothing that is not finite.
    assert normalise_scores(torch.full((3,), 4.0), 4.0, 0.0, None).tolist() == [0.0, 0.0, 0.0]


def test_normalise_gradient() -> None:
    scores = torch.tensor([0.2, -0.5, 3.0], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: normalise_scores(s, 0.1, 1.5, 0.8), scores)


def test_normalise_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"std must not be negative, found -1\.0"):
        normalise_scores(torch.zeros(2), 0.0, -1.0, None)
    with pytest.raises(ValueError, match=r"clip must be positive or None, found 0\.0"):
        normalise_scores(torch.zeros(2), 0.0, 1.0, 0.0)
    with pytest.raises(ShapeError, match="1 axes"):
        normalise_scores(torch.zeros(2, 2), 0.0, 1.0, None)


# token_rewards


def test_token_rewards_by_hand() -> None:
    # kl_coef 0.5. Log-ratios of the counted tokens 2, -4: -1, and 2 + the score 10.
    logprobs = torch.tensor([[9.0, -1.0, -5.0, 9.0]])
    ref_logprobs = torch.tensor([[0.0, -3.0, -1.0, 0.0]])
    mask = torch.tensor([[False, True, True, False]])
    rewards = token_rewards(torch.tensor([10.0]), logprobs, ref_logprobs, mask, 0.5)
    assert rewards.tolist() == [[0.0, -1.0, 12.0, 0.0]]


def test_each_row_may_have_its_kl_coefficient() -> None:
    scores = torch.randn(5, dtype=F64)
    logprobs, ref_logprobs = torch.randn(2, 5, 5, dtype=F64)
    coefs = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4], dtype=F64)
    rewards = token_rewards(scores, logprobs, ref_logprobs, MASK, coefs)
    for row, coef in enumerate(coefs.tolist()):
        expected = token_rewards(scores, logprobs, ref_logprobs, MASK, coef)[row]
        torch.testing.assert_close(rewards[row], expected, rtol=0, atol=1e-14)
    with pytest.raises(ShapeError, match=r"kl_coef \(2,\)"):
        token_rewards(scores, logprobs, ref_logprobs, MASK, torch.ones(2))


def test_token_rewards_equal_loop() -> None:
    scores = torch.randn(5, dtype=F64)
    logprobs, ref_logprobs = torch.randn(2, 5, 5, dtype=F64)
    got = token_rewards(scores, logprobs, ref_logprobs, MASK, 0.05)
    slow = torch.zeros(5, 5, dtype=F64)
    for i in range(5):
        counted = [t for t in range(5) if MASK[i, t]]
        for t in counted:
            slow[i, t] = -0.05 * (logprobs[i, t] - ref_logprobs[i, t])
        if counted:
            slow[i, counted[-1]] += scores[i]
    torch.testing.assert_close(got, slow, rtol=0, atol=1e-14)


def test_token_rewards_invariants() -> None:
    scores = torch.randn(5, dtype=F64)
    logprobs, ref_logprobs = torch.randn(2, 5, 5, dtype=F64)
    # The sum of a row is its score minus the penalty on its log-ratio.
    rewards = token_rewards(scores, logprobs, ref_logprobs, MASK, 0.2)
    log_ratio = ((logprobs - ref_logprobs) * MASK).sum(1)
    expected = scores * MASK.any(1) - 0.2 * log_ratio
    torch.testing.assert_close(rewards.sum(1), expected, rtol=0, atol=1e-12)
    # The policy on the reference, or no penalty: the score alone, at one token.
    for same in (
        token_rewards(scores, logprobs, logprobs, MASK, 0.2),
        token_rewards(scores, logprobs, ref_logprobs, MASK, 0.0),
    ):
        assert same.count_nonzero(1).tolist() == [1, 1, 1, 1, 0]
        torch.testing.assert_close(same.sum(1), scores * MASK.any(1), rtol=0, atol=1e-14)
    # What stands at uncounted positions does not matter.
    dirty = torch.where(MASK, logprobs, torch.nan)
    assert token_rewards(scores, dirty, ref_logprobs, MASK, 0.2).equal(rewards)


def test_token_rewards_carry_no_gradient() -> None:
    logprobs = torch.zeros(1, 2, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert not token_rewards(torch.ones(1), logprobs, logprobs, mask, 0.1).requires_grad


def test_token_rewards_refuse_bad_shapes() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match=r"scores \(3,\).*\(2,\)"):
        token_rewards(torch.zeros(3), x, x, x.bool(), 0.1)
    with pytest.raises(ShapeError, match="response_mask must be"):
        token_rewards(torch.zeros(2), x, x, x, 0.1)


# gae


def slow_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, response by response, from the definition."""
    advantages = torch.zeros_like(values)
    for i in range(values.shape[0]):
        counted = [t for t in range(values.shape[1]) if mask[i, t]]
        deltas = []
        for n, t in enumerate(counted):
            after = values[i, counted[n + 1]].item() if n + 1 < len(counted) else 0.0
            deltas.append(rewards[i, t].item() + gamma * after - values[i, t].item())
        for n, t in enumerate(counted):
            advantages[i, t] = sum(
                (gamma * gae_lambda) ** step * delta for step, delta in enumerate(deltas[n:])
            )
    return advantages


def test_gae_by_hand() -> None:
    # gamma 0.5, lambda 0.5, rewards 0, 4, values 2, 6, then the end:
    #   delta_2 = 4 - 6 = -2, A_2 = -2; delta_1 = 0 + 0.5 * 6 - 2 = 1, A_1 = 1 + 0.25 * -2 = 0.5.
    # Returns 0.5 + 2 = 2.5 and -2 + 6 = 4.
    rewards = torch.tensor([[7.0, 0.0, 4.0, 7.0]])
    values = torch.tensor([[7.0, 2.0, 6.0, 7.0]])
    mask = torch.tensor([[False, True, True, False]])
    advantages, returns = gae(rewards, values, mask, 0.5, 0.5)
    assert advantages.tolist() == [[0.0, 0.5, -2.0, 0.0]]
    assert returns.tolist() == [[0.0, 2.5, 4.0, 0.0]]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (0.7, 0.0), (0.0, 1.0)])
def test_gae_equals_loop(gamma: float, gae_lambda: float) -> None:
    rewards, values = torch.randn(2, 5, 5, dtype=F64)
    advantages, returns = gae(rewards, values, MASK, gamma, gae_lambda)
    slow = slow_gae(rewards, values, MASK, gamma, gae_lambda)
    torch.testing.assert_close(advantages, slow, rtol=0, atol=1e-12)
    torch.testing.assert_close(returns, slow + values * MASK, rtol=0, atol=1e-12)


def test_gae_lambda_one_is_the_discounted_return_and_zero_the_td_error() -> None:
    rewards, values = torch.randn(2, 1, 6, dtype=F64)
    mask = torch.ones(1, 6, dtype=torch.bool)
    _, returns = gae(rewards, values, mask, 0.9, 1.0)
    for t in range(6):
        slow = sum(0.9**n * rewards[0, t + n].item() for n in range(6 - t))
        assert returns[0, t].item() == pytest.approx(slow, abs=1e-12)
    advantages, _ = gae(rewards, values, mask, 0.9, 0.0)
    after = torch.cat([values[:, 1:], torch.zeros(1, 1, dtype=F64)], dim=1)
    torch.testing.assert_close(advantages, rewards + 0.9 * after - values, rtol=0, atol=1e-12)


def test_gae_of_exact_values_is_zero() -> None:
    # Values equal to the discounted sum of later rewards leave nothing over, whatever lambda.
    rewards = torch.randn(1, 5, dtype=F64)
    values = torch.tensor(
        [[sum(0.8**n * rewards[0, t + n].item() for n in range(5 - t)) for t in range(5)]],
        dtype=F64,
    )
    advantages, returns = gae(rewards, values, torch.ones(1, 5, dtype=torch.bool), 0.8, 0.3)
    torch.testing.assert_close(advantages, torch.zeros_like(values), rtol=0, atol=1e-12)
    torch.testing.assert_close(returns, values, rtol=0, atol=1e-12)


def test_gae_mask_equals_drop_and_place_does_not_matter() -> None:
    rewards, values = torch.randn(2, 1, 4, dtype=F64)
    alone = gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), 0.95, 0.9)
    for left, right in ((0, 3), (3, 0), (2, 1)):
        pads = [torch.full((1, n), math.nan, dtype=F64) for n in (left, right)]
        mask = torch.tensor([[False] * left + [True] * 4 + [False] * right])
        padded = [torch.cat([pads[0], x, pads[1]], dim=1) for x in (rewards, values)]
        padded_gae = gae(padded[0], padded[1], mask, 0.95, 0.9)
        for got, expected in zip(padded_gae, alone, strict=True):
            torch.testing.assert_close(got[:, left : left + 4], expected, rtol=0, atol=0)
            assert got[~mask].eq(0).all()


def test_gae_carries_no_gradient_and_keeps_its_input() -> None:
    values = torch.randn(5, 5, requires_grad=True)
    before = values.detach().clone()
    advantages, returns = gae(torch.randn(5, 5), values, MASK, 1.0, 0.95)
    assert not advantages.requires_grad
    assert not returns.requires_grad
    assert values.detach().equal(before)


def test_gae_refuses_bad_arguments() -> None:
    x = torch.zeros(2, 3)
    gap = torch.tensor([[True, True, True], [True, False, True]])
    with pytest.raises(ShapeError, match=r"contiguous, found a gap in 1 rows \(first 1\)"):
        gae(x, x, gap, 1.0, 0.95)
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], found 1\.1"):
        gae(x, x, x.bool(), 1.1, 0.95)
    with pytest.raises(ValueError, match="gae_lambda"):
        gae(x, x, x.bool(), 1.0, -0.1)
    with pytest.raises(ShapeError, match=r"values \(2, 2\)"):
        gae(x, torch.zeros(2, 2), x.bool(), 1.0, 0.95)
