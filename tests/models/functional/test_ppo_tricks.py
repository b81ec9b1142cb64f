"""ppo_tricks, and the ratio without a clip and over the reference."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.ppo import clip_advantages, entropy_loss, policy_loss

F64 = torch.float64
SHAPE = (3, 6)


def random_mask() -> Tensor:
    """A mask with both kinds of position in every row."""
    mask = torch.rand(SHAPE) < 0.6
    mask[:, 0], mask[:, 1] = True, False
    return mask


# clip_advantages


def test_clip_by_hand() -> None:
    # Clip 0.5: 2 becomes 0.5, -0.7 becomes -0.5, 0.5 is on the bound and stays. Two of the three
    # counted tokens are clipped; the last is not counted.
    advantages = torch.tensor([[2.0, -0.7, 0.5, -9.0]])
    mask = torch.tensor([[True, True, True, False]])
    clipped, metrics = clip_advantages(advantages, mask, 0.5)
    assert clipped.tolist() == [[0.5, -0.5, 0.5, -0.5]]
    assert metrics["advantage_clip_fraction"].item() == pytest.approx(2 / 3)


def test_clip_equals_loop() -> None:
    advantages, mask = torch.randn(SHAPE, dtype=F64), random_mask()
    clipped, metrics = clip_advantages(advantages, mask, 0.3)
    num_clipped = 0
    for i in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            a = advantages[i, t].item()
            assert clipped[i, t].item() == max(-0.3, min(0.3, a))
            num_clipped += bool(mask[i, t]) and not -0.3 <= a <= 0.3
    share = num_clipped / int(mask.sum())
    assert metrics["advantage_clip_fraction"].item() == pytest.approx(share, abs=1e-12)


def test_clip_invariants() -> None:
    advantages, mask = torch.randn(SHAPE, dtype=F64, requires_grad=True), random_mask()
    clipped, metrics = clip_advantages(advantages, mask, 100.0)
    assert clipped.equal(advantages.detach())
    assert metrics["advantage_clip_fraction"].item() == 0.0
    # Signs stay, clipping twice is clipping once, and advantages are data: no gradient.
    once, _ = clip_advantages(advantages, mask, 0.12)
    assert once.sign().equal(advantages.detach().sign())
    assert clip_advantages(once, mask, 0.12)[0].equal(once)
    assert not once.requires_grad


def test_clip_refuses_bad_arguments() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"clip must be positive, found 0\.0"):
        clip_advantages(x, x.bool(), 0.0)
    with pytest.raises(ShapeError, match="response_mask must be"):
        clip_advantages(x, x, 0.5)
    with pytest.raises(ShapeError, match=r"response_mask \(2, 1\)"):
        clip_advantages(x, torch.zeros(2, 1).bool(), 0.5)


# entropy_loss


def test_entropy_loss_by_hand() -> None:
    # Entropies 1, 2 and 6 nats, mean 3; the last token is not counted. Around 4 nats the
    # distances are 3, 2 and 2: 7 / 3.
    entropies = torch.tensor([[1.0, 2.0, 6.0, 9.0]], dtype=F64)
    mask = torch.tensor([[True, True, True, False]])
    loss, metrics = entropy_loss(entropies, mask, None)
    assert loss.item() == pytest.approx(-3.0, abs=1e-12)
    assert metrics["entropy"].item() == pytest.approx(3.0, abs=1e-12)
    loss, metrics = entropy_loss(entropies, mask, 4.0)
    assert loss.item() == pytest.approx(7 / 3, abs=1e-12)
    assert metrics["entropy_loss"].item() == pytest.approx(7 / 3, abs=1e-12)


@pytest.mark.parametrize("entropy_clip", [None, 0.9])
def test_entropy_loss_equals_loop(entropy_clip: float | None) -> None:
    entropies, mask = 2 * torch.rand(SHAPE, dtype=F64), random_mask()
    loss, metrics = entropy_loss(entropies, mask, entropy_clip)
    total = entropy = 0.0
    for i in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            if mask[i, t]:
                h = entropies[i, t].item()
                total += -h if entropy_clip is None else abs(h - entropy_clip)
                entropy += h
    count = int(mask.sum())
    assert loss.item() == pytest.approx(total / count, abs=1e-12)
    assert metrics["entropy"].item() == pytest.approx(entropy / count, abs=1e-12)


def test_entropy_loss_invariants() -> None:
    # A clip beyond all entropies is the plain bonus plus itself: the gradient is the same.
    mask = random_mask()
    gradients = []
    for entropy_clip in (None, 35.0):
        entropies = torch.rand(SHAPE, dtype=F64).fill_(0.7).requires_grad_()
        entropy_loss(entropies, mask, entropy_clip)[0].backward()
        assert entropies.grad is not None
        gradients.append(entropies.grad)
    assert gradients[0].equal(gradients[1])
    # Masking equals dropping, in the loss and in the gradient.
    dirty = torch.where(mask, torch.rand(SHAPE, dtype=F64), math.nan).requires_grad_()
    loss, _ = entropy_loss(dirty, mask, None)
    assert loss.item() == pytest.approx(-dirty[mask].mean().item(), abs=1e-12)
    loss.backward()
    assert dirty.grad is not None
    assert dirty.grad[~mask].eq(0).all()
    torch.testing.assert_close(
        dirty.grad[mask], torch.full((int(mask.sum()),), -1 / int(mask.sum()), dtype=F64)
    )


@pytest.mark.parametrize("entropy_clip", [None, 0.9])
def test_entropy_loss_gradient(entropy_clip: float | None) -> None:
    entropies = torch.tensor([[0.2, 1.5, 0.5, 2.0]], dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, True, True, False]])
    assert torch.autograd.gradcheck(lambda h: entropy_loss(h, mask, entropy_clip)[0], entropies)
    _, metrics = entropy_loss(entropies, mask, entropy_clip)
    assert not any(value.requires_grad for value in metrics.values())


def test_entropy_loss_refuses_bad_arguments() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"entropy_clip must be positive or None, found 0\.0"):
        entropy_loss(x, x.bool(), 0.0)
    with pytest.raises(ShapeError, match="response_mask must be"):
        entropy_loss(x, x, None)


# policy_loss


def test_policy_loss_without_clip_by_hand() -> None:
    # Ratios 2 and 1/2 with advantages 1 and -3: -(2 - 1.5) / 2.
    ratios = torch.tensor([[2.0, 0.5]], dtype=F64)
    advantages = torch.tensor([[1.0, -3.0]], dtype=F64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss, metrics = policy_loss(ratios.log(), torch.zeros(1, 2, dtype=F64), advantages, mask, None)
    assert loss.item() == pytest.approx(-0.25, abs=1e-12)
    assert metrics["clip_fraction"].item() == 0.0


def test_ratio_over_the_reference_by_hand() -> None:
    # Reference 1/4 and 1/2; the policy gave both tokens 1/2 when it sampled them, and does still.
    # Over the policy that sampled all ratios are 1: the loss is -(1 + 1) / 2. Over the reference
    # they are 2, of which the clip leaves 1.2, and 1: -(1.2 + 1) / 2.
    now = torch.tensor([[0.5, 0.5]], dtype=F64).log()
    reference = torch.tensor([[0.25, 0.5]], dtype=F64).log()
    advantages, mask = torch.ones(1, 2, dtype=F64), torch.ones(1, 2, dtype=torch.bool)
    assert policy_loss(now, now, advantages, mask, 0.2)[0].item() == pytest.approx(-1.0, abs=1e-12)
    loss, metrics = policy_loss(now, reference, advantages, mask, 0.2)
    assert loss.item() == pytest.approx(-1.1, abs=1e-12)
    assert metrics["ratio_mean"].item() == pytest.approx(1.5, abs=1e-12)
