"""apply_review: a person's verdicts in place of the vote's."""

import pytest
import torch
from torch import Tensor

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.relabel import Relabel, apply_review, relabel
from trimtab.models.functional.reward import ranking_losses

F64 = torch.float64
VERDICTS = ("keep", "flip", "drop")


def voted(mean: Tensor) -> Relabel:
    """A vote that flips below 0, smooths all and gives margins."""
    return relabel(
        mean,
        flip_fraction=None,
        flip_below=0.0,
        smoothing=0.2,
        smooth="all",
        margin_scale=0.5,
        margin_clip=1.0,
    )


def masks(given: list[str | None]) -> dict[str, Tensor]:
    return {name: torch.tensor([each == name for each in given]) for name in VERDICTS}


MEAN = torch.tensor([-1.0, -1.0, -1.0, -1.0, 2.0, 2.0, 2.0, 2.0], dtype=F64)
GIVEN = [None, "keep", "flip", "drop", None, "keep", "flip", "drop"]


def test_verdicts_by_hand() -> None:
    # The vote: the first four flipped, all labels 0.8, margins 0.5 * 1 and 0.5 * 2.
    got = apply_review(voted(MEAN), **masks(GIVEN))
    assert got.is_flipped.tolist() == [True, False, True, False, False, False, True, False]
    assert got.label.tolist() == [0.8, 1, 1, 1, 0.8, 1, 1, 1]
    assert got.margin.tolist() == [0.5, 0, 0, 0, 1, 0, 0, 0]
    assert got.weight.tolist() == [1, 1, 1, 0, 1, 1, 1, 0]


def test_equals_loop() -> None:
    mean = torch.randn(60, dtype=F64)
    given = [[None, *VERDICTS][int(at)] for at in torch.randint(4, (60,))]
    vote = voted(mean)
    got = apply_review(vote, **masks(given))
    for i, verdict in enumerate(given):
        if verdict is None:
            expected = [column[i].item() for column in vote]
        else:
            expected = [verdict == "flip", 1.0, 0.0, 0.0 if verdict == "drop" else 1.0]
        assert [column[i].item() for column in got] == expected


def test_no_verdict_is_the_vote_and_the_last_word_is_the_same_twice() -> None:
    vote = voted(torch.randn(30, dtype=F64))
    for one, other in zip(apply_review(vote, **masks([None] * 30)), vote, strict=True):
        assert one.equal(other)
    given = [None, *VERDICTS] * 7 + [None, "flip"]
    once = apply_review(vote, **masks(given))
    for one, other in zip(apply_review(once, **masks(given)), once, strict=True):
        assert one.equal(other)
    assert vote.weight.tolist() == [1.0] * 30  # the vote itself is kept


def test_a_kept_pair_loses_as_the_raw_one_and_a_flipped_one_as_its_answers_swapped() -> None:
    chosen, rejected, mean = torch.randn(3, 2, dtype=F64)
    got = apply_review(voted(mean), **masks(["keep", "flip"]))
    losses = ranking_losses(
        torch.where(got.is_flipped, rejected, chosen),
        torch.where(got.is_flipped, chosen, rejected),
        label_chosen=got.label,
        margin=got.margin,
    )
    assert losses[0] == ranking_losses(chosen[:1], rejected[:1])[0]
    assert losses[1] == ranking_losses(rejected[1:], chosen[1:])[0]


def test_margin_gradient_stops_where_a_person_decided() -> None:
    mean = torch.tensor([0.5, -0.3, 0.7, -0.9], dtype=F64, requires_grad=True)
    verdicts = masks([None, "keep", "flip", None])
    assert torch.autograd.gradcheck(lambda m: apply_review(voted(m), **verdicts).margin, mean)
    apply_review(voted(mean), **verdicts).margin.sum().backward()
    # Half the strength; that of the flipped pair is minus its mean.
    assert mean.grad is not None
    assert mean.grad.tolist() == [0.5, 0.0, 0.0, -0.5]


def test_two_verdicts_on_a_pair_are_refused_and_so_are_other_shapes() -> None:
    both = masks(["keep", "flip"]) | {"drop": torch.tensor([False, True])}
    with pytest.raises(ValueError, match="found a pair with two verdicts"):
        apply_review(voted(MEAN[:2]), **both)
    with pytest.raises(ShapeError, match="one shared shape"):
        apply_review(voted(MEAN), **masks(["keep", "flip"]))
    with pytest.raises(ShapeError, match="torch.bool"):
        apply_review(voted(MEAN[:2]), **masks(["keep", "keep"]) | {"drop": torch.zeros(2)})
