"""Results of several seeds together, by hand."""

from __future__ import annotations

import pytest

from trimtab.models.reporting.kit.charts import Chart
from trimtab.models.studies.plots import _legend_columns, draw
from trimtab.models.studies.results import (
    Cell,
    Effect,
    Plot,
    SeedResult,
    Verdict,
    can_tell,
    combine_seeds,
    count_of,
    key_figures,
    precision,
    status_of,
)


def _result(value: float, *checks: Verdict) -> SeedResult:
    return SeedResult({"row": {"column": value}}, {f"part {n}": c for n, c in enumerate(checks)})


def test_figures_are_means_and_sample_deviations() -> None:
    found = combine_seeds({2: _result(1.0, True), 3: _result(2.0, True), 4: _result(6.0, True)})
    cell = found.table["row"]["column"]
    # Mean 3; deviations -2, -1, 3: 14 / 2 = 7.
    assert (cell.mean, cell.std) == (3.0, pytest.approx(7**0.5))
    assert found.seeds == [2, 3, 4]
    assert found.status == "held"
    assert found.sentence == "It held. part 0: yes, in all 3 seeds."


def test_one_seed_has_no_spread() -> None:
    found = combine_seeds({2: _result(1.5, False)})
    assert found.table["row"]["column"].std == 0.0
    assert found.sentence == "It did not hold. part 0: no."


@pytest.mark.parametrize(
    ("checks", "status"),
    [
        ({"a": [True, True], "b": [True, True]}, "held"),
        ({"a": [True, False], "b": [False, False]}, "not held"),
        ({"a": [True, True, False]}, "in part"),
        ({"a": [True, True], "b": [False, False]}, "in part"),
        ({"a": [True, False, False]}, "not held"),
        ({"a": [None, None]}, "cannot tell"),
        ({"a": [None, True]}, "cannot tell"),
        ({"a": [True, True, None]}, "in part"),
        ({"a": [True, True, True], "b": [None, None, None]}, "in part"),
        # What can be told fails in most seeds, or in half of those that can tell.
        ({"a": [False, False, False], "b": [None, None, True]}, "not held"),
        ({"a": [True, None, False]}, "not held"),
    ],
)
def test_held_is_every_part_in_every_seed(checks: dict[str, list[Verdict]], status: str) -> None:
    assert status_of(checks) == status


def test_what_cannot_be_told_is_counted_and_said() -> None:
    assert count_of([True, False, True]) == "2 of 3"
    assert count_of([True, None, False]) == "1 of 3, 1 cannot tell"
    nothing = combine_seeds({2: _result(1.0, None), 3: _result(1.0, None)})
    assert nothing.sentence == "It cannot be told. part 0: cannot tell, in all 2 seeds."
    mixed = combine_seeds({2: _result(1.0, None, True), 3: _result(1.0, True, True)})
    assert mixed.counts == {"part 0": "1 of 2, 1 cannot tell", "part 1": "2 of 2"}
    assert mixed.sentence == (
        "It held in part. part 0: in 1 of 2 seeds, 1 cannot tell; part 1: yes, in all 2 seeds."
    )


def _effects(least: float, *measured: float) -> list[Effect]:
    return [Effect(value, least) for value in measured]


def test_seeds_tell_an_effect_from_none_or_from_the_least() -> None:
    # Means 2; standard deviation 1, t of two degrees of freedom 4.303: 2 +- 2.484 has 0.
    assert not can_tell(_effects(4.0, 1.0, 2.0, 3.0))
    # Up to 4.484: it is less than 4.6.
    assert can_tell(_effects(4.6, 1.0, 2.0, 3.0))
    # Mean 3: from .516, more than nothing, whatever is looked for.
    assert can_tell(_effects(4.0, 2.0, 3.0, 4.0)) and can_tell(_effects(0.1, 2.0, 3.0, 4.0))
    assert can_tell(_effects(1.0, 0.5)) and can_tell(_effects(1.0, 0.5, 0.5))


def test_a_part_that_seeds_are_too_few_for_cannot_be_told() -> None:
    def result(measured: float, least: float) -> SeedResult:
        checks = {"less": measured > 0, "other": True}
        return SeedResult({"row": {"a": 1.0}}, checks, effects={"less": Effect(measured, least)})

    wide = combine_seeds({seed: result(x, 2.0) for seed, x in enumerate((-1.0, 0.0, 4.0))})
    assert wide.checks == {"less": [None] * 3, "other": [True] * 3}
    narrow = combine_seeds({seed: result(x, 9.0) for seed, x in enumerate((-1.0, 0.0, 4.0))})
    assert narrow.checks["less"] == [False, False, True]
    without = SeedResult({"row": {"a": 1.0}}, {"less": True, "other": True})
    with pytest.raises(ValueError, match="different rows, columns or checks"):
        combine_seeds({2: result(1.0, 2.0), 3: without})


def test_results_that_do_not_belong_together_are_refused() -> None:
    other = SeedResult({"row": {"another": 1.0}}, {"part 0": True})
    with pytest.raises(ValueError, match="different rows, columns or checks"):
        combine_seeds({2: _result(1.0, True), 3: other})


def _plot(values: list[float], kind: str = "lines") -> Plot:
    series = {"curve": ([float(n) for n in range(len(values))], values)}
    return Plot("A title", "a place", "a value", series, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["lines", "bars", "points"])
def test_plots_have_axes_and_say_what_the_band_is(kind: str) -> None:
    # The second seed was stopped early: the curve ends with it.
    chart = draw([_plot([0.0, 1.0, 2.0], kind), _plot([0.0, 3.0], kind)])
    assert chart.title == "A title"
    assert chart.alt == "A title Axes: a place against a value."
    assert ("2 seeds" in chart.note) == (kind != "points")
    assert chart.svg.startswith(b"<?xml")


def test_places_of_paths_are_means_too() -> None:
    def drawn(*places: float, kind: str) -> Chart:
        paths = [{"a method": ([kl, 1.0], [0.1, 0.3])} for kl in places]
        return draw([Plot("A title", "KL", "gold", path, kind=kind) for path in paths])  # type: ignore[arg-type]

    chart = drawn(2.0, 4.0, kind="paths")
    assert chart.note == "Mean of 2 seeds; whiskers reach from the lowest to the highest."
    assert chart.svg == drawn(4.0, 2.0, kind="paths").svg
    assert chart.svg != drawn(2.0, 3.0, kind="paths").svg


def test_key_figures_are_the_one_row_or_two_of_each() -> None:
    cells = {name: Cell(1.0, 0.1, [0.9, 1.1]) for name in "abcdefg"}
    figure = "1.000 ± 0.100"
    expected = f"one: a {figure}, b {figure}, c {figure}, d {figure}"
    assert key_figures({"one": cells}) == expected
    alone = {f"row {n}": {"a": Cell(float(n), 0.0, [n]), "b": cells["b"]} for n in range(6)}
    *first, more = key_figures(alone).split("; ")
    assert first == [f"row {n}: a {n}.000, b {figure}" for n in range(4)]
    assert more == "2 more"


def test_a_legend_is_no_wider_than_its_panel() -> None:
    """A third column of "reward model, temperature scaled" would stand outside it."""
    assert _legend_columns(["win", "tie", "lose"]) == 3
    assert _legend_columns(["flip", "margin", "soft label + margin", "baseline"]) == 2
    assert _legend_columns(["a", "reward model, temperature scaled", "b"]) == 1


def test_precision_is_half_the_interval_of_paired_differences() -> None:
    # Differences 1, 2 and 3: standard deviation 1; t of two degrees of freedom is 4.303.
    assert precision([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]) == pytest.approx(4.3027 / 3**0.5, 1e-4)
    # Of three pairs of rows, standard deviations 1, 0 and 1: the median is 1.
    three = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]
    assert precision(three) == pytest.approx(4.3027 / 3**0.5, 1e-4)
    assert precision([[1.0, 2.0]]) is precision([[1.0], [2.0]]) is None
    assert precision([[1.0, 2.0], [1.1, 2.1]]) is None


def test_bars_whose_names_do_not_fit_beside_one_another_lie() -> None:
    """Each name is written once and whole, the first on top; the whiskers lie, too."""
    names = [f"treatment number {n}, unbiased" for n in range(9)]
    bars = {"accuracy": ([float(n) for n in range(9)], [0.1 * n for n in range(9)])}

    def chart(ticks: list[str]) -> Chart:
        plot = Plot("A title", "labels", "share", bars, kind="bars", ticks=tuple(ticks))
        return draw([plot, plot])

    lying, standing = chart(names), chart([str(n) for n in range(9)])
    assert (lying.alt, standing.alt) == (
        "A title Axes: share against labels.",
        "A title Axes: labels against share.",
    )
    text = lying.svg.decode()
    assert all(text.count(f"{name}: {0.1 * n:.4g}<") == 1 for n, name in enumerate(names))
