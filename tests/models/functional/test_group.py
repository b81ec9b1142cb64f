"""Policy gradients without a critic: baselines, means of a loss, KL estimators, long responses."""

from __future__ import annotations

import math
from itertools import product
from typing import Literal

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.group import (
    GroupBaseline,
    KLEstimator,
    LossMean,
    group_advantages,
    kl_estimates,
    mean_loss,
    overlong_penalties,
    truncated_weights,
)
from trimtab.models.functional.ppo import kl_loss, policy_loss

F64 = torch.float64
ESTIMATORS: tuple[KLEstimator, ...] = ("k1", "k2", "k3")


# group_advantages


def test_advantages_by_hand() -> None:
    # Returns 1, 2, 6 of one prompt: the others' means are 4, 3.5, 1.5; the mean of all is 3, the
    # deviation sqrt((4 + 1 + 9) / 2) = sqrt 7. Of another prompt they are equal.
    returns = torch.tensor([1.0, 2.0, 6.0, 5.0, 5.0, 5.0], dtype=F64)
    left_out = group_advantages(returns, 3, "leave_one_out")
    assert left_out.tolist() == pytest.approx([-3.0, -1.5, 4.5, 0.0, 0.0, 0.0])
    centred = group_advantages(returns, 3, "group_mean")
    assert centred.tolist() == pytest.approx([-2.0, -1.0, 3.0, 0.0, 0.0, 0.0])
    scaled = group_advantages(returns, 3, "group_mean", divide_by_std=True)
    over = 7**0.5 + 1e-4
    assert scaled.tolist() == pytest.approx([-2 / over, -1 / over, 3 / over, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("baseline", ["leave_one_out", "group_mean"])
@pytest.mark.parametrize("divide_by_std", [False, True])
def test_advantages_equal_a_loop(baseline: GroupBaseline, divide_by_std: bool) -> None:
    returns = torch.randn(12, dtype=F64)
    found = group_advantages(returns, 4, baseline, divide_by_std)
    for at, value in enumerate(returns.tolist()):
        group = returns.tolist()[at // 4 * 4 : at // 4 * 4 + 4]
        others = [*group[: at % 4], *group[at % 4 + 1 :]] if baseline == "leave_one_out" else group
        expected, mean = value - sum(others) / len(others), sum(group) / 4
        if divide_by_std:
            std = math.sqrt(sum((one - mean) ** 2 for one in group) / 3)
            expected /= std + 1e-4
        assert found[at].item() == pytest.approx(expected, abs=1e-12)


def test_a_constant_of_a_prompt_changes_no_advantage() -> None:
    returns = torch.randn(3, 4, dtype=F64)
    moved = returns + torch.randn(3, 1, dtype=F64)
    for baseline in ("leave_one_out", "group_mean"):
        ours, theirs = (group_advantages(r.flatten(), 4, baseline) for r in (returns, moved))
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours.view(3, 4).sum(1), torch.zeros(3, dtype=F64))


def _softmax_policy() -> tuple[Tensor, Tensor]:
    """Logits (3,) of a policy over three responses, and their returns."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=F64, requires_grad=True)
    return logits, torch.tensor([1.0, -2.0, 0.7], dtype=F64)


def test_leave_one_out_has_the_gradient_of_the_expected_return() -> None:
    """Over all pairs of responses with their probabilities; the mean of both has half of it, and
    divided by the deviation it is of another direction."""
    logits, returns = _softmax_policy()
    (true,) = torch.autograd.grad((logits.softmax(0) * returns).sum(), logits)

    def expected(baseline: GroupBaseline, divide_by_std: bool = False) -> Tensor:
        total = torch.zeros(3, dtype=F64)
        for pair in product(range(3), repeat=2):
            weight = logits.softmax(0)[list(pair)].prod().detach()
            advantages = group_advantages(returns[list(pair)], 2, baseline, divide_by_std)
            mean = (advantages * logits.log_softmax(0)[list(pair)]).mean()
            total += weight * torch.autograd.grad(mean, logits)[0]
        return total

    torch.testing.assert_close(expected("leave_one_out"), true)
    torch.testing.assert_close(expected("group_mean"), true / 2)
    scaled = expected("group_mean", divide_by_std=True)
    assert torch.cosine_similarity(scaled, true, dim=0) < 0.99


def test_advantages_refuse_what_is_no_group() -> None:
    for returns, count in ((torch.zeros(4), 1), (torch.zeros(5), 2)):
        with pytest.raises(ValueError, match=f"found {count} and {len(returns)}"):
            group_advantages(returns, count, "group_mean")
    with pytest.raises(ShapeError, match="expected 1 axes"):
        group_advantages(torch.zeros(2, 2), 2, "group_mean")


# mean_loss


def test_means_by_hand() -> None:
    # A response of three tokens, one of one token.
    x = torch.tensor([[1.0, 2.0, 6.0], [5.0, 9.0, 9.0]], dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    means = {LossMean(): 14 / 4, LossMean("sequence"): (3 + 5) / 2}
    means |= {LossMean("constant", 7): 14 / (2 * 7)}
    for mean, expected in means.items():
        assert mean_loss(x, mask, mean).item() == pytest.approx(expected)
        assert torch.autograd.gradcheck(lambda y, m=mean: mean_loss(y, mask, m), x)
    # Of a response of twice the tokens each weighs half in `sequence`, and as much in the others.
    (weights,) = torch.autograd.grad(mean_loss(x, mask, LossMean("sequence")), x)
    assert weights.tolist() == [pytest.approx([1 / 6] * 3), [0.5, 0.0, 0.0]]


@pytest.mark.parametrize("mean", [LossMean(), LossMean("sequence"), LossMean("constant", 5)])
def test_what_is_not_counted_is_not_there(mean: LossMean) -> None:
    x, mask = torch.randn(3, 5, dtype=F64), torch.rand(3, 5) < 0.6
    mask[:, 0] = True
    dirty = torch.where(mask, x, torch.nan).requires_grad_()
    found = mean_loss(dirty, mask, mean)
    torch.testing.assert_close(found, mean_loss(x, mask, mean))
    found.backward()
    assert dirty.grad is not None and dirty.grad.isfinite().all()
    assert dirty.grad[~mask].eq(0).all()


def test_a_constant_needs_its_length() -> None:
    for length in (None, 0):
        with pytest.raises(ValueError, match="max_length must be positive"):
            mean_loss(torch.zeros(1, 2), torch.ones(1, 2).bool(), LossMean("constant", length))


# KL


def test_estimates_by_hand() -> None:
    ours, theirs = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.25)]])
    found = {name: kl_estimates(ours, theirs, name).item() for name in ESTIMATORS}
    log2 = math.log(2)
    assert found == pytest.approx({"k1": log2, "k2": log2**2 / 2, "k3": 0.5 - 1 + log2})
    for name in ("k2", "k3"):  # never below 0
        x, y = torch.randn(2, 4, 9, dtype=F64)
        assert (kl_estimates(x, y, name) >= 0).all()


def _tokens() -> tuple[Tensor, Tensor]:
    """Logits (5,) of a policy and log-probabilities (5,) of a reference over five tokens."""
    logits = torch.tensor([0.4, -1.0, 0.2, 1.3, -0.5], dtype=F64, requires_grad=True)
    return logits, torch.tensor([-0.3, 0.5, 0.9, -1.0, 0.1], dtype=F64).log_softmax(0)


def test_the_mean_of_k1_and_k3_is_the_kl() -> None:
    logits, reference = _tokens()
    logprobs = logits.detach().log_softmax(0)
    kl = (logprobs.exp() * (logprobs - reference)).sum().item()
    means = {
        name: (logprobs.exp() * kl_estimates(logprobs[:, None], reference[:, None], name)[:, 0])
        .sum()
        .item()
        for name in ESTIMATORS
    }
    assert means["k1"] == pytest.approx(kl) and means["k3"] == pytest.approx(kl)
    assert abs(means["k2"] - kl) > 0.05


def _gradients(weights: Tensor | None = None) -> dict[str, Tensor]:
    """Expected gradients of the estimators in the loss, over all tokens with their probabilities,
    and the true ones of the KL each way round; `weights`: of another policy that sampled."""
    logits, reference = _tokens()
    logprobs = logits.log_softmax(0)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    other = (reference.exp() * (reference - logprobs)).sum()
    found = {}
    for name, value in (("kl", kl), ("reverse", other)):
        (found[name],) = torch.autograd.grad(value, logits, retain_graph=True)
    sampled = logprobs.exp().detach() if weights is None else weights
    old = sampled.log()[:, None]
    mask, coef = torch.ones(5, 1, dtype=torch.bool), 5 * sampled  # the mean is over five tokens
    for name in ESTIMATORS:
        for ending, noted in (("", None), (" corrected", old)):
            terms = logprobs[:, None], reference[:, None], mask, coef, name
            loss, _ = kl_loss(*terms, old_logprobs=noted)
            (found[name + ending],) = torch.autograd.grad(loss, logits, retain_graph=True)
    return found


def test_the_bias_of_estimators_in_the_loss() -> None:
    of = _gradients()
    torch.testing.assert_close(of["k1"], torch.zeros(5, dtype=F64))
    torch.testing.assert_close(of["k2"], of["kl"])
    torch.testing.assert_close(of["k3"], of["reverse"])
    assert (of["k3"] - of["kl"]).abs().max() > 0.05
    for name in ("k1 corrected", "k3 corrected"):
        torch.testing.assert_close(of[name], of["kl"])


def test_the_correction_holds_for_tokens_of_another_policy() -> None:
    of = _gradients(torch.tensor([0.1, 0.4, 0.2, 0.1, 0.2], dtype=F64))
    for name in ("k1 corrected", "k3 corrected"):
        torch.testing.assert_close(of[name], of["kl"])
    for name in ("k1", "k2", "k3"):
        assert (of[name] - of["kl"]).abs().max() > 0.05


def test_the_bias_of_estimators_in_the_reward() -> None:
    """There they weigh the score function: only k1 has the KL's gradient."""
    logits, reference = _tokens()
    logprobs, true = logits.log_softmax(0), _gradients()["kl"]
    for name in ESTIMATORS:
        estimates = kl_estimates(logprobs.detach()[:, None], reference[:, None], name)[:, 0]
        surrogate = (logprobs.exp().detach() * estimates * logprobs).sum()
        (found,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
        assert torch.allclose(found, true) == (name == "k1")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("mean", [LossMean(), LossMean("sequence"), LossMean("constant", 6)])
def test_the_kl_loss_equals_a_loop_and_leaves_out_what_is_not_counted(
    estimator: KLEstimator, mean: LossMean
) -> None:
    ours, theirs, old = torch.randn(3, 2, 4, dtype=F64)
    mask = torch.tensor([[True, True, True, False], [False, True, False, False]])
    coef = torch.tensor([0.5, 2.0], dtype=F64)
    dirty = torch.where(mask, ours, torch.nan).requires_grad_()
    loss, metrics = kl_loss(dirty, theirs, mask, coef, estimator, mean, old)
    totals = [0.0, 0.0]
    for i in range(2):
        for t in range(4):
            if mask[i, t]:
                log_ratio = (ours[i, t] - theirs[i, t]).item()
                value = {
                    "k1": log_ratio,
                    "k2": log_ratio**2 / 2,
                    "k3": math.exp(-log_ratio) - 1 + log_ratio,
                }[estimator]
                totals[i] += coef[i].item() * value * math.exp(ours[i, t] - old[i, t])
    expected = {
        "token": sum(totals) / 4,
        "sequence": (totals[0] / 3 + totals[1]) / 2,
        "constant": sum(totals) / 12,
    }[mean.over]
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert metrics["kl_loss"].item() == loss.item() and not metrics["kl_loss"].requires_grad
    loss.backward()
    assert dirty.grad is not None and dirty.grad.isfinite().all()
    assert dirty.grad[~mask].eq(0).all()
    clean = ours.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: kl_loss(x, theirs, mask, coef, estimator, mean, old)[0], clean
    )


def test_the_kl_loss_refuses_bad_arguments() -> None:
    x, coef = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(ShapeError, match=r"kl_coef \(3,\)"):
        kl_loss(x, x, x.bool(), torch.zeros(3), "k3")
    with pytest.raises(ShapeError, match="response_mask must be"):
        kl_loss(x, x, x, coef, "k3")
    with pytest.raises(ShapeError, match=r"old_logprobs \(1, 3\)"):
        kl_loss(x, x, x.bool(), coef, "k3", old_logprobs=x[:1])


# policy_loss: the clip above, ratios of whole responses


def test_the_clip_may_be_wider_above() -> None:
    # Ratios 1.25 and 1.5 of good tokens, 0.7 of a bad one, with eps .2 below and .3 above.
    ratios = torch.tensor([[1.25, 1.5, 0.7]], dtype=F64)
    advantages, mask = torch.tensor([[1.0, 1.0, -1.0]], dtype=F64), torch.ones(1, 3).bool()
    old = torch.zeros(1, 3, dtype=F64)
    loss, metrics = policy_loss(ratios.log(), old, advantages, mask, (0.2, 0.3))
    assert loss.item() == pytest.approx(-(1.25 + 1.3 - 0.8) / 3)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"policy_clip must be positive or None, found \(0.2, 0"):
        policy_loss(old, old, advantages, mask, (0.2, 0.0))


def test_the_ratio_may_be_of_a_whole_response() -> None:
    # Token ratios 2 and 3 make 6, which is clipped to 1.2; 1/2 and 4 with an advantage of -1
    # make 2, whose unclipped term is the smaller; the last token is not counted.
    ratios = torch.tensor([[2.0, 3.0, 7.0], [0.5, 4.0, 1.0]], dtype=F64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    advantages = torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=F64)
    old = torch.full((2, 3), -2.0, dtype=F64)
    new = (old + ratios.log()).requires_grad_()
    loss, metrics = policy_loss(new, old, advantages, mask, 0.2, "response", LossMean("sequence"))
    assert loss.item() == pytest.approx(-(1.2 - 2) / 2)
    assert metrics["clip_fraction"].item() == 0.5
    assert metrics["ratio_mean"].item() == pytest.approx((6 + 2) / 2)
    (gradient,) = torch.autograd.grad(loss, new)
    # Nothing past the clip; every token of the other has the ratio's gradient, 2 / 2.
    assert gradient.tolist() == [[0.0] * 3, pytest.approx([1.0] * 3)]
    inside = (old + 0.1 * torch.randn(2, 3, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: policy_loss(x, old, advantages, mask, 0.9, "response")[0], inside
    )


def test_at_ratio_one_a_response_has_the_gradient_of_its_likelihood() -> None:
    """That of REINFORCE: -A for every token, over the number of responses."""
    logprobs, mask = torch.randn(4, 6, dtype=F64, requires_grad=True), torch.rand(4, 6) < 0.7
    mask[:, 0] = True
    advantages = torch.randn(4, 1, dtype=F64).expand(4, 6)
    old = logprobs.detach()
    loss, _ = policy_loss(logprobs, old, advantages, mask, 0.2, "response", LossMean("sequence"))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, torch.where(mask, -advantages / 4, 0.0))


# truncated_weights


def test_truncated_weights_by_hand() -> None:
    """Ratios 3, 1/2, 1 and, not counted, one of what is unknown; their product is 3/2."""
    sampler = torch.full((1, 4), -2.0, dtype=F64)
    logprobs = sampler + torch.tensor([[3.0, 0.5, 1.0, 1.0]], dtype=F64).log()
    sampler[0, 3] = float("nan")
    mask = torch.tensor([[True, True, True, False]])
    by_token = truncated_weights(logprobs.requires_grad_(), sampler, mask, 2.0)
    assert by_token.tolist() == [pytest.approx([2.0, 0.5, 1.0, 1.0])]
    assert not by_token.requires_grad
    by_response = truncated_weights(logprobs, sampler, mask, 2.0, "response")
    assert by_response.tolist() == [pytest.approx([1.5, 1.5, 1.5, 1.0])]
    assert truncated_weights(logprobs, sampler, mask, 1.2, "response").max() == pytest.approx(1.2)
    with pytest.raises(ValueError, match="cap must be positive, found 0"):
        truncated_weights(logprobs, sampler, mask, 0.0)


@pytest.mark.parametrize("ratio_of", ["token", "response"])
def test_weights_make_the_gradient_that_of_the_policy(
    ratio_of: Literal["token", "response"],
) -> None:
    """Over all answers of one token, drawn from another distribution q; truncated at C it is that
    of min(pi, C q)."""
    logits = torch.randn(5, dtype=F64, requires_grad=True)
    sampler = torch.randn(5, dtype=F64).log_softmax(0).unsqueeze(1)
    advantages, mask = torch.randn(5, 1, dtype=F64), torch.ones(5, 1, dtype=torch.bool)

    def gradient(drawn_from: Tensor, cap: float | None) -> Tensor:
        logprobs = logits.log_softmax(0).unsqueeze(1)
        old = logprobs.detach()
        weights = 1.0 if cap is None else truncated_weights(old, sampler, mask, cap, ratio_of)
        given = (logprobs, old, advantages * weights, mask)
        losses = [
            probability * policy_loss(*(x[n : n + 1] for x in given), None, ratio_of)[0]
            for n, probability in enumerate(drawn_from.exp().flatten().tolist())
        ]
        (result,) = torch.autograd.grad(torch.stack(losses).sum(), logits)
        return result

    policy = logits.detach().log_softmax(0).unsqueeze(1)
    for cap in (math.inf, 2.0, 0.5):
        expected = gradient(torch.minimum(policy, sampler + math.log(cap)), None)
        torch.testing.assert_close(gradient(sampler, cap), expected)


# overlong_penalties


def test_overlong_penalties_by_hand() -> None:
    lengths = torch.tensor([1, 15, 16, 18, 20])
    assert overlong_penalties(lengths, 20, 5).tolist() == pytest.approx([0.0, 0.0, 0.2, 0.6, 1.0])
    for buffer in (0, 21):
        with pytest.raises(ValueError, match=rf"buffer must be in \[1, 20\].*found {buffer}"):
            overlong_penalties(lengths, 20, buffer)
