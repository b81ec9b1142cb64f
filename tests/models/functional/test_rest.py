"""rest: thresholds rise, and what they leave shrinks."""

import pytest
import torch

from trimtab.models.functional.rest import improvement_sets


def test_quantiles_by_hand() -> None:
    # 0 .. 9 shuffled: the 0.5 quantile lies at 4.5, the 0.9 quantile at 8.1.
    scores = torch.tensor([3.0, 9.0, 0.0, 7.0, 5.0, 1.0, 8.0, 2.0, 6.0, 4.0])
    everything, half, tenth = improvement_sets(scores, (0.0, 0.5, 0.9), "quantile")
    assert everything.tolist() == list(range(10))
    assert scores[half].tolist() == [9.0, 7.0, 5.0, 8.0, 6.0]
    assert scores[tenth].tolist() == [9.0]


def test_values_by_hand() -> None:
    scores = torch.tensor([0.2, -1.0, 0.7, 0.5])
    first, second = improvement_sets(scores, (0.2, 0.5), "value")
    assert (first.tolist(), second.tolist()) == ([0, 2, 3], [2, 3])


@pytest.mark.parametrize("kind", ["quantile", "value"])
def test_equals_a_loop_and_each_set_is_part_of_the_one_before(kind: str) -> None:
    scores = torch.rand(200).mul(8).floor().div(8)  # with many equal ones
    thresholds = (0.1, 0.4, 0.6, 0.8)
    sets = improvement_sets(scores, thresholds, kind)  # type: ignore[arg-type]
    ordered = sorted(scores.tolist())
    for threshold, kept in zip(thresholds, sets, strict=True):
        place = threshold * 199
        low, high = ordered[int(place)], ordered[min(int(place) + 1, 199)]
        at = low + (high - low) * (place - int(place))
        least = at if kind == "quantile" else threshold
        expected = [i for i, score in enumerate(scores.tolist()) if score >= least - 1e-7]
        assert kept.tolist() == expected
    for larger, smaller in zip(sets, sets[1:], strict=False):
        assert set(smaller.tolist()) <= set(larger.tolist())
        assert float(scores[smaller].mean()) >= float(scores[larger].mean())


def test_equal_scores_always_leave_something() -> None:
    (kept,) = improvement_sets(torch.ones(5), (0.99,), "quantile")
    assert len(kept) == 5


def test_what_is_wrong_is_refused() -> None:
    scores = torch.rand(5)
    with pytest.raises(ValueError, match="a score is NaN"):
        improvement_sets(torch.tensor([0.5, torch.nan]), (0.1,), "quantile")
    for thresholds in ((0.5, 0.5), (0.5, 0.2)):
        with pytest.raises(ValueError, match="thresholds must rise, found"):
            improvement_sets(scores, thresholds, "quantile")
    with pytest.raises(ValueError, match=r"no sample scores 3\.0 or more; the highest score is"):
        improvement_sets(scores, (3.0,), "value")
