"""strength: the ensemble's vote, its groups and the folds of cross-fitting."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.strength import (
    calibrated_strength,
    fold_of,
    preference_strength,
)
from trimtab.models.statistics.estimates import auroc

F64 = torch.float64


def test_strength_by_hand() -> None:
    # Pair 0: differences 1, 3, 5: mean 3, variance (4 + 0 + 4) / 3, std sqrt(8/3).
    # Pair 1: -2, -2, 1: mean -1, variance (1 + 1 + 4) / 3 = 2, std sqrt 2.
    differences = torch.tensor([[1.0, -2.0], [3.0, -2.0], [5.0, 1.0]], dtype=F64)
    mean, std = preference_strength(differences)
    assert mean.tolist() == [3.0, -1.0]
    expected = torch.tensor([math.sqrt(8 / 3), math.sqrt(2)], dtype=F64)
    torch.testing.assert_close(std, expected, rtol=0, atol=1e-12)


def test_counted_strength_by_hand() -> None:
    # Pair 0 without member 1: 1 and 5: mean 3, variance 4, std 2. Pair 1: only member 2: 1, 0.
    differences = torch.tensor([[1.0, -2.0], [3.0, -2.0], [5.0, 1.0]])
    counted = torch.tensor([[True, False], [False, False], [True, True]])
    mean, std = preference_strength(differences, counted)
    assert mean.tolist() == [3.0, 1.0]
    assert std.tolist() == [2.0, 0.0]


def test_strength_equals_loop() -> None:
    differences = torch.randn(5, 7, dtype=F64)
    counted = torch.rand(5, 7) < 0.5
    counted[0] = True
    mean, std = preference_strength(differences, counted)
    for i in range(7):
        votes = [differences[m, i].item() for m in range(5) if counted[m, i]]
        slow_mean = sum(votes) / len(votes)
        slow_std = math.sqrt(sum((v - slow_mean) ** 2 for v in votes) / len(votes))
        assert mean[i].item() == pytest.approx(slow_mean, abs=1e-12)
        assert std[i].item() == pytest.approx(slow_std, abs=1e-12)


def test_strength_invariants() -> None:
    differences = torch.randn(4, 6, dtype=F64)
    mean, std = preference_strength(differences)
    # The order of members does not matter; swapping every pair negates mean and keeps std.
    again = preference_strength(differences[torch.randperm(4)])
    torch.testing.assert_close(again, (mean, std), rtol=0, atol=1e-12)
    swapped = preference_strength(-differences)
    torch.testing.assert_close(swapped, (-mean, std), rtol=0, atol=1e-12)
    # One member: its own difference, no spread.
    alone_mean, alone_std = preference_strength(differences[:1])
    assert alone_mean.equal(differences[0])
    assert alone_std.eq(0).all()
    # Masking a member equals dropping it, whatever it says.
    counted = torch.ones(4, 6, dtype=torch.bool)
    counted[2] = False
    dirty = differences.clone()
    dirty[2] = torch.nan
    kept = preference_strength(differences[[0, 1, 3]])
    torch.testing.assert_close(preference_strength(dirty, counted), kept, rtol=0, atol=1e-12)


def test_strength_gradient() -> None:
    differences = torch.randn(3, 4, dtype=F64, requires_grad=True)
    counted = torch.tensor([[True] * 4, [True, False, True, True], [True] * 4])
    assert torch.autograd.gradcheck(lambda d: preference_strength(d, counted), differences)


def test_strength_refuses_a_pair_without_votes() -> None:
    counted = torch.tensor([[True, False, False], [True, False, True]])
    with pytest.raises(ValueError, match=r"1 of 3 pairs have no counted member .*index 1"):
        preference_strength(torch.zeros(2, 3), counted)
    with pytest.raises(ShapeError, match="2 axes"):
        preference_strength(torch.zeros(3))
    with pytest.raises(ShapeError, match="counted must be"):
        preference_strength(torch.zeros(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(("num_pairs", "num_folds"), [(10, 2), (11, 3), (7, 7)])
def test_folds_are_balanced_and_repeatable(num_pairs: int, num_folds: int) -> None:
    folds = fold_of(num_pairs, num_folds, seed=3)
    sizes = [int((folds == fold).sum()) for fold in range(num_folds)]
    assert folds.dtype == torch.long
    assert sum(sizes) == num_pairs
    assert max(sizes) - min(sizes) <= 1
    assert folds.equal(fold_of(num_pairs, num_folds, seed=3))


def test_folds_are_random_by_seed_and_leave_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    assert not fold_of(100, 2, seed=0).equal(fold_of(100, 2, seed=1))
    assert torch.get_rng_state().equal(state)
    with pytest.raises(ValueError, match=r"num_folds must be in \[2, 4\].*found 5"):
        fold_of(4, 5, seed=0)
    with pytest.raises(ValueError, match="found 1"):
        fold_of(4, 1, seed=0)


def test_calibrated_votes_are_the_log_odds_of_what_they_know() -> None:
    """One member is right nine times in ten, whatever its scale: then that is its log-odds w, but
    for the penalty: .9 sigmoid(-w) - .1 sigmoid(w) = 2e-4 w."""
    vote = torch.tensor([[1.0] * 90 + [-1.0] * 10], dtype=F64)
    log_odds = math.log(9)
    # One step of Newton's from the root without penalty, where the slope is -.9 * .1.
    expected = log_odds - 2e-4 * log_odds / (0.9 * 0.1 + 2e-4)
    for scale in (1.0, 1000.0, 1e-3):
        strength, spread, weights = calibrated_strength(scale * vote, torch.ones(100).bool())
        torch.testing.assert_close(strength, expected * vote[0], rtol=0, atol=5e-4)
        torch.testing.assert_close(weights * scale, strength[:1], rtol=1e-9, atol=0)
        assert not spread.any()


def test_a_member_that_knows_nothing_has_no_say_and_one_that_is_wrong_none_against_it() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.where(torch.rand(2000, generator=generator) < 0.8, 1.0, -1.0).double()
    noise = 100 * torch.randn(2000, generator=generator, dtype=F64)
    votes = torch.stack([right, noise, -right])
    learned = torch.arange(2000) < 1500
    strength, spread, weights = calibrated_strength(votes, learned)
    assert (strength.sign() == right.sign()).all()
    assert weights[2] == 0
    assert float((weights[1] * noise).abs().max()) < 0.4  # of 1.4 for `right`
    assert (spread > 0).all()
    # Pairs that nothing is learned from do not change the weights.
    other = torch.where(learned, votes, -votes)
    torch.testing.assert_close(calibrated_strength(other, learned)[2], weights)
    with pytest.raises(ValueError, match="finite"):
        calibrated_strength(votes / 0, learned)


def test_an_abstention_adds_nothing_by_hand() -> None:
    """Member 0 votes on all eight pairs and is right on six: its weight is log(6 / 2) where it
    votes alone. Member 1 votes on two of them only, where nobody is right more often than not."""
    right = [1.0] * 6 + [-1.0] * 2
    votes = torch.tensor([right, [math.nan] * 8], dtype=F64)
    votes[1, :2] = torch.tensor([4.0, -4.0])
    counted = ~votes.isnan()
    everywhere = torch.ones(8, dtype=torch.bool)
    strength, spread, weights = calibrated_strength(votes, everywhere, counted)
    log_odds = math.log(3)
    assert weights.tolist() == pytest.approx([log_odds, 0.0], abs=3e-3)
    assert strength.tolist() == pytest.approx([log_odds * vote for vote in right], abs=3e-3)
    # Of two calibrated votes, log 3 and 0, the deviation is half of log 3; of one vote it is 0.
    assert spread[:2].tolist() == pytest.approx([log_odds / 2] * 2, abs=3e-3)
    assert not spread[2:].any()


def test_a_weight_is_found_on_the_pairs_that_are_voted_on() -> None:
    """On eight of 80 pairs a member is right six times: log 3, as if there were no others."""
    votes = torch.full((1, 80), torch.inf, dtype=F64)
    votes[0, :8] = torch.tensor([2.0] * 6 + [-2.0] * 2)
    counted = votes.isfinite()
    everywhere = torch.ones(80, dtype=torch.bool)
    strength, _, weights = calibrated_strength(votes, everywhere, counted)
    alone = calibrated_strength(votes[:, :8], everywhere[:8])
    assert float(weights) * 2 == pytest.approx(math.log(3), rel=0.02)
    torch.testing.assert_close(weights, alone[2], rtol=0.02, atol=0)
    assert not strength[8:].any()
    # Nobody votes on a pair that is learned from.
    strength, spread, weights = calibrated_strength(votes, ~counted[0], counted)
    assert not (strength.any() or spread.any() or weights.any())
    with pytest.raises(ValueError, match="finite"):
        calibrated_strength(votes, everywhere)


def _of_logits(wrong: float) -> tuple[Tensor, Tensor]:
    """Differences (2, N), by whose sum as logit an answer is the better one, and which of the
    labels (N,) are wrong. Of the first member some differences are very large."""
    count, generator = 20_000, torch.Generator().manual_seed(3)
    votes = torch.randn(2, count, generator=generator, dtype=F64)
    votes[0] = 1.5 * votes[0] ** 3
    is_first = torch.rand(count, generator=generator, dtype=F64) < votes.sum(0).sigmoid()
    is_wrong = torch.rand(count, generator=generator, dtype=F64) < wrong
    return torch.where(is_first ^ is_wrong, votes, -votes), is_wrong


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.25])
def test_members_count_by_what_they_tell_of_right_labels(wrong: float) -> None:
    """Both members' differences are logits, and count alike, however many labels are wrong."""
    votes, is_wrong = _of_logits(wrong)
    everywhere = torch.ones(votes.shape[1], dtype=torch.bool)
    strength, _, weights = calibrated_strength(votes, everywhere)
    # The penalty makes large weights somewhat smaller.
    assert float(weights[1] / weights[0]) == pytest.approx(1.0, abs=0.25)
    if wrong:
        best = auroc(-votes.sum(0), is_wrong)
        assert float(auroc(-strength, is_wrong)) == pytest.approx(float(best), abs=3e-3)
    # The scale is that under which labels as given, the wrong ones too, are likeliest.
    loss = torch.stack([-(c * strength).sigmoid().log().mean() for c in (0.9, 1.0, 1.1)])
    assert loss.argmin() == 1


def test_a_label_of_seven_tenths_counts_as_seven_labels_for_and_three_against() -> None:
    """Ten copies of each pair, of which so many as a label says stand the other way round. A
    member abstains on a fifth of the pairs, which have a scale of their own."""
    generator = torch.Generator().manual_seed(1)
    votes = torch.randn(3, 2000, generator=generator, dtype=F64) + 0.5
    counted = torch.ones(3, 2000, dtype=torch.bool)
    counted[2, ::5] = False
    tenths = torch.randint(0, 11, (2000,), generator=generator)
    everywhere = torch.ones(2000, dtype=torch.bool)
    soft = calibrated_strength(votes, everywhere, counted, tenths.double() / 10)
    sign = torch.where(torch.arange(10)[None] < tenths[:, None], 1.0, -1.0).double().flatten()
    strength, *others = calibrated_strength(
        votes.repeat_interleave(10, 1) * sign,
        everywhere.repeat_interleave(10),
        counted.repeat_interleave(10, 1),
    )
    copies = ((strength * sign)[::10], others[0][::10], others[1])
    for own, expected in zip(soft, copies, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4)
    certain = calibrated_strength(votes, everywhere, counted)
    assert not torch.allclose(soft[2], certain[2], rtol=0.1)


def test_soft_labels_by_hand() -> None:
    """A member that is for all labels, each of .7: log(7 / 3). Of ties it can tell nothing."""
    vote, everywhere = torch.full((1, 50), 3.0, dtype=F64), torch.ones(50, dtype=torch.bool)
    for label, expected in ((0.7, math.log(7 / 3)), (0.5, 0.0)):
        soft = torch.full((50,), label, dtype=F64)
        strength, _, _ = calibrated_strength(vote, everywhere, label=soft)
        assert strength.tolist() == pytest.approx([expected] * 50, abs=2e-3)


def test_where_a_member_abstains_the_other_s_vote_has_its_own_scale() -> None:
    """A noisy copy of a member that abstains on half of the pairs."""
    generator = torch.Generator().manual_seed(5)
    vote = torch.randn(8000, generator=generator, dtype=F64) * 2
    noisy = vote + torch.randn(8000, generator=generator, dtype=F64) * 2
    is_right = torch.rand(8000, generator=generator, dtype=F64) < vote.sigmoid()
    votes = torch.where(is_right, torch.stack([noisy, vote]), -torch.stack([noisy, vote]))
    counted = torch.ones(2, 8000, dtype=torch.bool)
    counted[1, 4000:] = False
    everywhere = torch.ones(8000, dtype=torch.bool)
    strength, _, _ = calibrated_strength(votes, everywhere, counted)
    for part in (strength[:4000], strength[4000:]):
        loss = torch.stack([-(c * part).sigmoid().log().mean() for c in (0.9, 1.0, 1.1)])
        assert loss.argmin() == 1
    # Where the members that vote are the same on all pairs, or on too few, nothing is scaled.
    few = counted.clone()
    few[1, :] = True
    few[1, :100] = False
    whole, _, weights = calibrated_strength(votes, everywhere, few)
    torch.testing.assert_close(whole[:100], weights[0] * votes[0, :100])
