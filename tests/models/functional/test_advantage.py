"""advantage: scores relative to the expected reward, and the bounded ranking loss."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.advantage import (
    advantage_loss,
    advantage_scale,
    advantage_scores,
    calibrated_margin,
    expected_reward_loss,
    leave_one_out_advantages,
    mixture_weights,
    require_enough_policies,
)
from trimtab.models.functional.checks import ShapeError

F64 = torch.float64
LOG2 = math.log(2)


# advantage_scores


def test_scores_by_hand() -> None:
    # N = 4, K = 2. r = 3, e = 2, ratios 2 and 1/2:
    #   3 - (4 - 2)/4 * 2 - (2 + 1/2)/4 * 3 = 3 - 1 - 1.875 = 0.125.
    # r = -1, e = 1, ratios 1 and e^9 clipped to 2: -1 - 1/2 + (1 + 2)/4 = -0.75.
    log_ratios = torch.tensor([[LOG2, -LOG2], [0.0, 9.0]], dtype=F64)
    advantages, metrics = advantage_scores(
        torch.tensor([3.0, -1.0], dtype=F64),
        torch.tensor([2.0, 1.0], dtype=F64),
        log_ratios,
        num_policies=4.0,
        log_ratio_clip=LOG2,
    )
    expected = torch.tensor([0.125, -0.75], dtype=F64)
    torch.testing.assert_close(advantages, expected, rtol=0, atol=1e-12)
    # One of four log-ratios lies outside the clip.
    assert metrics["log_ratio_clip_fraction"].item() == 0.25


def test_no_other_policy_is_reward_minus_expected() -> None:
    rewards, expected = torch.randn(2, 5)
    for log_ratios in (None, torch.zeros(5, 0)):
        for num_policies in (1.0, 3.5):
            advantages, metrics = advantage_scores(
                rewards, expected, log_ratios, num_policies, log_ratio_clip=1.0
            )
            assert advantages.equal(rewards - expected)
            assert metrics["log_ratio_clip_fraction"].item() == 0.0


def test_scores_equal_loop() -> None:
    rewards, expected = torch.randn(2, 6, dtype=F64)
    log_ratios = 2 * torch.randn(6, 3, dtype=F64)
    got, metrics = advantage_scores(
        rewards, expected, log_ratios, num_policies=5.0, log_ratio_clip=1.5
    )
    num_clipped = 0
    for i in range(6):
        r, e = rewards[i].item(), expected[i].item()
        slow = r - (5 - 3) / 5 * e
        for value in log_ratios[i].tolist():
            slow -= math.exp(min(max(value, -1.5), 1.5)) / 5 * r
            num_clipped += abs(value) > 1.5
        assert got[i].item() == pytest.approx(slow, abs=1e-12)
    assert metrics["log_ratio_clip_fraction"].item() == pytest.approx(num_clipped / 18, abs=1e-12)


def test_scores_invariants() -> None:
    rewards, expected = torch.randn(2, 4, dtype=F64)
    # Every policy the current one (ratio 1): a = (N - K) / N (r - e), which is 0 for K = N.
    log_ratios = torch.zeros(4, 3, dtype=F64)
    advantages, _ = advantage_scores(rewards, expected, log_ratios, 4.0, 1.0)
    torch.testing.assert_close(advantages, (rewards - expected) / 4, rtol=0, atol=1e-12)
    assert advantage_scale(4.0, 3) == 0.25
    # The order of the policies does not matter; ratios that would overflow stay finite.
    log_ratios = 1e4 * torch.randn(4, 3, dtype=F64)
    one, _ = advantage_scores(rewards, expected, log_ratios, 5.0, 3.0)
    other, _ = advantage_scores(rewards, expected, log_ratios.flip(1), 5.0, 3.0)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert one.isfinite().all()
    # Linear in (r, e).
    double, _ = advantage_scores(2 * rewards, 2 * expected, log_ratios, 5.0, 3.0)
    torch.testing.assert_close(double, 2 * one, rtol=0, atol=1e-12)


def test_scores_gradient_reaches_rewards_and_expected_only() -> None:
    rewards = torch.randn(3, dtype=F64, requires_grad=True)
    expected = torch.randn(3, dtype=F64, requires_grad=True)
    log_ratios = torch.randn(3, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda r, e: advantage_scores(r, e, log_ratios.detach(), 4.0, 1.0)[0], (rewards, expected)
    )
    advantage_scores(rewards, expected, log_ratios, 4.0, 1.0)[0].sum().backward()
    assert log_ratios.grad is None


def test_scores_refuse_bad_arguments() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"log_ratios must be \(B, K\) with B = 3"):
        advantage_scores(x, x, torch.zeros(2, 2), 4.0, 1.0)
    with pytest.raises(ShapeError, match=r"expected \(2,\)"):
        advantage_scores(x, torch.zeros(2), None, 4.0, 1.0)
    for too_few in (1.0, 2.0):
        with pytest.raises(ValueError, match=rf"columns \(2\), found {too_few}"):
            advantage_scores(x, x, torch.zeros(3, 2), too_few, 1.0)
    with pytest.raises(ValueError, match=r"found 0\.0"):
        advantage_scores(x, x, None, 0.0, 1.0)
    for clip in (0.0, 100.0):  # e^100 overflows float32
        with pytest.raises(ValueError, match=f"found {clip}"):
            advantage_scores(x, x, torch.zeros(3, 1), 4.0, clip)


# mixture_weights, leave_one_out_advantages, require_enough_policies


def test_mixture_weights_by_hand() -> None:
    # pi / pi'_k is (2, 1) and (1/2, 2), the second of e^9 clipped to 2. Over the mixture of both:
    # 2 / (1/2 + 1) = 4/3 and 2 / (2 + 1/2) = 4/5, of mean 16/15.
    log_ratios = torch.tensor([[LOG2, 0.0], [-LOG2, 9.0]], dtype=F64)
    weights = mixture_weights(log_ratios, log_ratio_clip=LOG2)
    assert weights.tolist() == pytest.approx([1.25, 0.75], abs=1e-12)


def test_mixture_weights_estimate_the_policys_expectation() -> None:
    """Of 6 answers, enumerated: sum over the mixture of weight * value is the policy's mean."""
    logits = torch.randn(3, 6, dtype=F64)
    policy, *others = logits.log_softmax(1)
    written = torch.stack(others).exp().mean(0)  # by both in equal parts
    values = torch.randn(6, dtype=F64)
    ratios = torch.stack([policy - other for other in others], dim=1)
    times = torch.round(written * 1e6).long()
    weights = mixture_weights(ratios.repeat_interleave(times, 0), 50.0)
    mean = (weights * values.repeat_interleave(times)).mean()
    assert float(mean) == pytest.approx(float((policy.exp() * values).sum()), abs=1e-4)
    assert float(weights.mean()) == pytest.approx(1, abs=1e-12)


def test_leave_one_out_by_hand() -> None:
    # N = 4, K = 2, r = (3, -1), e = 2, W = (3, 1). The chosen's baseline: W of the other is 1,
    # 3/4 * 2 + 1/4 * -1 = 1.25; the other's: 1/4 * 2 + 3/4 * 3 = 2.75.
    rewards = torch.tensor([[3.0, -1.0]], dtype=F64, requires_grad=True)
    expected = torch.full((1, 2), 2.0, dtype=F64, requires_grad=True)
    sums = torch.tensor([[3.0, 1.0]], dtype=F64)
    advantages = leave_one_out_advantages(rewards, expected, sums, 4.0)
    assert advantages[0].tolist() == pytest.approx([1.75, -3.75], abs=1e-12)
    advantages.sum().backward()
    assert rewards.grad is not None and rewards.grad.tolist() == [[1.0, 1.0]]
    assert expected.grad is not None and expected.grad.tolist() == [[-1.0, -1.0]]


def test_leave_one_out_does_not_depend_on_where_rewards_begin() -> None:
    rewards, expected = torch.randn(5, 2, dtype=F64), torch.randn(5, 1, dtype=F64).expand(5, 2)
    sums = 3 * torch.rand(5, 2, dtype=F64)
    one = leave_one_out_advantages(rewards, expected, sums, 4.0)
    other = leave_one_out_advantages(rewards + 7, expected + 7, sums, 4.0)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    # Nor does the loss push them: along a shift of both there is no gradient.
    shift = torch.zeros((), dtype=F64, requires_grad=True)
    moved = leave_one_out_advantages(rewards + shift, expected + shift, sums, 4.0)
    advantage_loss(rewards[:, 0], rewards[:, 1], bounded=(moved[:, 0], moved[:, 1]))[0].backward()
    assert shift.grad is not None and abs(float(shift.grad)) < 1e-12
    # As N grows, it is r - e.
    far = leave_one_out_advantages(rewards, expected, sums, 1e15)
    torch.testing.assert_close(far, rewards - expected, rtol=0, atol=1e-12)


def test_a_baseline_of_more_than_its_whole_weight_is_refused() -> None:
    require_enough_policies(torch.tensor([[1.0, 3.99]]), 4.0)
    for sums in (torch.tensor([[4.0, 1.0]]), torch.tensor([[1.0, 14.8]])):
        with pytest.raises(ValueError, match=r"above the largest sum .*, found 4"):
            require_enough_policies(sums, 4.0)


def test_weights_refuse_bad_arguments() -> None:
    with pytest.raises(ShapeError, match="mixture_weights"):
        mixture_weights(torch.zeros(3), 1.0)
    for clip in (0.0, 100.0):
        with pytest.raises(ValueError, match=f"mixture_weights: .* found {clip}"):
            mixture_weights(torch.zeros(3, 1), clip)
    with pytest.raises(ShapeError, match="leave_one_out_advantages"):
        leave_one_out_advantages(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 1), 4.0)


# calibrated_margin


def least_gap(probability: float, margins: tuple[float, float]) -> float:
    """The gap at which eq. 6 is least over both labels of a pair, each with its m(x)."""
    gaps = torch.linspace(-8, 8, 160_001, dtype=F64)
    loss = torch.zeros_like(gaps)
    for share, gap, m in (
        (probability, gaps, margins[0]),
        (1 - probability, -gaps, margins[1]),
    ):
        better, worse = gap / 2, -gap / 2
        sides = torch.stack([gap, m - better, m + worse])
        loss -= share * torch.nn.functional.logsigmoid(sides).sum(0)
    return float(gaps[loss.argmin()])


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.75, 0.9, 0.97])
def test_the_calibrated_margin_gives_the_labels_probability_back(probability: float) -> None:
    log_odds = torch.tensor([probability, 1 - probability], dtype=F64).logit()
    right, wrong = calibrated_margin(log_odds, 10.0).tolist()
    gap = least_gap(probability, (right, wrong))
    assert 1 / (1 + math.exp(-gap)) == pytest.approx(probability, abs=1e-4)


def test_a_constant_margin_is_not_calibrated() -> None:
    gap = least_gap(0.9, (2.5, 2.5))
    assert 1 / (1 + math.exp(-gap)) == pytest.approx(0.783, abs=1e-3)


def test_the_calibrated_margin_is_bounded() -> None:
    log_odds = torch.tensor([math.inf, 1.0, -0.2, -9.0], dtype=F64)
    assert calibrated_margin(log_odds, 2.5).tolist() == pytest.approx([2.5, 1.5, -0.3, -2.5])
    for largest in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"found {largest}"):
            calibrated_margin(log_odds, largest)


# advantage_loss


def slow_advantage_loss(chosen: Tensor, rejected: Tensor, margin: float) -> float:
    """[AM eq. 6] pair by pair, through the sigmoid itself."""
    total = 0.0
    for c, r in zip(chosen.tolist(), rejected.tolist(), strict=True):
        for x in (c - r, margin - c, margin + r):
            total -= math.log(1 / (1 + math.exp(-x)))
    return total / len(chosen)


def test_loss_by_hand() -> None:
    # a_c = log 3, a_r = 0, m = log 3: sigmoid(log 3) = 3/4, sigmoid(0) = 1/2, sigmoid(log 3).
    # Ranking log 4/3, bounding log 2 + log 4/3.
    log3 = math.log(3)
    chosen, rejected = torch.tensor([log3], dtype=F64), torch.tensor([0.0], dtype=F64)
    loss, metrics = advantage_loss(chosen, rejected, margin=log3)
    ranking, bounding = math.log(4 / 3), LOG2 + math.log(4 / 3)
    assert loss.item() == pytest.approx(ranking + bounding, abs=1e-12)
    assert metrics["ranking_loss"].item() == pytest.approx(ranking, abs=1e-12)
    assert metrics["bounding_loss"].item() == pytest.approx(bounding, abs=1e-12)
    assert metrics["accuracy"].item() == 1.0
    assert metrics["score_gap"].item() == pytest.approx(log3, abs=1e-12)


def test_soft_label_margin_and_weight_by_hand() -> None:
    # Pair 1 (weight 3): gap log 3 + 1, ranking margin 1, label 0.9, m = log 3 + 1 on a_c = log 3
    # + 1 (sigmoid 1/2) and a_r = 0 (sigmoid(log 3 + 1) = 3e/(1 + 3e)); turned round, m on 0 and on
    # -(log 3 + 1): sigmoid(log 3 + 1) and sigmoid(2 log 3 + 2) = 9e^2/(1 + 9e^2).
    # Pair 2 (weight 1): both 0, label 1: log 2, and twice -log sigmoid(m).
    log3 = math.log(3)
    m = log3 + 1
    outer = math.log((1 + 3 * math.e) / (3 * math.e))
    ranking = -(0.9 * math.log(3 / 4) + 0.1 * math.log(1 / 4))
    swapped = outer + math.log1p(1 / (9 * math.e**2))
    first = ranking + 0.9 * (LOG2 + outer) + 0.1 * swapped
    second = LOG2 + 2 * outer
    loss, _ = advantage_loss(
        torch.tensor([m, 0.0], dtype=F64),
        torch.tensor([0.0, 0.0], dtype=F64),
        margin=m,
        label_chosen=torch.tensor([0.9, 1.0], dtype=F64),
        ranking_margin=torch.tensor([1.0, 0.0], dtype=F64),
        weight=torch.tensor([3.0, 1.0], dtype=F64),
    )
    assert loss.item() == pytest.approx((3 * first + second) / 4, abs=1e-12)


def test_a_tie_prefers_neither_response() -> None:
    """Were its bounds those of a certain label, a tie would be cheapest at a gap below 0."""
    gaps = torch.linspace(-2, 2, 401, dtype=F64)
    tie = torch.tensor([0.5], dtype=F64)
    losses = [advantage_loss(g[None] / 2, -g[None] / 2, label_chosen=tie)[0] for g in gaps]
    assert gaps[torch.stack(losses).argmin()].abs() < 1e-9
    assert losses[100].item() == pytest.approx(losses[300].item(), abs=1e-12)


def test_loss_equals_loop_with_the_papers_margin() -> None:
    chosen, rejected = 2 * torch.randn(2, 10, dtype=F64)
    loss, metrics = advantage_loss(chosen, rejected)
    assert loss.item() == pytest.approx(slow_advantage_loss(chosen, rejected, 2.5), abs=1e-12)
    parts = metrics["ranking_loss"] + metrics["bounding_loss"]
    torch.testing.assert_close(parts, loss, rtol=0, atol=1e-12)


def test_loss_invariants() -> None:
    chosen, rejected = torch.randn(2, 8, dtype=F64)
    loss, _ = advantage_loss(chosen, rejected)
    # Swapping the pair and negating both scores: a_c - a_r, m - a_c and m + a_r map onto
    # themselves.
    torch.testing.assert_close(advantage_loss(-rejected, -chosen)[0], loss, rtol=0, atol=1e-12)
    # A soft label is the share of times that the pair is given in its order, label 0 that in none.
    label = torch.rand(8, dtype=F64)
    soft, parts = advantage_loss(chosen, rejected, label_chosen=label)
    order = advantage_loss(chosen, rejected, weight=label)[0] * label.mean()
    swapped = advantage_loss(rejected, chosen, weight=1 - label)[0] * (1 - label).mean()
    torch.testing.assert_close(soft, order + swapped, rtol=0, atol=1e-12)
    torch.testing.assert_close(sum(parts[f"{part}_loss"] for part in ("ranking", "bounding")), soft)
    # Weight 0 equals dropping the pair, in both parts.
    weight = (torch.arange(8) % 2).double()
    kept, _ = advantage_loss(chosen[1::2], rejected[1::2])
    torch.testing.assert_close(
        advantage_loss(chosen, rejected, weight=weight)[0], kept, rtol=0, atol=1e-12
    )
    # Unlike the reward model's loss, shifting both scores costs: the bounds pull to the middle.
    assert advantage_loss(chosen + 5, rejected + 5)[0] > loss


def test_loss_gradient() -> None:
    chosen, rejected, ranking_margin = torch.randn(3, 4, dtype=F64).unbind()
    label, weight = torch.rand(2, 4, dtype=F64).unbind()
    inputs = [x.clone().requires_grad_() for x in (chosen, rejected, label, ranking_margin, weight)]

    def loss(*x: Tensor) -> Tensor:
        return advantage_loss(x[0], x[1], label_chosen=x[2], ranking_margin=x[3], weight=x[4])[0]

    assert torch.autograd.gradcheck(loss, inputs)
    _, metrics = advantage_loss(inputs[0], inputs[1])
    assert not any(value.requires_grad for value in metrics.values())


def test_margins_of_pairs_hold_each_for_its_pair() -> None:
    chosen, rejected = torch.randn(2, 6, dtype=F64)
    margins, labels = torch.randn(6, dtype=F64), torch.rand(6, dtype=F64)
    loss, _ = advantage_loss(chosen, rejected, margin=margins, label_chosen=labels)
    slow = 0.0
    for c, r, m, p in zip(chosen, rejected, margins.tolist(), labels.tolist(), strict=True):
        given, swapped = (
            advantage_loss(a[None], b[None], margin=bound)[0].item()
            for a, b, bound in ((c, r, m), (r, c, -m))
        )
        slow += (p * given + (1 - p) * swapped) / 6
    assert loss.item() == pytest.approx(slow, abs=1e-12)
    with pytest.raises(ShapeError, match="advantage_loss"):
        advantage_loss(chosen, rejected, margin=margins[:5])


def test_what_is_bounded_may_differ_from_what_is_ranked() -> None:
    chosen, rejected, better, worse = torch.randn(4, 5, dtype=F64)
    _, parts = advantage_loss(chosen, rejected, bounded=(better, worse))
    _, ranked = advantage_loss(chosen, rejected)
    _, held = advantage_loss(better, worse)
    assert parts["ranking_loss"].equal(ranked["ranking_loss"])
    assert parts["bounding_loss"].equal(held["bounding_loss"])


def test_loss_refuses_bad_arguments() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"rejected_adv \(2,\)"):
        advantage_loss(x, torch.zeros(2))
    with pytest.raises(ShapeError, match=r"ranking_margin \(1,\)"):
        advantage_loss(x, x, ranking_margin=torch.zeros(1))
    with pytest.raises(ValueError, match="margin must be finite"):
        advantage_loss(x, x, margin=math.inf)


# expected_reward_loss


def test_expected_reward_by_hand_and_loop() -> None:
    # ((1 - 3)^2 + (2 - 1)^2) / 2 = 2.5; means 1.5 and 2.
    loss, metrics = expected_reward_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]))
    assert loss.item() == 2.5
    assert metrics["expected_reward_loss"].item() == 2.5
    assert metrics["expected_mean"].item() == 1.5
    assert metrics["policy_reward_mean"].item() == 2.0
    expected, target = torch.randn(2, 7, dtype=F64)
    slow = sum((e - t) ** 2 for e, t in zip(expected.tolist(), target.tolist(), strict=True)) / 7
    assert expected_reward_loss(expected, target)[0].item() == pytest.approx(slow, abs=1e-12)


def test_expected_reward_invariants_and_gradient() -> None:
    expected = torch.randn(5, dtype=F64, requires_grad=True)
    target = torch.randn(5, dtype=F64, requires_grad=True)
    assert expected_reward_loss(expected, expected)[0].item() == 0.0
    shifted = expected_reward_loss(expected + 3, target + 3)[0]
    torch.testing.assert_close(shifted, expected_reward_loss(expected, target)[0])
    assert torch.autograd.gradcheck(lambda e: expected_reward_loss(e, target.detach())[0], expected)
    loss, metrics = expected_reward_loss(expected, target)
    loss.backward()
    assert target.grad is None
    assert not any(value.requires_grad for value in metrics.values())
    with pytest.raises(ShapeError, match=r"target \(2,\)"):
        expected_reward_loss(expected, torch.zeros(2))
