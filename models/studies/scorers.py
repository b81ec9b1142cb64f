"""Reading tables and figures about reward models: accuracy, calibration, scores by task.

Accuracy is on the test pairs: against the annotators' labels and, where right labels are known,
against those (pairs that gold holds nearly equal left out).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from models.reporting.kit.artifacts import Artifacts
from models.studies.reading import Plot, Reading

RIGHT, GIVEN = "accuracy, right labels", "accuracy, given labels"
METHODS = {
    "baseline": "baseline",
    "flip": "flip",
    "margin": "margin",
    "flip_margin": "flip + margin",
    "soft_margin": "soft label + margin",
}
DENOISED = ("flip", "flip_margin", "soft_margin")


def accuracies(artifacts: Artifacts, role: str) -> dict[str, float]:
    """Accuracy of a scorer on the test pairs, by whose labels."""
    found = {GIVEN: _share_right(artifacts.labelled_gaps(role).gap)}
    if artifacts.truth:
        found = {RIGHT: _share_right(artifacts.clean_gaps(role).gap)} | found
    return found


def _share_right(gap: Tensor) -> float:
    return float((gap > 0).double().mean())


def _decisive(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each row's accuracy on right labels, on given ones where right ones are not known."""
    return {row: columns.get(RIGHT, columns[GIVEN]) for row, columns in table.items()}


def figure_4(artifacts: Artifacts) -> Reading:
    """A reward model of each tenth of the pairs by strength."""
    table = {f"tenth {n}": accuracies(artifacts, f"scorer_tenth_{n}") for n in range(1, 11)}
    found = list(_decisive(table).values())
    return Reading(
        table,
        checks={
            "the two weakest tenths teach worse than chance": max(found[:2]) < 0.5,
            "the next two teach within .1 of chance": all(abs(x - 0.5) < 0.1 for x in found[2:4]),
            "the strongest tenth is not the best": max(found) > found[9],
        },
        plots=[
            Plot(
                "What each tenth of the pairs teaches on its own",
                "tenth of the training pairs, from weakest to strongest",
                "accuracy on the test pairs (.5 is chance)",
                {
                    column: ([float(n) for n in range(1, 11)], [row[column] for row in rows])
                    for rows in [list(table.values())]
                    for column in rows[0]
                },
            )
        ],
    )


def figure_5(artifacts: Artifacts) -> Reading:
    """The two weakest tenths, labels as given and flipped."""
    table = {}
    for number in (1, 2):
        table[f"tenth {number}, as given"] = accuracies(artifacts, f"scorer_tenth_{number}")
        flipped = f"scorer_tenth_{number}_flipped"
        table[f"tenth {number}, flipped"] = accuracies(artifacts, flipped)
    found = _decisive(table)
    checks = {
        f"flipping tenth {number} makes its reward model more accurate": found[
            f"tenth {number}, flipped"
        ]
        > found[f"tenth {number}, as given"]
        for number in (1, 2)
    }
    return Reading(table, checks, [_bars("The weakest labels, as given and flipped", table)])


def figure_6(artifacts: Artifacts) -> Reading:
    """Margin and soft labels on the strongest tenth."""
    names = {
        "tenth_10": "as given",
        "tenth_10_margin": "margin",
        "tenth_10_soft": "soft labels",
        "tenth_10_soft_margin": "soft labels + margin",
    }
    table = {words: accuracies(artifacts, f"scorer_{name}") for name, words in names.items()}
    found = _decisive(table)
    both = found["soft labels + margin"]
    return Reading(
        table,
        checks={
            "soft labels with margin are better than labels as given": both > found["as given"],
            "and no worse than margin alone": both >= found["margin"],
            "margin alone changes less than two points": abs(found["margin"] - found["as given"])
            < 0.02,
        },
        plots=[_bars("Four ways to train on the strongest tenth", table)],
    )


def figure_7(artifacts: Artifacts) -> Reading:
    """A margin for all pairs."""
    table = {name: accuracies(artifacts, f"scorer_{name}") for name in ("baseline", "margin")}
    found = _decisive(table)
    return Reading(
        table,
        {"with a margin it is more accurate": found["margin"] > found["baseline"]},
        [_bars("A margin for all pairs", table)],
    )


def _bars(title: str, table: Mapping[str, Mapping[str, float]]) -> Plot:
    places = [float(index) for index in range(len(table))]
    columns = list(next(iter(table.values())))
    return Plot(
        title,
        "labels it was trained on",
        "accuracy on the test pairs (.5 is chance)",
        {column: (places, [row[column] for row in table.values()]) for column in columns},
        kind="bars",
        ticks=tuple(row.replace(", ", ",\n").replace(" + ", "\n+ ") for row in table),
    )
