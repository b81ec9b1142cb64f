"""ppo_max: the clipped policy and value losses."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.ppo import policy_loss, value_loss

F64 = torch.float64
SHAPE = (3, 6)


def random_mask() -> Tensor:
    """A mask with both kinds of position in every row."""
    mask = torch.rand(SHAPE) < 0.6
    mask[:, 0], mask[:, 1] = True, False
    return mask


# policy_loss


def test_policy_loss_by_hand() -> None:
    # Ratios 2, 2, 1/2, 1 with advantages 1, -1, 1, 3 and eps 0.2:
    #   min(2, 1.2) = 1.2 (the clip binds); min(-2, -1.2) = -2; min(0.5, 0.8) = 0.5; 3.
    # Loss -(1.2 - 2 + 0.5 + 3) / 4 = -0.675. The last token is not counted.
    ratios = torch.tensor([[2.0, 2.0, 0.5, 1.0, 8.0]], dtype=F64)
    old = torch.full((1, 5), -3.0, dtype=F64)
    advantages = torch.tensor([[1.0, -1.0, 1.0, 3.0, 9.0]], dtype=F64)
    mask = torch.tensor([[True, True, True, True, False]])
    loss, metrics = policy_loss(old + ratios.log(), old, advantages, mask, 0.2)
    assert loss.item() == pytest.approx(-0.675, abs=1e-12)
    assert metrics["clip_fraction"].item() == 0.25
    # Mean ratio (2 + 2 + 0.5 + 1) / 4; k3: 1 - log 2 twice, -1/2 + log 2, 0: (1.5 - log 2) / 4.
    assert metrics["ratio_mean"].item() == pytest.approx(1.375, abs=1e-12)
    assert metrics["approx_kl"].item() == pytest.approx((1.5 - math.log(2)) / 4, abs=1e-12)


def test_policy_loss_equals_loop() -> None:
    old, advantages = torch.randn(2, *SHAPE, dtype=F64)
    new, mask = old + 0.4 * torch.randn(SHAPE, dtype=F64), random_mask()
    loss, metrics = policy_loss(new, old, advantages, mask, 0.2)
    objective = num_clipped = kl = ratio_sum = 0.0
    for i in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            if mask[i, t]:
                ratio, a = math.exp(new[i, t] - old[i, t]), advantages[i, t].item()
                unclipped, clipped = ratio * a, min(max(ratio, 0.8), 1.2) * a
                objective += min(unclipped, clipped)
                num_clipped += clipped < unclipped
                kl += ratio - 1 - math.log(ratio)
                ratio_sum += ratio
    count = int(mask.sum())
    assert loss.item() == pytest.approx(-objective / count, abs=1e-12)
    assert metrics["clip_fraction"].item() == pytest.approx(num_clipped / count, abs=1e-12)
    assert metrics["approx_kl"].item() == pytest.approx(kl / count, abs=1e-12)
    assert metrics["ratio_mean"].item() == pytest.approx(ratio_sum / count, abs=1e-12)


def test_ratio_one_gives_minus_the_mean_advantage() -> None:
    old, advantages = torch.randn(2, *SHAPE, dtype=F64)
    mask = random_mask()
    loss, metrics = policy_loss(old, old, advantages, mask, 0.2)
    torch.testing.assert_close(loss, -advantages[mask].mean(), rtol=0, atol=1e-12)
    assert metrics["ratio_mean"].item() == 1.0
    assert metrics["clip_fraction"].item() == 0.0
    assert metrics["approx_kl"].item() == 0.0


def test_policy_gradient_at_ratio_one_is_minus_the_advantage_over_the_count() -> None:
    old, advantages = torch.randn(2, *SHAPE, dtype=F64)
    mask, new = random_mask(), old.clone().requires_grad_()
    policy_loss(new, old, advantages, mask, 0.2)[0].backward()
    expected = torch.where(mask, -advantages / mask.sum(), 0.0)
    assert new.grad is not None
    torch.testing.assert_close(new.grad, expected, rtol=0, atol=1e-12)


def test_no_gradient_past_the_clip_unless_it_leads_back() -> None:
    # Ratio 2 with a good token, ratio 1/2 with a bad one: clipped, no gradient. The reverse: both
    # still pull back.
    new = torch.tensor([[2.0, 0.5, 2.0, 0.5]], dtype=F64).log().requires_grad_()
    advantages = torch.tensor([[1.0, -1.0, -1.0, 1.0]], dtype=F64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    policy_loss(new, torch.zeros(1, 4, dtype=F64), advantages, mask, 0.2)[0].backward()
    assert new.grad is not None
    # d/dlogp of -ratio A / 4: 2 / 4 and -0.5 / 4.
    expected = torch.tensor([[0.0, 0.0, 0.5, -0.125]], dtype=F64)
    torch.testing.assert_close(new.grad, expected, rtol=0, atol=1e-12)


def test_policy_loss_mask_equals_drop_even_for_nan() -> None:
    old, advantages = torch.randn(2, *SHAPE, dtype=F64)
    new, mask = old + 0.3 * torch.randn(SHAPE, dtype=F64), random_mask()
    kept = policy_loss(
        new[mask][None], old[mask][None], advantages[mask][None], mask[mask][None], 0.2
    )
    dirty = [torch.where(mask, x, torch.nan) for x in (new, old, advantages)]
    dirty[0].requires_grad_()
    got = policy_loss(dirty[0], dirty[1], dirty[2], mask, 0.2)
    torch.testing.assert_close(got, kept, rtol=0, atol=1e-12)
    got[0].backward()
    assert dirty[0].grad is not None
    assert dirty[0].grad[~mask].eq(0).all()
    assert dirty[0].grad[mask].isfinite().all()


def test_policy_loss_gradient_check() -> None:
    # Ratios e^0.1, e^-0.1 inside the clip and e^0.5, e^-0.5 outside: no kink nearby.
    old = torch.randn(2, 4, dtype=F64)
    shift = torch.tensor([0.1, -0.1, 0.5, -0.5], dtype=F64)
    advantages = torch.tensor([[1.0, 2.0, -1.0, 0.5], [-1.0, -0.3, 2.0, -2.0]], dtype=F64)
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    new = (old + shift).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, advantages, mask, 0.2)[0], new)
    _, metrics = policy_loss(new, old, advantages, mask, 0.2)
    assert not any(value.requires_grad for value in metrics.values())


def test_losses_train_only_the_policy_and_the_critic() -> None:
    x = [torch.randn(SHAPE, requires_grad=True) for _ in range(3)]
    policy_loss(x[0], x[1], x[2], random_mask(), 0.2)[0].backward()
    assert [tensor.grad is None for tensor in x] == [False, True, True]
    x = [torch.randn(SHAPE, requires_grad=True) for _ in range(3)]
    value_loss(x[0], x[1], x[2], random_mask(), 0.2)[0].backward()
    assert [tensor.grad is None for tensor in x] == [False, True, True]


def test_policy_loss_refuses_bad_arguments() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"policy_clip must be positive or None, found 0\.0"):
        policy_loss(x, x, x, x.bool(), 0.0)
    with pytest.raises(ShapeError, match=r"advantages \(2, 1\)"):
        policy_loss(x, x, torch.zeros(2, 1), x.bool(), 0.2)
    with pytest.raises(ShapeError, match="response_mask must be"):
        policy_loss(x, x, x, x, 0.2)


# value_loss


def test_value_loss_by_hand() -> None:
    # Clip 0.2 around old value 1, return 3: value 2 is clipped to 1.2, errors 1 and 1.8^2 = 3.24,
    # the larger counts. Value 1.1, return 1: not clipped, 0.01. Value 2, old 1, return 1:
    # clipped to 1.2, errors 1 and 0.04. Loss (3.24 + 0.01 + 1) / 6.
    values = torch.tensor([[2.0, 1.1, 2.0, 5.0]], dtype=F64)
    old_values = torch.ones(1, 4, dtype=F64)
    returns = torch.tensor([[3.0, 1.0, 1.0, 5.0]], dtype=F64)
    mask = torch.tensor([[True, True, True, False]])
    loss, metrics = value_loss(values, old_values, returns, mask, 0.2)
    assert loss.item() == pytest.approx(4.25 / 6, abs=1e-12)
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 3, abs=1e-12)
    # R - V = 1, -0.1, -1: mean -1/30, variance (1 + 0.01 + 1)/3 - 1/900 = 602/900.
    # R = 3, 1, 1: mean 5/3, variance 11/3 - 25/9 = 8/9. 1 - 602/800 = 0.2475.
    assert metrics["explained_variance"].item() == pytest.approx(0.2475, abs=1e-12)
    # Without the clip: (1 + 0.01 + 1) / 6.
    loss, metrics = value_loss(values, old_values, returns, mask, None)
    assert loss.item() == pytest.approx(2.01 / 6, abs=1e-12)
    assert metrics["clip_fraction"].item() == 0.0


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_value_loss_equals_loop(value_clip: float | None) -> None:
    values, returns = torch.randn(2, *SHAPE, dtype=F64)
    old_values, mask = values + 0.3 * torch.randn(SHAPE, dtype=F64), random_mask()
    loss, metrics = value_loss(values, old_values, returns, mask, value_clip)
    total = num_clipped = 0.0
    kept = [(i, t) for i in range(SHAPE[0]) for t in range(SHAPE[1]) if mask[i, t]]
    for i, t in kept:
        v, old, r = values[i, t].item(), old_values[i, t].item(), returns[i, t].item()
        near = v if value_clip is None else min(max(v, old - value_clip), old + value_clip)
        total += 0.5 * max((v - r) ** 2, (near - r) ** 2)
        num_clipped += (near - r) ** 2 > (v - r) ** 2 + 1e-12
    assert loss.item() == pytest.approx(total / len(kept), abs=1e-12)
    assert metrics["clip_fraction"].item() == pytest.approx(num_clipped / len(kept), abs=1e-12)
    residual, target = (returns - values)[mask], returns[mask]
    explained = 1 - (residual.var(correction=0) / target.var(correction=0)).item()
    assert metrics["explained_variance"].item() == pytest.approx(explained, abs=1e-12)


def test_value_loss_invariants() -> None:
    values, returns = torch.randn(2, *SHAPE, dtype=F64)
    old_values, mask = torch.randn(SHAPE, dtype=F64), random_mask()
    plain, _ = value_loss(values, old_values, returns, mask, None)
    # The clip can only raise the loss; a wide one, or an unmoved critic, is none.
    assert value_loss(values, old_values, returns, mask, 0.2)[0] >= plain
    for same in (
        value_loss(values, old_values, returns, mask, 1e6)[0],
        value_loss(values, values, returns, mask, 0.2)[0],
    ):
        torch.testing.assert_close(same, plain, rtol=0, atol=1e-12)
    # Exact values: no loss, all variance explained; the mean alone explains none.
    loss, metrics = value_loss(returns, returns, returns, mask, 0.2)
    assert loss.item() == 0.0
    assert metrics["explained_variance"].item() == 1.0
    mean = torch.full_like(returns, returns[mask].mean().item())
    _, metrics = value_loss(mean, mean, returns, mask, 0.2)
    assert metrics["explained_variance"].item() == pytest.approx(0.0, abs=1e-12)
    _, metrics = value_loss(values, values, torch.ones_like(returns), mask, 0.2)
    assert metrics["explained_variance"].item() == 0.0


def test_value_loss_mask_equals_drop_even_for_nan() -> None:
    values, old_values, returns = torch.randn(3, *SHAPE, dtype=F64)
    mask = random_mask()
    kept = value_loss(
        values[mask][None], old_values[mask][None], returns[mask][None], mask[mask][None], 0.2
    )
    dirty = [torch.where(mask, x, torch.nan) for x in (values, old_values, returns)]
    dirty[0].requires_grad_()
    got = value_loss(dirty[0], dirty[1], dirty[2], mask, 0.2)
    torch.testing.assert_close(got, kept, rtol=0, atol=1e-12)
    got[0].backward()
    assert dirty[0].grad is not None
    assert dirty[0].grad[mask].isfinite().all()
    assert dirty[0].grad[~mask].eq(0).all()


def test_value_loss_gradient_check() -> None:
    # From above: value 2 past the clip on either side of its return, 1.1 inside it; no kink.
    values = torch.tensor([[2.0, 1.1, 2.0, 5.0]], dtype=F64, requires_grad=True)
    old_values = torch.ones(1, 4, dtype=F64)
    returns = torch.tensor([[3.0, 1.5, 1.0, 5.0]], dtype=F64)
    mask = torch.tensor([[True, True, True, False]])
    for value_clip in (0.2, None):
        assert torch.autograd.gradcheck(
            lambda v, c=value_clip: value_loss(v, old_values, returns, mask, c)[0], values
        )
    _, metrics = value_loss(values, old_values, returns, mask, 0.2)
    assert not any(value.requires_grad for value in metrics.values())


def test_value_loss_refuses_bad_arguments() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"value_clip must be positive or None, found 0\.0"):
        value_loss(x, x, x, x.bool(), 0.0)
    with pytest.raises(ShapeError, match=r"returns \(2, 1\)"):
        value_loss(x, x, torch.zeros(2, 1), x.bool(), 0.2)
