"""dpo: the loss by hand, by a loop, and its known optimum on a bandit."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.dpo import dpo_loss, implicit_rewards

F64 = torch.float64
LOG3 = math.log(3)


def slow_loss(
    chosen: list[float],
    rejected: list[float],
    ref_chosen: list[float],
    ref_rejected: list[float],
    label: list[float],
    margin: list[float],
    weight: list[float],
    *,
    beta: float,
    smoothing: float,
) -> float:
    """Eq. 7 as a loop over pairs through probabilities and the sigmoid itself."""
    total = 0.0
    for c, r, rc, rr, p, m, w in zip(
        chosen, rejected, ref_chosen, ref_rejected, label, margin, weight, strict=True
    ):
        ratio_chosen, ratio_rejected = math.exp(c) / math.exp(rc), math.exp(r) / math.exp(rr)
        logit = beta * math.log(ratio_chosen) - beta * math.log(ratio_rejected) - m
        better = 1 / (1 + math.exp(-logit))
        p = p * (1 - smoothing) + (1 - p) * smoothing
        total -= w * (p * math.log(better) + (1 - p) * math.log(1 - better))
    return total / sum(weight)


def test_by_hand() -> None:
    # Chosen three times as likely as under the reference, rejected as likely: log ratios log 3 and
    # 0. At beta 2 the logit is 2 log 3 = log 9: sigmoid 9/10, loss log(10/9).
    loss, metrics = dpo_loss(
        torch.tensor([-1.0 + LOG3], dtype=F64),
        torch.tensor([-5.0], dtype=F64),
        torch.tensor([-1.0], dtype=F64),
        torch.tensor([-5.0], dtype=F64),
        beta=2.0,
    )
    assert loss.item() == pytest.approx(math.log(10 / 9), abs=1e-12)
    assert metrics["score_chosen"].item() == pytest.approx(2 * LOG3, abs=1e-12)
    assert metrics["score_rejected"].item() == 0.0
    assert metrics["accuracy"].item() == 1.0


def test_label_smoothing_and_soft_labels_by_hand() -> None:
    # Logit log 3: sigmoid 3/4. Smoothing 0.1 on a label of 1: 0.9 log(4/3) + 0.1 log 4. On one of
    # 0.8: 0.8 x 0.9 + 0.2 x 0.1 = 0.74.
    values = [torch.tensor([x], dtype=F64) for x in (LOG3, 0.0, 0.0, 0.0)]
    loss, _ = dpo_loss(*values, beta=1.0, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.9 * math.log(4 / 3) + 0.1 * math.log(4), abs=1e-12)
    label = torch.tensor([0.8], dtype=F64)
    loss, _ = dpo_loss(*values, beta=1.0, label_smoothing=0.1, label_chosen=label)
    assert loss.item() == pytest.approx(0.74 * math.log(4 / 3) + 0.26 * math.log(4), abs=1e-12)


def test_equals_loop() -> None:
    logprobs = -torch.rand(4, 12, dtype=F64) * 9
    label, weight = torch.rand(2, 12, dtype=F64)
    margin = torch.randn(12, dtype=F64)
    loss, _ = dpo_loss(
        *logprobs,
        beta=0.3,
        label_smoothing=0.2,
        label_chosen=label,
        margin=margin,
        weight=weight,
    )
    columns = [x.tolist() for x in (*logprobs, label, margin, weight)]
    assert loss.item() == pytest.approx(slow_loss(*columns, beta=0.3, smoothing=0.2), abs=1e-12)


def test_float32_is_within_1e_5_of_the_loop() -> None:
    """On log-probabilities of real size: some hundred nats a response."""
    chosen, rejected = -torch.rand(2, 64) * 200 - 20
    ref_chosen, ref_rejected = chosen + torch.randn(64), rejected + torch.randn(64)
    loss, _ = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.1)
    ones, zeros = [1.0] * 64, [0.0] * 64
    columns = [x.double().tolist() for x in (chosen, rejected, ref_chosen, ref_rejected)]
    expected = slow_loss(*columns, ones, zeros, ones, beta=0.1, smoothing=0.0)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_the_optimum_of_a_bandit_is_the_tilted_reference() -> None:
    """pi* = pi_ref exp(r / beta) / Z [DPO eq. 4], from all pairs labelled by Bradley-Terry on r."""
    num_actions, beta = 6, 0.7
    reward = torch.randn(num_actions, dtype=F64)
    reference = torch.log_softmax(torch.randn(num_actions, dtype=F64), 0)
    first, second = torch.triu_indices(num_actions, num_actions, offset=1)
    label = torch.sigmoid(reward[first] - reward[second])
    logits = torch.zeros(num_actions, dtype=F64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        policy = torch.log_softmax(logits, 0)
        loss, _ = dpo_loss(
            policy[first],
            policy[second],
            reference[first],
            reference[second],
            beta=beta,
            label_chosen=label,
        )
        loss.backward()
        return loss

    optimiser.step(closure)
    tilted = reference.exp() * torch.exp(reward / beta)
    found = torch.softmax(logits.detach(), 0)
    torch.testing.assert_close(found, tilted / tilted.sum(), rtol=0, atol=1e-6)


def test_implicit_rewards_of_the_optimum_are_the_rewards_up_to_a_constant() -> None:
    reward, reference = torch.randn(2, 5, dtype=F64)
    reference = torch.log_softmax(reference, 0)
    policy = torch.log_softmax(reference + reward / 0.2, 0)
    difference = implicit_rewards(policy, reference, 0.2) - reward
    torch.testing.assert_close(difference, difference[:1].expand(5))


def test_the_reference_itself_loses_log_2() -> None:
    chosen, rejected = -torch.rand(2, 9, dtype=F64)
    loss, metrics = dpo_loss(chosen, rejected, chosen, rejected, beta=0.5)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-15)
    assert metrics["accuracy"].item() == metrics["score_gap"].item() == 0.0


def test_swapping_pair_label_and_margin_changes_nothing() -> None:
    chosen, rejected, ref_chosen, ref_rejected = -torch.rand(4, 7, dtype=F64)
    label, margin = torch.rand(7, dtype=F64), torch.randn(7, dtype=F64)
    more = {"beta": 0.4, "label_smoothing": 0.1}
    one_way, _ = dpo_loss(
        chosen, rejected, ref_chosen, ref_rejected, label_chosen=label, margin=margin, **more
    )
    other_way, _ = dpo_loss(
        rejected, chosen, ref_rejected, ref_chosen, label_chosen=1 - label, margin=-margin, **more
    )
    torch.testing.assert_close(one_way, other_way, rtol=0, atol=1e-12)


def test_a_prompt_s_constant_in_the_reference_changes_nothing() -> None:
    """Of the reference only the ratio within a pair counts: Z(x) cancels."""
    values = -torch.rand(4, 5, dtype=F64)
    shift = torch.randn(5, dtype=F64)
    plain, _ = dpo_loss(*values, beta=0.9)
    shifted, _ = dpo_loss(values[0], values[1], values[2] + shift, values[3] + shift, beta=0.9)
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-12)


def test_gradient() -> None:
    inputs = [(-torch.rand(4, dtype=F64)).requires_grad_() for _ in range(4)]
    label = torch.rand(4, dtype=F64)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        return dpo_loss(*values, beta=0.3, label_smoothing=0.1, label_chosen=label)[0]

    assert torch.autograd.gradcheck(loss, inputs)


def test_wrong_shapes_are_refused() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"rejected_logprobs \(2,\)"):
        dpo_loss(x, torch.zeros(2), x, x, beta=1.0)
    with pytest.raises(ShapeError, match=r"ref_logprobs \(2,\)"):
        dpo_loss(x, x, x, torch.zeros(2), beta=1.0)
    with pytest.raises(ShapeError, match="1 axes"):
        dpo_loss(*[torch.zeros(3, 1)] * 4, beta=1.0)
    with pytest.raises(ShapeError, match="floating point"):
        implicit_rewards(x.long(), x.long(), 1.0)
