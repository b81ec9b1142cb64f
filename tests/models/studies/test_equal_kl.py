"""Lines of gain by KL, by hand."""

from __future__ import annotations

import random

import pytest

from trimtab.models.studies.frontier import (
    LEAST_SHARED_KL,
    Lead,
    Line,
    gains_most,
    highest,
    is_more_at_equal_kl,
    lead_of,
    loses_less,
    shared_kl,
)
from trimtab.models.studies.results import Plot, SeedResult

RAMP: Line = ([0.0, 2.0], [0.0, 1.0])  # rises by .5 a nat


def _flat(height: float, begin: float = 0.0, end: float = 1.0) -> Line:
    return ([begin, end], [height, height])


def test_lines_are_compared_where_both_reach() -> None:
    # From 1 to 2 nats the ramp goes from .5 to 1, the other from .4 to .3: .1 to .7, on average .4.
    other: Line = ([3.0, 1.0], [0.2, 0.4])
    assert shared_kl(RAMP, other) == (1.0, 2.0)
    assert lead_of(RAMP, other) == pytest.approx(0.4)
    assert lead_of(other, RAMP) == pytest.approx(-0.4)


def test_lines_that_share_a_sliver_are_not_compared() -> None:
    """The ramp ends at 2 nats: the other begins a little more, or less, before that."""
    for begin, is_more, is_less in ((1.9 - 0.01, True, False), (1.9 + 0.01, None, None)):
        other = _flat(0.2, begin, 3.0)
        lead = lead_of(RAMP, other)
        assert lead is not None and lead > 0
        assert is_more_at_equal_kl(RAMP, other) is is_more
        assert is_more_at_equal_kl(other, RAMP) is is_less
    assert pytest.approx(0.1) == LEAST_SHARED_KL
    assert is_more_at_equal_kl(RAMP, _flat(0.2, 5.0, 6.0)) is None


def test_less_that_is_lost_at_other_kl_is_not_told() -> None:
    """Near the start less is lost, whatever it comes from."""
    near, far = ([0.4, 0.2], [0.02, 0.01]), ([6.0, 0.5], [0.5, 0.05])
    assert loses_less("A", near, far) == {
        "A at every KL coefficient": True,
        "A at equal KL": None,
    }
    # From .5 to 4 nats .05 to .05 + .45 * 3.5 / 5.5 is lost of the one, .01 to .02 of the other.
    wider = ([4.0, 0.2], [0.02, 0.01])
    assert loses_less("A", wider, far)["A at equal KL"] is True
    assert loses_less("A", far, wider)["A at equal KL"] is False


def test_lines_may_cross() -> None:
    # Above the ramp by 1 at 0 nats and below by 1 at 2, it is 1 up to 1 nat and then falls to 0:
    # leads 1, .5, -1 at 0, 1 and 2 nats: (.75 - .25) / 2.
    assert lead_of(([0.0, 1.0, 2.0], [1.0, 1.0, 0.0]), RAMP) == pytest.approx(0.25)


def test_lines_that_share_no_kl_are_not_compared() -> None:
    assert lead_of(RAMP, ([2.0, 3.0], [9.0, 9.0])) is None
    assert lead_of(RAMP, ([1.0], [9.0])) is None  # a point is no distance


def test_two_settings_may_end_at_one_kl() -> None:
    assert lead_of(([0.0, 1.0, 1.0], [0.5, 0.5, 0.6]), _flat(0.2)) == pytest.approx(0.3)


def test_a_lead_is_the_mean_over_a_fine_grid() -> None:
    draw = random.Random(5)
    ours, theirs = (
        (sorted(draw.uniform(0, 3) for _ in range(4)), [draw.random() for _ in range(4)])
        for _ in range(2)
    )
    low, high = max(ours[0][0], theirs[0][0]), min(ours[0][-1], theirs[0][-1])

    def height(line: Line, kl: float) -> float:
        for (a, f), (b, g) in zip(zip(*line), list(zip(*line))[1:]):  # noqa: B905
            if a <= kl <= b:
                return f + (g - f) * (kl - a) / (b - a)
        raise AssertionError

    count = 20_000
    grid = [low + (high - low) * (place + 0.5) / count for place in range(count)]
    mean = sum(height(ours, kl) - height(theirs, kl) for kl in grid) / count
    assert lead_of(ours, theirs) == pytest.approx(mean, abs=1e-6)


def test_the_highest_is_said_with_how_clear_it_is() -> None:
    seeds = [
        {"A": _flat(0.5), "B": _flat(0.2), "C": _flat(0.45), "D": _flat(0.9, 3, 4)},
        {"A": _flat(0.5), "B": _flat(0.3), "C": _flat(0.52), "D": _flat(0.9, 0.5, 4)},
    ]
    # Over B .3 and .2; over C .05 and -.02; with D nothing is shared in the first seed.
    assert highest(seeds, "gold") == (
        "At equal KL A has the highest gold: clearly over B (+0.250 ± 0.071, 0.00 to 1.00 nats); "
        "not clearly over C (+0.015 ± 0.049, 0.00 to 1.00 nats); not compared with D, at other KL."
    )


def test_leads_of_ppo_max_are_said_beside_the_highest() -> None:
    """Of DPO where there is no PPO-max; SFT and what has a bound for its KL are not compared."""
    bounds = {"SFT (start)": _flat(0.0), "Best of n answers of SFT (KL: upper bound)": _flat(1.0)}
    lines = {"PPO-max, Advantage Model": _flat(0.5), "DPO": _flat(0.4), "ReST": _flat(0.6)}
    for shown, words in (
        (lines, "PPO-max, Advantage Model over others: DPO (+0.100, 0.00 to 1.00 nats), ReST (-0"),
        ({name: lines[name] for name in ("DPO", "ReST")}, "DPO over others: ReST (-0.200, 0.00"),
    ):
        plot = Plot("title", "x", "y", bounds | shown, kind="paths")
        sentence = gains_most([SeedResult({"row": {"gold": 0.0}}, {}, [plot])])
        assert f" The lead of {words}" in sentence
        assert "SFT" not in sentence


def test_clear_is_more_than_twice_the_spread() -> None:
    # Leads .1 and .2 in both seeds above 0: mean .15, standard deviation .071, twice that .141.
    assert Lead("B", [0.1, 0.2], (0.0, 1.0)).standing == "clearly over"
    # .1 and .22: .16 against .170.
    assert Lead("B", [0.1, 0.22], (0.0, 1.0)).standing == "not clearly over"
    assert Lead("B", [-0.2, 0.2], (0.0, 1.0)).standing == "behind"


def test_one_seed_shows_nothing_clearly() -> None:
    assert highest([{"A": _flat(0.5), "B": _flat(0.6)}], "gold") == (
        "At equal KL B has the highest gold: not clearly over A (+0.100, 0.00 to 1.00 nats)."
    )


def test_to_be_behind_counts_against_leads_over_more() -> None:
    # A leads C, D and E but not B, which shares a KL with A, C and D only, and leads them all.
    near = {name: _flat(0.1) for name in "CD"}
    lines = {"A": _flat(0.5, -1), "B": _flat(0.6), "E": _flat(0.0, -1, 0), **near}
    assert highest([lines], "gold").startswith("At equal KL B has the highest gold: ")


def test_the_highest_may_be_behind_another() -> None:
    # C is .4 on average below 2 nats, where A is .5, and .8 from 1 to 3 nats, where B is .6.
    lines = {"A": _flat(0.5, 0, 2), "B": _flat(0.6, 1, 3), "C": ([0.0, 3.0], [0.0, 1.2])}
    assert highest([lines, lines], "gold") == (
        "At equal KL C has the highest gold: clearly over B (+0.200 ± 0.000, 1.00 to 3.00 nats); "
        "behind A (-0.100 ± 0.000, 0.00 to 2.00 nats)."
    )
