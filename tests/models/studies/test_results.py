"""Results of several seeds together, by hand."""

from __future__ import annotations

import pytest

from trimtab.models.reporting.kit.charts import Chart
from trimtab.models.studies.plots import _legend_columns, draw
from trimtab.models.studies.results import (
    Cell,
    Plot,
    SeedResult,
    combine_seeds,
    key_figures,
    precision,
    status_of,
)


def _result(value: float, *checks: bool) -> SeedResult:
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
    ],
)
def test_held_is_every_part_in_every_seed(checks: dict[str, list[bool]], status: str) -> None:
    assert status_of(checks) == status


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
