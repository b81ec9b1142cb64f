"""relabel: flips, soft labels and adaptive margins; ratings."""

import math
from typing import Any

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.relabel import (
    Relabel,
    doubt_weight,
    rating_margin,
    relabel,
    strength_slice,
)
from trimtab.models.functional.reward import ranking_losses

F64 = torch.float64
PLAIN: dict[str, Any] = {
    "flip_fraction": None,
    "flip_below": None,
    "smoothing": 0.0,
    "smooth": "none",
    "margin_scale": 0.0,
    "margin_clip": 1.0,
}


def relabelled(mean: torch.Tensor, **options: Any) -> Relabel:
    """`relabel` with everything off but the options given."""
    return relabel(mean, **{**PLAIN, **options})


MEAN = torch.tensor([0.5, -3.0, 2.0, -1.0, 0.0], dtype=F64)


def test_everything_off_is_the_raw_pair() -> None:
    got = relabelled(MEAN)
    assert not got.is_flipped.any()
    assert got.label.tolist() == [1.0] * 5
    assert got.margin.tolist() == [0.0] * 5
    assert got.weight.tolist() == [1.0] * 5


def test_flip_fraction_by_hand() -> None:
    # 0.4 of 5 pairs is 2: the weakest are -3 and -1.
    got = relabelled(MEAN, flip_fraction=0.4)
    assert got.is_flipped.tolist() == [False, True, False, True, False]
    # 0.2 of 5 pairs is 1: -3. Of equal strengths the lower index goes first.
    assert relabelled(MEAN, flip_fraction=0.2).is_flipped.tolist() == [0, 1, 0, 0, 0]
    assert relabelled(torch.zeros(4), flip_fraction=0.5).is_flipped.tolist() == [1, 1, 0, 0]
    # Nothing and everything are fractions too.
    assert not relabelled(MEAN, flip_fraction=0.0).is_flipped.any()
    assert relabelled(MEAN, flip_fraction=1.0).is_flipped.all()
    # 0.29 * 100 is 28.999999999999996 in floating point, and 29 pairs all the same.
    assert relabelled(torch.randn(100), flip_fraction=0.29).is_flipped.sum() == 29


def test_flip_below_by_hand() -> None:
    # Strictly below 0: -3 and -1, not 0 itself. Below 1: all but 2.
    got = relabelled(MEAN, flip_below=0.0)
    assert got.is_flipped.tolist() == [False, True, False, True, False]
    assert relabelled(MEAN, flip_below=1.0).is_flipped.tolist() == [1, 1, 0, 1, 1]


def test_a_fraction_and_a_bound_flip_what_meets_both() -> None:
    # The two weakest are -3 and -1; below -2 is -3 only, below 1 are 0.5 and 0 as well.
    assert relabelled(MEAN, flip_fraction=0.4, flip_below=-2.0).is_flipped.tolist() == [
        0,
        1,
        0,
        0,
        0,
    ]
    assert relabelled(MEAN, flip_fraction=0.4, flip_below=1.0).is_flipped.tolist() == [
        0,
        1,
        0,
        1,
        0,
    ]
    # Clean labels: the weakest tenth is there, but nobody doubts it.
    clean = torch.linspace(2.0, 7.0, 20, dtype=F64)
    assert relabelled(clean, flip_fraction=0.1).is_flipped.sum() == 2
    assert not relabelled(clean, flip_fraction=0.1, flip_below=0.0).is_flipped.any()


def test_margin_by_hand() -> None:
    # Flipping -3 alone: strengths 0.5, 3, 2, -1, 0; halved and clipped to 1.
    got = relabelled(MEAN, flip_fraction=0.2, margin_scale=0.5, margin_clip=1.0)
    assert got.margin.tolist() == [0.25, 1.0, 1.0, -0.5, 0.0]
    got = relabelled(MEAN, margin_scale=1.0, margin_clip=2.5)
    assert got.margin.tolist() == [0.5, -2.5, 2.0, -1.0, 0.0]


def test_label_by_hand() -> None:
    # alpha 0.1: every pair; or the negative ones that were not flipped, here -1 (-3 is flipped).
    got = relabelled(MEAN, flip_fraction=0.2, smoothing=0.1, smooth="all")
    assert got.label.tolist() == [0.9] * 5
    got = relabelled(MEAN, flip_fraction=0.2, smoothing=0.1, smooth="negative")
    assert got.label.tolist() == [1.0, 1.0, 1.0, 0.9, 1.0]
    got = relabelled(MEAN, smoothing=0.1, smooth="negative")
    assert got.label.tolist() == [1.0, 0.9, 1.0, 0.9, 1.0]
    assert relabelled(MEAN, smoothing=0.1, smooth="none").label.tolist() == [1.0] * 5
    got = relabelled(MEAN, flip_fraction=0.2, smoothing=0.1, smooth="not_flipped")
    assert got.label.tolist() == [0.9, 1.0, 0.9, 0.9, 0.9]


@pytest.mark.parametrize(
    ("method", "flipped", "label", "margin"),
    [
        ({}, "", "1 1 1 1 1", "0 0 0 0 0"),
        ({"flip_fraction": 0.2}, "1", "1 1 1 1 1", "0 0 0 0 0"),
        ({"margin_scale": 0.5}, "", "1 1 1 1 1", ".25 -1 1 -.5 0"),
        ({"flip_fraction": 0.2, "margin_scale": 0.5}, "1", "1 1 1 1 1", ".25 1 1 -.5 0"),
        ({"smooth": "negative"}, "", "1 .75 1 .75 1", "0 0 0 0 0"),
        ({"smooth": "negative", "margin_scale": 0.5}, "", "1 .75 1 .75 1", ".25 -1 1 -.5 0"),
        (
            {"flip_fraction": 0.2, "smooth": "not_flipped", "margin_scale": 0.5},
            *("1", ".75 1 .75 .75 .75", ".25 1 1 -.5 0"),
        ),
    ],
)
def test_the_methods_of_part_two_by_hand(
    method: dict[str, Any], flipped: str, label: str, margin: str
) -> None:
    """Baseline, flip, margin, both, soft label, with margin, and the treatment by bucket.

    Of strengths 0.5, -3, 2, -1, 0 the lowest fifth is pair 1; alpha is 1/4, margins stop at 1.
    """
    got = relabelled(MEAN, **{"smoothing": 0.25, **method})
    assert got.is_flipped.nonzero()[:, 0].tolist() == [int(pair) for pair in flipped]
    assert got.label.tolist() == [float(value) for value in label.split()]
    assert got.margin.tolist() == [float(value) for value in margin.split()]


def doubted(mean: torch.Tensor, share: list[float] | None = None, **options: Any) -> list[float]:
    """`doubt_weight` with everything off but the options given; the pair of strength -3 is
    flipped."""
    off: dict[str, Any] = {"drop_below": None, "drop_against": None, "weights": "none"}
    against = None if share is None else torch.tensor(share, dtype=F64)
    flipped = relabelled(mean, flip_below=-2.0)
    found: list[float] = doubt_weight(flipped, mean, against, **{**off, **options}).tolist()
    return found


def test_what_looks_wrong_is_left_out_by_hand() -> None:
    assert doubted(MEAN) == [1, 1, 1, 1, 1]
    # Strictly below: -3 and -1, flipped or not, and not 0 itself.
    assert doubted(MEAN, drop_below=0.0) == [1, 0, 1, 0, 1]
    # Two of four are no majority of them.
    shares = [0.0, 1.0, 0.5, 0.75, 0.25]
    assert doubted(MEAN, shares, drop_against="majority") == [1, 0, 1, 0, 1]
    assert doubted(MEAN, shares, drop_against="all") == [1, 0, 1, 1, 1]
    # Either is enough.
    assert doubted(MEAN, shares, drop_against="all", drop_below=0.25) == [1, 0, 1, 0, 0]


def test_weights_are_the_probability_of_the_label_after_the_flip() -> None:
    # Odds of 3 to 1, of 1 to 9, which were flipped, of 1 to 4, and even ones.
    odds = torch.tensor([3.0, 1 / 9, 1 / 4, 1.0], dtype=F64).log()
    assert doubted(odds, weights="probability") == pytest.approx([0.75, 0.9, 0.2, 0.5])
    assert doubted(odds, weights="probability", drop_below=0.0) == pytest.approx([0.75, 0, 0, 0.5])


def test_wrong_options_of_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="drop_below must be finite, found nan"):
        doubted(MEAN, drop_below=math.nan)
    with pytest.raises(ValueError, match="drop_against needs share_against"):
        doubted(MEAN, drop_against="all")
    with pytest.raises(ValueError, match=r"drop_against must be one of .*, found 'most'"):
        doubted(MEAN, [0.0] * 5, drop_against="most")
    with pytest.raises(ValueError, match=r"weights must be one of .*, found 'rank'"):
        doubted(MEAN, weights="rank")
    with pytest.raises(ShapeError):
        doubted(MEAN, [0.0] * 4, drop_against="all")


def test_rating_margin_by_hand() -> None:
    # Llama 2's margins; the pair without rating and the flipped one have none.
    rating = torch.tensor([1, 4, 2, 0, 3, 4])
    flipped = torch.tensor([False, False, False, False, False, True])
    got = rating_margin(rating, flipped, (0.0, 1 / 3, 2 / 3, 1.0))
    assert got.tolist() == [0.0, 1.0, 1 / 3, 0.0, 2 / 3, 0.0]


def test_rating_margin_equals_loop_and_flipping_all_leaves_none() -> None:
    rating, margins = torch.randint(0, 5, (50,)), [0.1, 0.2, 0.4, 0.8]
    flipped = torch.rand(50) < 0.3
    expected = [
        0.0 if flip or stars == 0 else margins[stars - 1]
        for stars, flip in zip(rating.tolist(), flipped.tolist(), strict=True)
    ]
    assert rating_margin(rating, flipped, margins).tolist() == expected
    assert not rating_margin(rating, torch.ones(50, dtype=torch.bool), margins).any()


def test_wrong_ratings_and_margins_are_refused() -> None:
    rating, no = torch.tensor([1, 5]), torch.zeros(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"ratings must be 0 to 4, found \[1, 5\]"):
        rating_margin(rating, no, (0, 0, 0, 1))
    for margins in ((0.0, 1.0, 2.0), (0.0, 0.0, 0.0, float("nan")), (-1.0, 0.0, 0.0, 0.0)):
        with pytest.raises(ValueError, match="margins must be four, finite and not negative"):
            rating_margin(rating, no, margins)
    with pytest.raises(ShapeError, match=r"is_flipped \(1,\)"):
        rating_margin(rating, no[:1], (0, 0, 0, 1))
    with pytest.raises(ShapeError, match="rating must be torch.long"):
        rating_margin(rating.float(), no, (0, 0, 0, 1))


@pytest.mark.parametrize(
    "flips",
    [
        {"flip_fraction": 0.3},
        {"flip_below": -0.2},
        {"flip_fraction": 0.3, "flip_below": -0.6},
        {},
    ],
)
@pytest.mark.parametrize("smooth", ["none", "negative", "not_flipped", "all"])
def test_equals_loop(flips: dict[str, float], smooth: str) -> None:
    mean = torch.randn(40, dtype=F64)
    options: dict[str, Any] = {"smoothing": 0.2, "smooth": smooth, "margin_scale": 0.7}
    got = relabelled(mean, margin_clip=0.8, **flips, **options)
    values = mean.tolist()
    weakest = sorted(range(40), key=lambda i: (values[i], i))[:12]
    for i, value in enumerate(values):
        flipped = bool(flips)
        if "flip_fraction" in flips:
            flipped = flipped and i in weakest
        if "flip_below" in flips:
            flipped = flipped and value < flips["flip_below"]
        smoothed = smooth == "all" or (
            not flipped and (smooth == "not_flipped" or (smooth == "negative" and value < 0))
        )
        strength = -value if flipped else value
        assert bool(got.is_flipped[i]) == flipped
        assert got.label[i].item() == pytest.approx(0.8 if smoothed else 1.0, abs=1e-12)
        margin = min(max(0.7 * strength, -0.8), 0.8)
        assert got.margin[i].item() == pytest.approx(margin, abs=1e-12)


def test_flipping_twice_is_the_identity() -> None:
    chosen, rejected = torch.randn(2, 30, dtype=F64)
    flipped = relabelled(chosen - rejected, flip_below=0.0).is_flipped
    once = torch.where(flipped, rejected, chosen), torch.where(flipped, chosen, rejected)
    twice = torch.where(flipped, once[1], once[0]), torch.where(flipped, once[0], once[1])
    assert twice[0].equal(chosen)
    assert twice[1].equal(rejected)
    # After one flip below 0 every strength is positive, so a second relabel flips nothing.
    assert not relabelled(once[0] - once[1], flip_below=0.0).is_flipped.any()


def test_flipped_pair_loses_as_the_raw_pair_with_label_and_margin_swapped() -> None:
    chosen, rejected, mean = torch.randn(3, 20, dtype=F64)
    got = relabelled(mean, flip_below=0.0, smoothing=0.1, smooth="all", margin_scale=1.0)
    after = ranking_losses(
        torch.where(got.is_flipped, rejected, chosen),
        torch.where(got.is_flipped, chosen, rejected),
        label_chosen=got.label,
        margin=got.margin,
    )
    raw = ranking_losses(
        chosen,
        rejected,
        label_chosen=torch.where(got.is_flipped, 1 - got.label, got.label),
        margin=torch.where(got.is_flipped, -got.margin, got.margin),
    )
    torch.testing.assert_close(after, raw, rtol=0, atol=1e-12)


def test_order_of_pairs_does_not_matter_and_input_is_kept() -> None:
    mean = torch.randn(25, dtype=F64)
    before = mean.clone()
    options: dict[str, Any] = {"flip_fraction": 0.2, "smoothing": 0.1, "smooth": "negative"}
    got = relabelled(mean, margin_scale=0.3, **options)
    shuffle = torch.randperm(25)
    again = relabelled(mean[shuffle], margin_scale=0.3, **options)
    for one, other in zip(got, again, strict=True):
        assert one[shuffle].equal(other)
    assert mean.equal(before)


def test_margin_gradient() -> None:
    # Away from the clip at 1 and the flip at 0, where the margin has a kink.
    mean = torch.tensor([0.5, -0.3, 2.0, -4.0], dtype=F64, requires_grad=True)
    options: dict[str, Any] = {"flip_below": 0.0, "margin_scale": 0.9}
    assert torch.autograd.gradcheck(lambda m: relabelled(m, **options).margin, mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flip_fraction": 1.5}, r"flip_fraction must be in \[0, 1\], found 1.5"),
        ({"flip_below": float("nan")}, "flip_below must be finite"),
        ({"smoothing": 0.6}, r"smoothing must be in \[0, 0.5\], found 0.6"),
        ({"smooth": "some"}, "found 'some'"),
        ({"margin_scale": -1.0}, "margin_scale must be finite and not negative, found -1.0"),
        ({"margin_clip": float("inf")}, "margin_clip must be finite"),
    ],
)
def test_options_outside_their_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        relabelled(MEAN, **options)


def test_bad_strengths_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        relabelled(torch.tensor([0.0, torch.nan]))
    with pytest.raises(ShapeError, match="1 axes"):
        relabelled(torch.zeros(2, 2))


def test_slices_by_strength_share_out_all_pairs() -> None:
    mean = torch.tensor([3.0, -1.0, 0.5, 2.0, -1.0], dtype=torch.float64)
    # Weakest first: pairs 1, 4 (equal, lower index first), 2, 3, 0. Of five, 0 to .4 are two.
    assert strength_slice(mean, 0.0, 0.4).tolist() == [0, 1, 0, 0, 1]
    assert strength_slice(mean, 0.4, 1.0).tolist() == [1, 0, 1, 1, 0]
    tenths = [strength_slice(mean, n / 10, (n + 1) / 10) for n in range(10)]
    assert torch.stack(tenths).sum(0).tolist() == [1] * 5
    assert strength_slice(mean, 0.0, 1.0).tolist() == [1] * 5


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.6, 0.4), (-0.1, 1.0), (0.0, 1.1)])
def test_empty_slices_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="0 <= keep_from < keep_to <= 1"):
        strength_slice(torch.zeros(3), low, high)
