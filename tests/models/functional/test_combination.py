"""combination: one score of an ensemble, and safety before helpfulness."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.combination import ensemble_scores, member_spread, safety_first

F64 = torch.float64


# ensemble_scores


def test_ensemble_by_hand() -> None:
    # Two members, two responses. Member 1 scores 1 and 3, its mean 2: -1 and 1 about it. Member 2
    # scores 0 and 6, its mean 3: -3 and 3. Spreads of (-1, -3) and of (1, 3): 1 and 1.
    # Means 0.5 and 4.5; less half a spread: 0 and 4.
    members = torch.tensor([[1.0, 3.0], [0.0, 6.0]], dtype=F64)
    scores, metrics = ensemble_scores(members, 0.5)
    torch.testing.assert_close(scores, torch.tensor([0.0, 4.0], dtype=F64), rtol=0, atol=1e-12)
    assert metrics["ensemble_std"].item() == pytest.approx(1.0, abs=1e-12)


def test_with_known_means_a_response_s_score_is_its_own() -> None:
    # Members' means over known answers: 1 and 3. Centred 0 and -3, spread 1.5; and 2 and 3, spread
    # 0.5. Means 0.5 and 4.5; less two spreads: -2.5 and 3.5.
    members = torch.tensor([[1.0, 3.0], [0.0, 6.0]], dtype=F64)
    means = torch.tensor([1.0, 3.0], dtype=F64)
    spread = member_spread(members, means)
    torch.testing.assert_close(spread, torch.tensor([1.5, 0.5], dtype=F64), rtol=0, atol=1e-12)
    both, _ = ensemble_scores(members, 2.0, means)
    torch.testing.assert_close(both, torch.tensor([-2.5, 3.5], dtype=F64), rtol=0, atol=1e-12)
    alone, _ = ensemble_scores(members[:, :1], 2.0, means)
    assert alone.equal(both[:1])
    # The batch's own means are what is taken where none are given.
    torch.testing.assert_close(
        ensemble_scores(members, 0.5, members.mean(1))[0], ensemble_scores(members, 0.5)[0]
    )


def test_ensemble_equals_loop() -> None:
    members = torch.randn(4, 7, dtype=F64)
    scores, metrics = ensemble_scores(members, 0.7)
    levels = [sum(row) / 7 for row in members.tolist()]
    spreads = []
    for i in range(7):
        given = members[:, i].tolist()
        centred = [score - level for score, level in zip(given, levels, strict=True)]
        middle = sum(centred) / 4
        spreads.append(math.sqrt(sum((value - middle) ** 2 for value in centred) / 4))
        assert scores[i].item() == pytest.approx(sum(given) / 4 - 0.7 * spreads[-1], abs=1e-12)
    assert metrics["ensemble_std"].item() == pytest.approx(sum(spreads) / 7, abs=1e-12)


def test_ensemble_invariants() -> None:
    members = torch.randn(3, 5, dtype=F64)
    # One member, or several of one opinion, are that opinion.
    alone, metrics = ensemble_scores(members[:1], 2.0)
    assert alone.equal(members[0])
    assert metrics["ensemble_std"].item() == 0.0
    same, _ = ensemble_scores(members[:1].expand(3, -1), 2.0)
    torch.testing.assert_close(same, members[0], rtol=0, atol=1e-12)
    # Without a multiple it is the mean; the order of members does not matter.
    torch.testing.assert_close(ensemble_scores(members, 0.0)[0], members.mean(0))
    whole, _ = ensemble_scores(members, 1.5)
    torch.testing.assert_close(ensemble_scores(members.flip(0), 1.5)[0], whole)
    # A constant on one member's scores is no disagreement: all responses move alike.
    shifted = members + torch.tensor([[6.0], [0.0], [0.0]], dtype=F64)
    torch.testing.assert_close(ensemble_scores(shifted, 1.5)[0], whole + 2.0)
    # Scores in another unit: the same, in that unit.
    torch.testing.assert_close(ensemble_scores(3 * members, 1.5)[0], 3 * whole)


def test_ensemble_gradient() -> None:
    members = torch.randn(3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: ensemble_scores(s, 0.8)[0], members)
    assert not ensemble_scores(members, 0.8)[1]["ensemble_std"].requires_grad


def test_ensemble_refuses_bad_arguments() -> None:
    with pytest.raises(ShapeError, match="2 axes"):
        ensemble_scores(torch.zeros(3), 1.0)
    with pytest.raises(ValueError, match=r"std_coef must not be negative, found -1\.0"):
        ensemble_scores(torch.zeros(2, 3), -1.0)
    with pytest.raises(ShapeError, match=r"found member_means \(3,\) for member_scores \(2, 3\)"):
        member_spread(torch.zeros(2, 3), torch.zeros(3))


# safety_first


def test_safety_by_hand() -> None:
    # Threshold 0.15, which is a logit of log(0.15 / 0.85) = -1.7346.
    # 1: probability sigmoid(-2) = 0.119 is below it: safety's -2. 2: sigmoid(-1) = 0.269 is not:
    # helpfulness' 5. 3: the same, but the prompt is tagged: safety's -1.
    scores, metrics = safety_first(
        torch.tensor([3.0, 5.0, 7.0]),
        torch.tensor([-2.0, -1.0, -1.0]),
        torch.tensor([False, False, True]),
        0.15,
    )
    assert scores.tolist() == [-2.0, 5.0, -1.0]
    assert metrics["safety_fraction"].item() == pytest.approx(2 / 3)
    assert metrics["unsafe_fraction"].item() == pytest.approx(1 / 3)
    assert metrics["helpfulness_score"].item() == 5.0
    assert metrics["safety_score"].item() == pytest.approx(-4 / 3)


def test_safety_equals_loop() -> None:
    helpfulness, safety = torch.randn(2, 40, dtype=F64)
    tags = torch.rand(40) < 0.3
    scores, metrics = safety_first(helpfulness, safety, tags, 0.4)
    num_safety = num_unsafe = 0
    for i in range(40):
        probability = 1 / (1 + math.exp(-safety[i].item()))
        is_safetys = bool(tags[i]) or probability < 0.4
        num_safety += is_safetys
        num_unsafe += probability < 0.4
        assert scores[i] == (safety if is_safetys else helpfulness)[i]
    assert metrics["safety_fraction"].item() == pytest.approx(num_safety / 40, abs=1e-12)
    assert metrics["unsafe_fraction"].item() == pytest.approx(num_unsafe / 40, abs=1e-12)


def test_safety_invariants() -> None:
    helpfulness, safety = torch.randn(2, 9, dtype=F64)
    none = torch.zeros(9, dtype=torch.bool)
    assert safety_first(helpfulness, safety, ~none, 0.5)[0].equal(safety)
    assert safety_first(helpfulness, safety, none, 1e-9)[0].equal(helpfulness)
    # A helpful answer that is unsafe is worth what it is to safety, however helpful.
    unsafe = torch.full((9,), -5.0, dtype=F64)
    assert safety_first(1e3 * helpfulness.abs(), unsafe, none, 0.15)[0].equal(unsafe)


def test_safety_gradient_is_that_of_the_score_that_counts() -> None:
    helpfulness = torch.randn(4, dtype=F64, requires_grad=True)
    safety = torch.tensor([-3.0, 2.0, -1.0, 1.0], dtype=F64, requires_grad=True)
    tags = torch.tensor([False, False, True, False])
    assert torch.autograd.gradcheck(
        lambda h, s: safety_first(h, s, tags, 0.15)[0], (helpfulness, safety)
    )
    scores, metrics = safety_first(helpfulness, safety, tags, 0.15)
    scores.sum().backward()
    assert helpfulness.grad is not None and helpfulness.grad.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert safety.grad is not None and safety.grad.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert not any(value.requires_grad for value in metrics.values())


def test_safety_refuses_bad_arguments() -> None:
    x = torch.zeros(3)
    with pytest.raises(ShapeError, match="is_safety_prompt must be"):
        safety_first(x, x, x, 0.15)
    with pytest.raises(ShapeError, match=r"safety \(2,\)"):
        safety_first(x, torch.zeros(2), x.bool(), 0.15)
    for threshold in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"threshold must be in \(0, 1\), found {threshold}"):
            safety_first(x, x, x.bool(), threshold)
