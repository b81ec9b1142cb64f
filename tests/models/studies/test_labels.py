"""Figures 1 to 3 of Part II on strengths written down by hand."""

from __future__ import annotations

import pytest

from tests.models.studies.conftest import Run, strength, truth
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.part_two import figure_1, figure_2, figure_3


def test_figure_1_counts_strengths_below_zero(run: Run) -> None:
    rows = [strength(f"t{n}", mean, 1.0) for n, mean in enumerate([-1.0, 1.0, 2.0, 3.0])]
    rows[0]["strength_std"] = 9.0  # one of four deviates: skewness of (9, 1, 1, 1) is 2 / sqrt 3
    held_out = strength("e0", -5.0, split="test")
    reading = figure_1(run({"strength": {"strength.jsonl": [*rows, held_out]}}))
    row = reading.table["training pairs"]
    assert row["share below 0"] == 0.25
    assert row["skewness of the deviations"] == pytest.approx(2 / 3**0.5)
    # The spread of the means is sqrt(2.1875) = 1.479: none lies within half of it.
    assert row["share within half a spread of 0"] == 0.0
    assert all(reading.checks.values())
    for plot in reading.plots:
        ((places, shares),) = plot.series.values()
        assert sum(shares) == pytest.approx(100)
        assert len(places) == len(shares)


def _twenty(deviations: list[float]) -> list[dict[str, object]]:
    return [strength(f"t{n}", float(n), std) for n, std in enumerate(deviations)]


def test_figure_2_sees_a_u_and_no_u(run: Run) -> None:
    bowl = [3.0, *[1.0] * 18, 2.0]
    reading = figure_2(run({"strength": {"strength.jsonl": _twenty(bowl)}}))
    found = reading.table["deviation between members"]
    assert list(found.values()) == [3.0, 1.0, 2.0]
    assert all(reading.checks.values())
    rising = [1.0 + n for n in range(20)]
    reading = figure_2(run({"strength": {"strength.jsonl": _twenty(rising)}}))
    assert list(reading.checks.values()) == [False, True, False]


def test_figure_3_compares_held_out_labels_with_gold(run: Run) -> None:
    # Twenty pairs in ten groups of two; the weakest four are wrong, one further of the third group.
    rows = [strength(f"e{n}", n - 5.0, split="validation") for n in range(20)]
    truths = [truth(f"e{n}", is_wrong=n < 4 or n == 5) for n in range(20)]
    trained_on = [strength("t0", -9.0)]
    reading = figure_3(
        run(
            {
                "strength": {"strength.jsonl": rows + trained_on},
                "preferences": {"truth.jsonl": truths},
            }
        )
    )
    found = reading.table["agreement with gold"]
    assert found["weakest tenth"] == 0.0
    # Strengths -1 and 0 are pairs 4 and 5, of which the second is wrong.
    assert found["the tenth nearest to 0"] == 0.5
    assert found["strongest tenth"] == 1.0
    assert all(reading.checks.values())
    ((_, shares),) = reading.plots[0].series.values()
    assert shares == [0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_figure_3_needs_right_labels(run: Run) -> None:
    rows = [strength(f"e{n}", n - 5.0, split="validation") for n in range(20)]
    with pytest.raises(ReportInputError, match="needs right labels"):
        figure_3(run({"strength": {"strength.jsonl": rows}}))
