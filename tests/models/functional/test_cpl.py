"""cpl: discounted segments, the conservative bias, and where the loss is DPO's."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.cpl import cpl_loss, segment_scores
from trimtab.models.functional.dpo import dpo_loss

F64 = torch.float64
LOG3 = math.log(3)


def slow_score(logprobs: list[float], mask: list[bool], alpha: float, gamma: float) -> float:
    """A segment's sum, step by step."""
    total, discount = 0.0, 1.0
    for logprob, counts in zip(logprobs, mask, strict=True):
        if counts:
            total += discount * alpha * logprob
            discount *= gamma
    return total


def test_segment_by_hand() -> None:
    # 0.5 (-1 + 0.1 x -2 + 0.01 x -3) = -0.615.
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]], dtype=F64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert segment_scores(logprobs, mask, 0.5, 0.1).item() == pytest.approx(-0.615, abs=1e-12)


def test_segments_equal_the_loop_and_masked_steps_are_no_steps() -> None:
    logprobs, mask = -torch.rand(6, 9, dtype=F64), torch.rand(6, 9) < 0.7
    spoilt = logprobs.masked_fill(~mask, torch.nan)
    found = segment_scores(spoilt, mask, 0.3, 0.9)
    expected = [
        slow_score(row.tolist(), counts.tolist(), 0.3, 0.9)
        for row, counts in zip(logprobs, mask, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-12)
    dropped = segment_scores(logprobs[0][mask[0]][None], mask[0][mask[0]][None], 0.3, 0.9)
    torch.testing.assert_close(dropped, found[:1], rtol=0, atol=1e-12)


def test_loss_by_hand() -> None:
    # Scores -1 and -1 - log 3: at lambda 1 the logit is log 3, loss log(4/3). At lambda 1/2 it is
    # -1 + (1 + log 3) / 2 = (log 3 - 1) / 2.
    chosen, rejected = torch.tensor([[-1.0], [-1.0 - LOG3]], dtype=F64)
    loss, metrics = cpl_loss(chosen, rejected, conservative_bias=1.0)
    assert loss.item() == pytest.approx(math.log(4 / 3), abs=1e-12)
    assert metrics["score_gap"].item() == pytest.approx(LOG3, abs=1e-12)
    assert metrics["accuracy"].item() == 1.0
    biased, _ = cpl_loss(chosen, rejected, conservative_bias=0.5)
    assert biased.item() == pytest.approx(math.log(1 + math.exp(-(LOG3 - 1) / 2)), abs=1e-12)


def test_soft_label_margin_and_weight_equal_the_loop() -> None:
    chosen, rejected = -torch.rand(2, 8, dtype=F64)
    label, weight = torch.rand(2, 8, dtype=F64)
    margin = torch.randn(8, dtype=F64)
    loss, _ = cpl_loss(
        chosen, rejected, conservative_bias=0.6, label_chosen=label, margin=margin, weight=weight
    )
    total = 0.0
    columns = [x.tolist() for x in (chosen, rejected, label, margin, weight)]
    for c, r, p, m, w in zip(*columns, strict=True):
        one_way = math.log(1 + math.exp(-(c - 0.6 * r - m)))
        other_way = math.log(1 + math.exp(-(r - 0.6 * c + m)))
        total += w * (p * one_way + (1 - p) * other_way)
    assert loss.item() == pytest.approx(total / float(weight.sum()), abs=1e-12)


def test_likelier_pairs_lose_less_below_lambda_1_and_the_same_at_1() -> None:
    """Adding c to all log-probabilities adds (1 - lambda) alpha c to the logit."""
    chosen, rejected = -torch.rand(2, 5, dtype=F64) - 1
    for bias, is_smaller in ((0.5, True), (1.0, False)):
        before, _ = cpl_loss(chosen, rejected, conservative_bias=bias)
        after, _ = cpl_loss(chosen + 0.5, rejected + 0.5, conservative_bias=bias)
        assert bool(after < before - 1e-3) == is_smaller
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_on_one_step_it_is_dpo_with_a_reference_that_prefers_neither() -> None:
    chosen, rejected, reference = -torch.rand(3, 7, 1, dtype=F64)
    mask = torch.ones(7, 1, dtype=torch.bool)
    for gamma in (1.0, 0.3):
        scores = [segment_scores(x, mask, 0.2, gamma) for x in (chosen, rejected)]
        ours, _ = cpl_loss(*scores, conservative_bias=1.0)
        equal = reference[:, 0]
        theirs, _ = dpo_loss(chosen[:, 0], rejected[:, 0], equal, equal, beta=0.2)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_on_whole_responses_it_is_dpo_at_gamma_1_only() -> None:
    chosen, rejected = -torch.rand(2, 7, 4, dtype=F64)
    mask, equal = torch.ones(7, 4, dtype=torch.bool), torch.zeros(7, dtype=F64)
    theirs, _ = dpo_loss(chosen.sum(1), rejected.sum(1), equal, equal, beta=0.2)
    for gamma, is_equal in ((1.0, True), (0.5, False)):
        scores = [segment_scores(x, mask, 0.2, gamma) for x in (chosen, rejected)]
        ours, _ = cpl_loss(*scores, conservative_bias=1.0)
        assert (abs(ours - theirs).item() < 1e-14) == is_equal


def test_another_reference_shifts_dpo_s_logit_by_its_own_preference() -> None:
    chosen, rejected, ref_chosen, ref_rejected = -torch.rand(4, 7, dtype=F64)
    theirs, _ = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.2)
    ours, _ = cpl_loss(
        0.2 * chosen,
        0.2 * rejected,
        conservative_bias=1.0,
        margin=0.2 * (ref_chosen - ref_rejected),
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_gradient() -> None:
    logprobs = [(-torch.rand(3, 4, dtype=F64)).requires_grad_() for _ in range(2)]
    mask, label = torch.rand(3, 4) < 0.8, torch.rand(3, dtype=F64)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        scores = [segment_scores(value, mask, 0.7, 0.9) for value in values]
        return cpl_loss(*scores, conservative_bias=0.5, label_chosen=label)[0]

    assert torch.autograd.gradcheck(loss, logprobs)


def test_what_is_wrong_is_refused() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"margin \(2,\)"):
        cpl_loss(x, x, conservative_bias=1.0, margin=torch.zeros(2))
    with pytest.raises(ValueError, match="conservative_bias must be in"):
        cpl_loss(x, x, conservative_bias=0.0)
    with pytest.raises(ShapeError, match=r"torch\.bool"):
        segment_scores(torch.zeros(2, 3), torch.ones(2, 3), 1.0, 1.0)
