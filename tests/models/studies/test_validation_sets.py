"""Figure 8 of Part II by hand: given labels, the judge's or gold's, and those both give."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Row, Run, truth
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.part_two import figure_8
from trimtab.models.studies.results import SeedResult

NAMES = ("baseline", "margin", "flip", "flip_margin", "soft_margin")
GIVEN = "last, given labels"
OVERFITTED = "overfitted: best less last, given labels"


def _curve(*accuracies: int) -> dict[str, list[Row]]:
    """Of the pairs v0 to v3, the first so many are right at each of the steps 10, 20, ..."""
    return {
        "validation.jsonl": [
            {"step": 10 * step, "id": f"v{n}", "gap": 1.0 if n < right else -1.0}
            for step, right in enumerate(accuracies, start=1)
            for n in range(4)
        ]
    }


def _verdicts(*verdicts: int, split: str = "validation") -> dict[str, list[Row]]:
    rows = [{"id": f"v{n}", "split": split, "verdict": won} for n, won in enumerate(verdicts)]
    return {"judgements.jsonl": rows}


def _read(run: Run, **roles: Any) -> SeedResult:
    """Scorers on labels as given rise to four and fall to three; on denoised ones rise to two."""
    for n, name in enumerate(NAMES):
        roles[f"scorer_{name}_long"] = _curve(2, 4, 3) if n < 2 else _curve(1, 2, 2)
    return figure_8(run(roles))


def _gold(*wrong: bool) -> dict[str, list[Row]]:
    return {"truth.jsonl": [truth(f"v{n}", is_wrong) for n, is_wrong in enumerate(wrong)]}


def test_golds_labels_where_no_judge_was_asked(run: Run) -> None:
    training = _verdicts(-1, -1, -1, -1, split="train")
    reading = _read(run, preferences=_gold(False, False, False, True), judged=training)
    noisy, clean = reading.table["baseline"], reading.table["flip"]
    assert (noisy[GIVEN], noisy[OVERFITTED]) == (0.75, 0.25)
    # By gold v3 is the other way round: three right and v3 rightly below 0 are all four.
    assert noisy["last, gold's labels"] == 1.0
    assert noisy["last, labels both give"] == 1.0
    assert clean["last, gold's labels"] == 0.75
    assert clean[OVERFITTED] == 0.0
    assert reading.checks == {
        "denoised labels are more accurate on gold's": False,
        "and overfit the given ones less": True,
    }


@pytest.mark.parametrize("known", [_gold(False, False, False, True), {}])
def test_the_judges_labels_where_it_was_asked_of_these_pairs(run: Run, known: Any) -> None:
    """Whether or not the truth is known. v2 is a tie: no label. v0 and v3 as given, v1 not."""
    reading = _read(run, preferences=known, judged=_verdicts(1, -1, 0, 1))
    noisy, clean = reading.table["baseline"], reading.table["flip"]
    # Last, v0, v1 and v2 are above 0: v0 is right, v1 and v3 are wrong. Both give v0 and v3.
    assert noisy["last, the judge's labels"] == pytest.approx(1 / 3)
    assert noisy["last, labels both give"] == 0.5
    # Denoised v0 and v1 are above 0: of these three the same.
    assert clean["last, the judge's labels"] == pytest.approx(1 / 3)
    assert (noisy[GIVEN], noisy[OVERFITTED]) == (0.75, 0.25)
    assert not any("gold" in column for column in noisy)
    assert [plot.title for plot in reading.plots] == [
        f"Validation accuracy, {name}"
        for name in ("given labels", "the judge's labels", "labels both give")
    ]
    # After step 10 v0 alone is above 0 on denoised labels: v0 and v1 are right, v3 is not.
    assert reading.plots[1].series["flip"] == ([10, 20, 30], pytest.approx([2 / 3, 1 / 3, 1 / 3]))
    assert list(reading.checks) == [
        "denoised labels are more accurate on the judge's",
        "and overfit the given ones less",
    ]


def test_given_labels_alone_where_nobody_else_labelled(run: Run) -> None:
    """People's pairs, and no judge."""
    reading = _read(run)
    assert reading.table["baseline"] == {GIVEN: 0.75, OVERFITTED: 0.25}
    assert reading.checks == {"denoised labels overfit the given ones less": True}
    assert len(reading.plots) == 1


@pytest.mark.parametrize(("verdicts", "found"), [((0, 0, 0, 0), 0), ((-1, 0, -1, 0), 2)])
def test_a_judge_that_agrees_with_nothing_is_named(
    run: Run, verdicts: tuple[int, ...], found: int
) -> None:
    message = f"the judge's labels of the validation pairs are {found}, and none is the label given"
    with pytest.raises(ReportInputError, match=message):
        _read(run, judged=_verdicts(*verdicts))


def test_a_scorer_without_a_curve_is_named(run: Run) -> None:
    with pytest.raises(ReportInputError, match="scorer_baseline_long left no validation.jsonl"):
        figure_8(run({}))
