"""reward: the ranking loss with soft labels, margins and weights, and the imitation term."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.reward import (
    imitation_loss,
    ranking_loss,
    ranking_losses,
    weight_per_prompt,
)

F64 = torch.float64
LOG3 = math.log(3)


def slow_loss(
    chosen: list[float],
    rejected: list[float],
    label: list[float],
    margin: list[float],
    weight: list[float],
) -> float:
    """The formula as a loop over pairs, through the sigmoid itself."""
    total = 0.0
    for c, r, p, m, w in zip(chosen, rejected, label, margin, weight, strict=True):
        better = 1 / (1 + math.exp(-(c - r - m)))
        total -= w * (p * math.log(better) + (1 - p) * math.log(1 - better))
    return total / sum(weight)


def test_hard_labels_by_hand() -> None:
    # sigmoid(log 3) = 3/4 and sigmoid(-log 3) = 1/4: mean of log(4/3) and log 4.
    loss, metrics = ranking_loss(
        torch.tensor([LOG3, 1.0], dtype=F64), torch.tensor([0.0, 1.0 + LOG3], dtype=F64)
    )
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, abs=1e-12)
    # One of two in order; scores (log 3 + 1) / 2 against (0 + 1 + log 3) / 2; mean gap 0.
    assert metrics["accuracy"].item() == 0.5
    assert metrics["score_chosen"].item() == pytest.approx((LOG3 + 1) / 2, abs=1e-12)
    assert metrics["score_rejected"].item() == pytest.approx((LOG3 + 1) / 2, abs=1e-12)
    assert metrics["score_gap"].item() == pytest.approx(0.0, abs=1e-12)


def test_soft_label_margin_and_weight_by_hand() -> None:
    # Pair 1: gap log 3 + 1 with margin 1 leaves log 3; label 0.9:
    #   -(0.9 log 3/4 + 0.1 log 1/4).
    # Pair 2: gap 0, margin 0, label 1: log 2. Weights 3 and 1.
    first = -(0.9 * math.log(3 / 4) + 0.1 * math.log(1 / 4))
    loss, _ = ranking_loss(
        torch.tensor([LOG3 + 1, 2.0], dtype=F64),
        torch.tensor([0.0, 2.0], dtype=F64),
        label_chosen=torch.tensor([0.9, 1.0], dtype=F64),
        margin=torch.tensor([1.0, 0.0], dtype=F64),
        weight=torch.tensor([3.0, 1.0], dtype=F64),
    )
    assert loss.item() == pytest.approx((3 * first + math.log(2)) / 4, abs=1e-12)


def test_equals_loop() -> None:
    chosen, rejected, margin = torch.randn(3, 12, dtype=F64)
    label, weight = torch.rand(2, 12, dtype=F64)
    loss, _ = ranking_loss(chosen, rejected, label_chosen=label, margin=margin, weight=weight)
    columns = [x.tolist() for x in (chosen, rejected, label, margin, weight)]
    assert loss.item() == pytest.approx(slow_loss(*columns), abs=1e-12)


def test_defaults_are_label_one_margin_zero_weight_one() -> None:
    chosen, rejected = torch.randn(2, 6, dtype=F64)
    ones, zeros = torch.ones(6, dtype=F64), torch.zeros(6, dtype=F64)
    plain, _ = ranking_loss(chosen, rejected)
    full, _ = ranking_loss(chosen, rejected, label_chosen=ones, margin=zeros, weight=ones)
    torch.testing.assert_close(plain, full, rtol=0, atol=1e-14)


def test_swapping_pair_label_and_margin_changes_nothing() -> None:
    chosen, rejected, margin = torch.randn(3, 9, dtype=F64)
    label = torch.rand(9, dtype=F64)
    one_way = ranking_losses(chosen, rejected, label_chosen=label, margin=margin)
    other_way = ranking_losses(rejected, chosen, label_chosen=1 - label, margin=-margin)
    torch.testing.assert_close(one_way, other_way, rtol=0, atol=1e-12)


def test_weight_zero_equals_drop() -> None:
    chosen, rejected = torch.randn(2, 5, dtype=F64)
    weight = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0], dtype=F64)
    keep = weight > 0
    full, _ = ranking_loss(chosen, rejected, weight=weight)
    kept, _ = ranking_loss(chosen[keep], rejected[keep], weight=weight[keep])
    torch.testing.assert_close(full, kept, rtol=0, atol=1e-14)


def test_shift_of_both_scores_changes_nothing() -> None:
    chosen, rejected = torch.randn(2, 5, dtype=F64)
    torch.testing.assert_close(
        ranking_loss(chosen + 7, rejected + 7)[0], ranking_loss(chosen, rejected)[0]
    )


def test_badly_ordered_pair_keeps_loss_and_gradient() -> None:
    # -log sigmoid(-200) = 200 (+ e^-200), slope -1: no cap near 11.5, no dead gradient.
    chosen = torch.tensor([-100.0], requires_grad=True)
    loss, _ = ranking_loss(chosen, torch.tensor([100.0]))
    loss.backward()
    assert loss.item() == 200.0
    assert chosen.grad is not None
    assert chosen.grad.item() == -1.0


def test_metrics_are_detached_and_a_tie_is_not_correct() -> None:
    chosen, rejected = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    _, metrics = ranking_loss(chosen, rejected)
    assert metrics["accuracy"].item() == 0.0
    assert not any(value.requires_grad for value in metrics.values())


def test_gradient() -> None:
    chosen, rejected, margin = torch.randn(3, 4, dtype=F64).unbind()
    label, weight = torch.rand(2, 4, dtype=F64).unbind()
    inputs = [x.clone().requires_grad_() for x in (chosen, rejected, label, margin, weight)]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return ranking_loss(x[0], x[1], label_chosen=x[2], margin=x[3], weight=x[4])[0]

    assert torch.autograd.gradcheck(loss, inputs)


def test_wrong_shapes_are_refused() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"rejected_scores \(2,\)"):
        ranking_loss(x, torch.zeros(2))
    with pytest.raises(ShapeError, match=r"margin \(1,\)"):
        ranking_loss(x, x, margin=torch.zeros(1))
    with pytest.raises(ShapeError, match=r"weight \(1,\)"):
        ranking_loss(x, x, weight=torch.zeros(1))
    with pytest.raises(ShapeError, match="1 axes"):
        ranking_loss(torch.zeros(3, 1), torch.zeros(3, 1))
    with pytest.raises(ShapeError, match="floating point"):
        ranking_loss(x.long(), x.long())


def test_per_prompt_weight_by_hand() -> None:
    # Prompt 7 has three pairs (of three ranked responses), prompt 4 one, which counts for itself.
    weight = weight_per_prompt(torch.tensor([1.0, 1.0, 3.0, 0.5]), torch.tensor([7, 7, 7, 4]))
    assert weight.tolist() == pytest.approx([1 / 3, 1 / 3, 1, 0.5])


def test_a_prompt_counts_once_however_many_pairs_it_has() -> None:
    """The mean over prompts of the mean over a prompt's pairs, as a loop [InstructGPT eq. 1]."""
    chosen, rejected = torch.randn(2, 9, dtype=F64)
    prompt = torch.tensor([0, 0, 0, 0, 0, 0, 5, 5, 2])
    losses = ranking_losses(chosen, rejected).tolist()
    means = []
    for number in (0, 5, 2):
        own = [loss for loss, where in zip(losses, prompt.tolist(), strict=True) if where == number]
        means.append(sum(own) / len(own))
    weight = weight_per_prompt(torch.ones(9, dtype=F64), prompt)
    loss, _ = ranking_loss(chosen, rejected, weight=weight)
    assert loss.item() == pytest.approx(sum(means) / 3, abs=1e-12)
    # Where every prompt has one pair, nothing changes.
    given = torch.rand(9, dtype=F64)
    assert weight_per_prompt(given, torch.randperm(9)).equal(given)


def test_imitation_by_hand() -> None:
    # Response 1 has tokens of -1 and -3 nats, response 2 one of -5: means 2 and 5; weights 3, 1.
    logprobs = torch.tensor([[-1.0, -3.0], [-5.0, 7.0]], dtype=F64)
    mask = torch.tensor([[True, True], [True, False]])
    loss, metrics = imitation_loss(logprobs, mask, weight=torch.tensor([3.0, 1.0], dtype=F64))
    assert loss.item() == pytest.approx((3 * 2 + 5) / 4, abs=1e-12)
    assert metrics["imitation_loss"].item() == loss.item()
    assert imitation_loss(logprobs, mask)[0].item() == pytest.approx(3.5, abs=1e-12)


def test_imitation_equals_loop_and_masks_drop() -> None:
    logprobs, weight = -torch.rand(5, 6, dtype=F64), torch.rand(5, dtype=F64)
    lengths = [1, 6, 3, 2, 5]
    mask = torch.tensor([[t < length for t in range(6)] for length in lengths])
    total = 0.0
    for row, length, w in zip(logprobs.tolist(), lengths, weight.tolist(), strict=True):
        total -= w * sum(row[:length]) / length
    expected = pytest.approx(total / weight.sum().item(), abs=1e-12)
    assert imitation_loss(logprobs, mask, weight=weight)[0].item() == expected
    spoilt = logprobs.masked_fill(~mask, math.nan)
    assert imitation_loss(spoilt, mask, weight=weight)[0].item() == expected
    # Nothing but the factor depends on how long a response is.
    assert imitation_loss(torch.full((2, 3), -2.0), mask[1:3, :3])[0].item() == pytest.approx(2.0)


def test_imitation_gradient() -> None:
    logprobs, weight = -torch.rand(3, 4, dtype=F64), torch.rand(3, dtype=F64)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    inputs = [logprobs.requires_grad_(), weight.requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, w: imitation_loss(x, mask, weight=w)[0], inputs)


def test_wrong_shapes_of_the_further_terms_are_refused() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"prompt \(2,\)"):
        weight_per_prompt(x, torch.zeros(2).long())
    with pytest.raises(ShapeError, match="prompt must be torch.long"):
        weight_per_prompt(x, x)
    with pytest.raises(ShapeError, match="must be torch.bool"):
        imitation_loss(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"weight \(3,\)"):
        imitation_loss(torch.zeros(2, 3), torch.ones(2, 3).bool(), weight=x)
