"""Labels of a judge, and what relabelling makes of labels that are soft already."""

from __future__ import annotations

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.relabel import Relabel, relabel, relabel_soft_labels
from trimtab.models.functional.reward import ranking_losses
from trimtab.models.functional.verdicts import preferred_labels

DOUBLE = torch.float64
PREFERENCE = torch.tensor([0.9, 0.5, 0.2, 1.0, 0.0], dtype=DOUBLE)


def _relabelled(label: list[float]) -> Relabel:
    nothing = torch.zeros(len(label), dtype=DOUBLE)
    return Relabel(nothing.bool(), torch.tensor(label, dtype=DOUBLE), nothing, nothing + 1)


def test_preferred_labels_by_hand() -> None:
    """.2 for the response labelled better is .8 for the other one, which takes its place."""
    is_flipped, label = preferred_labels(PREFERENCE, soft=True)
    assert is_flipped.tolist() == [False, False, True, False, True]
    assert label.tolist() == pytest.approx([0.9, 0.5, 0.8, 1.0, 1.0])
    is_flipped, label = preferred_labels(PREFERENCE, soft=False)
    assert is_flipped.tolist() == [False, False, True, False, True]
    assert label.tolist() == [1.0, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("soft", [True, False])
def test_preferred_labels_as_pair_by_pair(soft: bool) -> None:
    preference = torch.rand(200, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    preference[::10] = 0.5
    is_flipped, label = preferred_labels(preference, soft=soft)
    for one, flip, given in zip(
        preference.tolist(), is_flipped.tolist(), label.tolist(), strict=True
    ):
        ours, theirs = (1 - one, one) if flip else (one, 1 - one)
        assert ours >= theirs
        assert given == (ours if soft or ours == theirs else 1.0)


def test_a_soft_label_trains_as_the_preference_would_have() -> None:
    """Cross entropy of (p, 1 - p) is the same whichever response is called chosen."""
    scores = torch.randn(5, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    is_flipped, label = preferred_labels(PREFERENCE, soft=True)
    plain = ranking_losses(scores[:, 0], scores[:, 1], label_chosen=PREFERENCE)
    swapped = torch.where(is_flipped[:, None], scores.flip(1), scores)
    torch.testing.assert_close(
        ranking_losses(swapped[:, 0], swapped[:, 1], label_chosen=label), plain
    )
    # Asked about the pair as it is now, the judge has nothing more to turn.
    again, same = preferred_labels(label, soft=True)
    assert not again.any() and torch.equal(same, label)


def test_preferred_labels_gradient() -> None:
    preference = torch.tensor([0.9, 0.2, 0.6], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: preferred_labels(p, soft=True)[1], (preference,))


def test_relabel_soft_labels_by_hand() -> None:
    """.9 smoothed by .2: right with .9 * .8, or wrong and relabelled as wrong with .1 * .2: .74."""
    found = relabel_soft_labels(
        _relabelled([0.8, 0.8, 1.0]), torch.tensor([0.9, 1.0, 0.9], dtype=DOUBLE)
    )
    assert found.label.tolist() == pytest.approx([0.74, 0.8, 0.9])


def test_relabel_soft_labels_as_pair_by_pair() -> None:
    generator = torch.Generator().manual_seed(0)
    given, treatment = torch.rand(2, 100, dtype=DOUBLE, generator=generator)
    found = relabel_soft_labels(_relabelled(treatment.tolist()), given)
    for label, right, kept in zip(
        found.label.tolist(), given.tolist(), treatment.tolist(), strict=True
    ):
        worlds = ((right, kept), (1 - right, 1 - kept))
        assert label == pytest.approx(sum(one * other for one, other in worlds))


def test_certain_labels_are_treated_as_ever_and_even_ones_stay_even() -> None:
    strength = torch.tensor([-1.0, 0.5, -0.2, 2.0], dtype=DOUBLE)
    relabelled = relabel(
        strength,
        flip_fraction=0.25,
        flip_below=None,
        smoothing=0.2,
        smooth="all",
        margin_scale=0.3,
        margin_clip=1.0,
    )
    for found, expected in zip(
        relabel_soft_labels(relabelled, torch.ones(4, dtype=DOUBLE)), relabelled, strict=True
    ):
        assert torch.equal(found, expected)
    even = torch.full((4,), 0.5, dtype=DOUBLE)
    torch.testing.assert_close(relabel_soft_labels(relabelled, even).label, even)


def test_a_flip_turns_the_label_round_with_its_certainty() -> None:
    """Flipping again, with the label now given, is the pair as it came."""
    scores = torch.tensor([[0.3, -1.2]], dtype=DOUBLE)
    given = torch.tensor([0.7], dtype=DOUBLE)
    flipped = relabel_soft_labels(
        _relabelled([1.0])._replace(is_flipped=torch.tensor([True])), given
    )
    loss = ranking_losses(scores[:, 1], scores[:, 0], label_chosen=flipped.label)
    # .7 for the response that was rejected: as .3 for the one that was chosen.
    torch.testing.assert_close(
        loss, ranking_losses(scores[:, 0], scores[:, 1], label_chosen=1 - given)
    )
    twice = relabel_soft_labels(_relabelled([1.0]), flipped.label)
    torch.testing.assert_close(twice.label, given)


def test_relabel_soft_labels_gradient() -> None:
    given = torch.tensor([0.9, 0.6], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda p: relabel_soft_labels(_relabelled([0.8, 0.95]), p).label, (given,)
    )


def test_other_values_and_shapes_are_refused() -> None:
    outside = torch.tensor([1.2], dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"preferred_labels: preference must be probabilities"):
        preferred_labels(outside, soft=True)
    with pytest.raises(ValueError, match=r"relabel_soft_labels: soft must be probabilities"):
        relabel_soft_labels(_relabelled([1.0]), outside)
    with pytest.raises(ShapeError):
        relabel_soft_labels(_relabelled([1.0]), torch.ones(2, dtype=DOUBLE))
