"""verdicts: label probabilities, both orders, expected ratings, alignment, kappa."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.verdicts import (
    alignment,
    debiased_preference,
    expected_score,
    is_understood,
    kappa_of_counts,
    log_odds_votes,
    option_probabilities,
    order_verdicts,
)

F64 = torch.float64


def _probabilities(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=F64)


# option_probabilities


def test_label_probabilities_by_hand() -> None:
    # .6 and .3 of all tokens are 2/3 and 1/3 of the labels; a label without any share has none.
    logprobs = torch.tensor([[0.6, 0.3], [0.25, 0.0]], dtype=F64).log()
    expected = torch.tensor([[2 / 3, 1 / 3], [1.0, 0.0]], dtype=F64)
    torch.testing.assert_close(option_probabilities(logprobs), expected)


def test_label_probabilities_equal_loop() -> None:
    logprobs = -5 * _probabilities(7, 4)
    found = option_probabilities(logprobs)
    for row, got in zip(logprobs.tolist(), found.tolist(), strict=True):
        total = sum(math.exp(value) for value in row)
        assert got == pytest.approx([math.exp(value) / total for value in row], abs=1e-12)


def test_label_probabilities_invariants() -> None:
    logprobs = -5 * _probabilities(7, 4)
    found = option_probabilities(logprobs)
    torch.testing.assert_close(found.sum(1), torch.ones(7, dtype=F64))
    torch.testing.assert_close(option_probabilities(logprobs - 3), found)  # a share of less mass
    torch.testing.assert_close(option_probabilities(logprobs.flip(1)), found.flip(1))
    two = option_probabilities(logprobs[:, :2])
    torch.testing.assert_close(two[:, 0], torch.sigmoid(logprobs[:, 0] - logprobs[:, 1]))


def test_label_probabilities_gradient() -> None:
    logprobs = (-5 * _probabilities(3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(option_probabilities, (logprobs,))


@pytest.mark.parametrize("row", [[-math.inf, -math.inf], [math.nan, 0.0]])
def test_label_probabilities_refuse_a_row_without_any(row: list[float]) -> None:
    with pytest.raises(ValueError, match="-inf or NaN throughout"):
        option_probabilities(torch.tensor([[0.0, -1.0], row]))


# debiased_preference


def test_both_orders_by_hand() -> None:
    # Pair 1: .9 shown first, .7 shown second: .8; whatever stands first gets (.9 + .3)/2 = .6.
    # Pair 2: .8 and .3: .55; first gets (.8 + .7)/2 = .75; both times the first place wins.
    preference, metrics = debiased_preference(
        torch.tensor([0.9, 0.8], dtype=F64), torch.tensor([0.7, 0.3], dtype=F64)
    )
    torch.testing.assert_close(preference, torch.tensor([0.8, 0.55], dtype=F64))
    assert float(metrics["position_bias"]) == pytest.approx((0.1 + 0.25) / 2)
    assert float(metrics["share_same_position"]) == 0.5


def test_both_orders_equal_loop() -> None:
    first, second = _probabilities(2, 40)
    preference, metrics = debiased_preference(first, second)
    means, of_first, same = [], [], 0
    for p, q in zip(first.tolist(), second.tolist(), strict=True):
        means.append((p + q) / 2)
        of_first.append((p + (1 - q)) / 2)  # what the response in the first place got, twice
        same += (p > 0.5) == (1 - q > 0.5)
    assert preference.tolist() == pytest.approx(means, abs=1e-12)
    assert float(metrics["position_bias"]) == pytest.approx(sum(of_first) / 40 - 0.5, abs=1e-12)
    assert float(metrics["share_same_position"]) == same / 40


def test_both_orders_invariants() -> None:
    first, second = _probabilities(2, 30)
    preference, metrics = debiased_preference(first, second)
    # Exchanging the responses: the other one is shown first with 1 - q, second with 1 - p.
    other, others = debiased_preference(1 - second, 1 - first)
    torch.testing.assert_close(other, 1 - preference)
    torch.testing.assert_close(others["position_bias"], metrics["position_bias"])
    # A judge that looks at places only prefers nobody.
    even, biased = debiased_preference(torch.full((5,), 0.9), torch.full((5,), 0.1))
    torch.testing.assert_close(even, torch.full((5,), 0.5))
    assert float(biased["position_bias"]) == pytest.approx(0.4)
    assert float(biased["share_same_position"]) == 1.0
    _, fair = debiased_preference(first, first)
    assert [float(value) for value in fair.values()] == [0.0, 0.0]


def test_both_orders_gradient() -> None:
    first, second = _probabilities(5).requires_grad_(), _probabilities(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, q: debiased_preference(p, q)[0], (first, second))


def test_both_orders_refuse_what_is_no_probability() -> None:
    x = torch.full((3,), 0.5)
    for bad in (1.01, -0.01, math.nan):
        with pytest.raises(ValueError, match="shown_second must be probabilities"):
            debiased_preference(x, torch.tensor([0.5, bad, 0.5]))
    with pytest.raises(ShapeError, match="shared shape"):
        debiased_preference(x, x[:2])


# order_verdicts


def test_verdicts_by_hand() -> None:
    # Both above a half win, both below lose, else a tie; exactly a half is on neither side.
    first = torch.tensor([0.9, 0.2, 0.9, 0.2, 0.5, 0.5])
    second = torch.tensor([0.6, 0.4, 0.3, 0.8, 0.9, 0.5])
    assert order_verdicts(first, second).tolist() == [1, -1, 0, 0, 0, 0]


def test_verdicts_equal_loop_and_exchange() -> None:
    first, second = _probabilities(2, 50)
    found = order_verdicts(first, second)
    for p, q, verdict in zip(first.tolist(), second.tolist(), found.tolist(), strict=True):
        says = {"first" if p > 0.5 else "second", "first" if q > 0.5 else "second"}
        assert verdict == (0 if len(says) == 2 else 1 if says == {"first"} else -1)
    assert order_verdicts(second, first).equal(found)
    assert order_verdicts(1 - second, 1 - first).equal(-found)
    # A verdict never contradicts the mean.
    preference, _ = debiased_preference(first, second)
    assert bool((found * (preference - 0.5) >= 0).all())


# is_understood, log_odds_votes


def test_an_order_without_an_answer_is_not_understood() -> None:
    # Not parsed in the second order, in both, in some of several samples; parsed and even.
    first = torch.tensor([0.9, 0.5, 0.9, 0.5], dtype=F64)
    second = torch.tensor([0.5, 0.5, 0.7, 0.5], dtype=F64)
    unparsed = torch.tensor([1, 2, 3, 0])
    assert is_understood(first, second, unparsed).tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match=r"shown_first must be probabilities"):
        is_understood(first + 1, second, unparsed)


def test_votes_by_hand() -> None:
    # log(.8 / .2) and its negation; a judge that is certain votes log(.999 / .001).
    preference = torch.tensor([0.8, 0.2, 1.0, 0.0, 0.5, 0.9], dtype=F64)
    understood = torch.tensor([True, True, True, True, True, False])
    found = log_odds_votes(preference, understood).tolist()
    assert found[:4] == pytest.approx([math.log(4), -math.log(4), math.log(999), -math.log(999)])
    assert all(math.isnan(each) for each in found[4:])
    with pytest.raises(ShapeError, match=r"understood must be torch\.bool"):
        log_odds_votes(preference, preference)


def test_votes_rise_with_the_preference_and_turn_with_the_pair() -> None:
    preference = _probabilities(50)
    everywhere = torch.ones(50, dtype=torch.bool)
    found = log_odds_votes(preference, everywhere)
    torch.testing.assert_close(log_odds_votes(1 - preference, everywhere), -found)
    order = preference.argsort()
    assert bool((found[order].diff() >= 0).all())


# expected_score


def test_ratings_by_hand() -> None:
    # .5 * 4 + .5 * 8 = 6, and of [1, 10] mapped to [-1, 1]: 2 * 5/9 - 1 = 1/9.
    probabilities = torch.zeros(3, 10, dtype=F64)
    probabilities[0, 3] = probabilities[0, 7] = 0.5
    probabilities[1, 0] = probabilities[2, 9] = 1.0
    score, normalised = expected_score(probabilities)
    assert score.tolist() == pytest.approx([6, 1, 10])
    assert normalised.tolist() == pytest.approx([1 / 9, -1, 1])


def test_ratings_equal_loop_and_invariants() -> None:
    probabilities = _probabilities(20, 10).softmax(1)
    score, normalised = expected_score(probabilities)
    for row, value in zip(probabilities.tolist(), score.tolist(), strict=True):
        assert value == pytest.approx(sum((i + 1) * p for i, p in enumerate(row)), abs=1e-12)
    mirrored, swapped = expected_score(probabilities.flip(1))
    torch.testing.assert_close(mirrored, 11 - score)
    torch.testing.assert_close(swapped, -normalised)
    assert bool((normalised.abs() <= 1).all())


def test_ratings_gradient() -> None:
    logits = _probabilities(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: expected_score(x.softmax(1)), (logits,))


def test_ratings_refuse_what_is_no_distribution() -> None:
    with pytest.raises(ValueError, match="must sum to 1"):
        expected_score(torch.full((2, 10), 0.2))
    with pytest.raises(ShapeError, match="at least 2 ratings"):
        expected_score(torch.ones(2, 1))


# alignment


def test_alignment_by_hand_and_loop() -> None:
    assert alignment(torch.tensor([0.51, 0.5, 0.49, 1.0])).tolist() == [1, 0.5, 0, 1]
    preference = _probabilities(40)
    found = alignment(preference)
    assert found.tolist() == [1.0 if p > 0.5 else 0.0 for p in preference.tolist()]
    torch.testing.assert_close(alignment(1 - preference), 1 - found)
    # Turning preferences into what they say changes nothing.
    assert alignment(found).equal(found)


# kappa_of_counts


def cohen_kappa(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    classes, mine = torch.cat([first, second]).unique(return_inverse=True)
    counts = torch.zeros(len(classes), len(classes), dtype=torch.long)
    for pair in mine.view(2, -1).T.tolist():
        counts[tuple(pair)] += 1
    return kappa_of_counts(counts)


def test_kappa_by_hand() -> None:
    # Two judges on 50 cases: both yes 20, both no 15, yes/no 5, no/yes 10. p_o = .7; yes .5 and .6:
    # p_e = .5 * .6 + .5 * .4 = .5; kappa = .2 / .5 = .4.
    first = torch.tensor([1] * 20 + [0] * 15 + [1] * 5 + [0] * 10)
    second = torch.tensor([1] * 20 + [0] * 15 + [0] * 5 + [1] * 10)
    agreement, kappa = cohen_kappa(first, second)
    assert (float(agreement), float(kappa)) == pytest.approx((0.7, 0.4))


def test_kappa_equals_loop() -> None:
    first, second = torch.randint(-1, 2, (2, 60))
    agreement, kappa = cohen_kappa(first, second)
    ours, theirs = first.tolist(), second.tolist()
    observed = sum(a == b for a, b in zip(ours, theirs, strict=True)) / 60
    chance = sum((ours.count(c) / 60) * (theirs.count(c) / 60) for c in (-1, 0, 1))
    assert float(agreement) == pytest.approx(observed, abs=1e-12)
    assert float(kappa) == pytest.approx((observed - chance) / (1 - chance), abs=1e-12)


def test_kappa_invariants() -> None:
    first, second = torch.randint(-1, 2, (2, 60))
    found = cohen_kappa(first, second)
    assert cohen_kappa(second, first) == found
    assert cohen_kappa(first * 7 + 3, second * 7 + 3) == found  # names of verdicts do not matter
    assert [float(value) for value in cohen_kappa(first, first)] == [1.0, 1.0]
    yes_no = torch.tensor([1, 0] * 10)
    agreement, kappa = cohen_kappa(yes_no, 1 - yes_no)
    assert (float(agreement), float(kappa)) == (0.0, -1.0)
    same = torch.ones(5, dtype=torch.long)
    assert math.isnan(float(cohen_kappa(same, same)[1]))
    # Independent judges agree by chance: four standard errors at 20,000 cases.
    many = torch.randint(0, 2, (2, 20_000))
    assert abs(float(cohen_kappa(many[0], many[1])[1])) < 4 / math.sqrt(20_000)


def test_kappa_of_counts_of_many_samples_by_hand() -> None:
    # Equal 6 of 8, by chance (5/8)(5/8) + (3/8)(3/8) = 34/64; all of one verdict; no room above.
    counts = torch.tensor([[[4, 1], [1, 2]], [[3, 0], [0, 0]]])
    share, kappa = kappa_of_counts(counts)
    assert share.tolist() == [0.75, 1.0]
    assert kappa[0].item() == pytest.approx((48 / 64 - 34 / 64) / (30 / 64))
    assert kappa[1].isnan()
    with pytest.raises(ShapeError, match=r"counts must be \(\.\.\., C, C\), found \(2, 3\)"):
        kappa_of_counts(torch.ones(2, 3))
