"""hir: which instruction a response satisfies, and the three terms of the loss."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.hir import hir_loss, satisfied_instruction

F64 = torch.float64


def slow_loss(
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    mask: torch.Tensor,
    satisfied: list[int],
    alpha: float,
    beta: float,
) -> float:
    """Response by response, through probabilities, as the published code does for two."""
    total = 0.0
    for row, own in enumerate(satisfied):
        means, uncertain = [], 0.0
        for k in range(logprobs.shape[1]):
            counted = [i for i in range(logprobs.shape[2]) if mask[row, k, i]]
            means.append(sum(float(logprobs[row, k, i]) for i in counted) / len(counted))
            if k == own:
                uncertain = sum(float(entropies[row, k, i]) for i in counted) / len(counted)
        probabilities = [math.exp(mean) for mean in means]
        contrast = -math.log(probabilities[own] / sum(probabilities))
        total += -means[own] + alpha * contrast - beta * uncertain
    return total / len(satisfied)


def _random() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    logprobs, entropies = -torch.rand(5, 3, 6, dtype=F64), torch.rand(5, 3, 6, dtype=F64)
    mask = torch.rand(5, 3, 6) < 0.6
    mask[:, :, 0] = True
    return logprobs, entropies, mask, torch.tensor([0, 2, 1, 1, 2])


def test_relabelling_by_hand() -> None:
    # Six responses in order of score 0.1 .. 0.6, two instructions: three each; three: two each.
    scores = torch.tensor([0.4, 0.1, 0.6, 0.2, 0.5, 0.3])
    assert satisfied_instruction(scores, 2).tolist() == [1, 0, 1, 0, 1, 0]
    assert satisfied_instruction(scores, 3).tolist() == [1, 0, 2, 0, 2, 1]


def test_equal_scores_satisfy_the_same_instruction() -> None:
    # Ranks 0, 0, 1 (mean of 0..2 is 1) ...: three lowest have mean rank 1, the two highest 3.5, of
    # 5: of two instructions floor(2 x 1 / 5) = 0 and floor(2 x 3.5 / 5) = 1.
    scores = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])
    assert satisfied_instruction(scores, 2).tolist() == [0, 0, 0, 1, 1]
    # A scorer that cannot tell most of them apart: 4 of 5 share the highest score, mean rank 2.5.
    scores = torch.tensor([0.0, 9.0, 9.0, 9.0, 9.0])
    assert satisfied_instruction(scores, 2).tolist() == [0, 1, 1, 1, 1]


def test_relabelling_keeps_order_and_shares() -> None:
    scores = torch.randn(30)
    for count in (2, 3, 5):
        found = satisfied_instruction(scores, count)
        assert found.bincount(minlength=count).tolist() == [30 // count] * count
        assert bool((found[scores.argsort()].diff() >= 0).all())
        torch.testing.assert_close(satisfied_instruction(7 * scores - 2, count), found)


def test_loss_by_hand() -> None:
    # One response of two tokens, two instructions. Means: under the satisfied one (the second)
    # -log 2, under the other -log 6. Contrast: (1/2) / (1/2 + 1/6) = 3/4. Mean entropy 0.3.
    log2, log6 = math.log(2), math.log(6)
    logprobs = torch.tensor([[[-log6 + 1, -log6 - 1], [-log2 - 0.5, -log2 + 0.5]]], dtype=F64)
    entropies = torch.tensor([[[9.0, 9.0], [0.2, 0.4]]], dtype=F64)
    mask = torch.ones(1, 2, 2, dtype=torch.bool)
    loss, metrics = hir_loss(
        logprobs, entropies, mask, torch.tensor([1]), contrastive_coef=2.0, entropy_coef=0.5
    )
    assert loss.item() == pytest.approx(log2 + 2 * math.log(4 / 3) - 0.15, abs=1e-12)
    assert metrics["supervised_loss"].item() == pytest.approx(log2, abs=1e-12)
    assert metrics["contrastive_loss"].item() == pytest.approx(math.log(4 / 3), abs=1e-12)
    assert metrics["entropy"].item() == pytest.approx(0.3, abs=1e-12)
    assert metrics["accuracy"].item() == 1.0


def test_equals_loop() -> None:
    logprobs, entropies, mask, satisfied = _random()
    loss, _ = hir_loss(logprobs, entropies, mask, satisfied, contrastive_coef=0.7, entropy_coef=0.2)
    expected = slow_loss(logprobs, entropies, mask, satisfied.tolist(), 0.7, 0.2)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_what_is_not_counted_changes_nothing() -> None:
    logprobs, entropies, mask, satisfied = _random()
    coefficients = {"contrastive_coef": 1.0, "entropy_coef": 0.1}
    plain, _ = hir_loss(logprobs, entropies, mask, satisfied, **coefficients)
    spoilt, _ = hir_loss(
        logprobs.masked_fill(~mask, torch.nan),
        entropies.masked_fill(~mask, torch.inf),
        mask,
        satisfied,
        **coefficients,
    )
    torch.testing.assert_close(spoilt, plain, rtol=0, atol=0)


def test_a_policy_deaf_to_instructions_contrasts_log_k() -> None:
    logprobs, entropies, mask, satisfied = _random()
    same, counted = logprobs[:, :1].expand(-1, 3, -1), mask[:, :1].expand(-1, 3, -1)
    _, metrics = hir_loss(
        same, entropies, counted, satisfied, contrastive_coef=1.0, entropy_coef=0.0
    )
    assert metrics["contrastive_loss"].item() == pytest.approx(math.log(3), abs=1e-12)
    assert metrics["accuracy"].item() == 0.0


def test_gradient() -> None:
    logprobs, entropies, mask, satisfied = _random()
    inputs = (logprobs.requires_grad_(), entropies.requires_grad_())

    def loss(*values: torch.Tensor) -> torch.Tensor:
        return hir_loss(*values, mask, satisfied, contrastive_coef=0.7, entropy_coef=0.2)[0]

    assert torch.autograd.gradcheck(loss, inputs)


def test_what_is_wrong_is_refused() -> None:
    logprobs, entropies, mask, satisfied = _random()
    more = {"contrastive_coef": 1.0, "entropy_coef": 0.1}
    with pytest.raises(ShapeError, match=r"satisfied must be long \(5,\), found"):
        hir_loss(logprobs, entropies, mask, satisfied[:4], **more)
    with pytest.raises(ShapeError, match="3 axes"):
        hir_loss(logprobs[0], entropies[0], mask[0], satisfied, **more)
    with pytest.raises(ValueError, match="at least 2, found 1"):
        satisfied_instruction(torch.rand(4), 1)
    with pytest.raises(ValueError, match="NaN"):
        satisfied_instruction(torch.tensor([1.0, torch.nan]), 2)
