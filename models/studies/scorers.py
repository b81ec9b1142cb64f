"""Reading tables and figures about reward models: accuracy, calibration, scores by task.

Accuracy is on the test pairs: against the annotators' labels and, where right labels are known,
against those (pairs that gold holds nearly equal left out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from torch import Tensor

from models.report.artifacts import Artifacts, ReportInputError, Row
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


def figure_8(artifacts: Artifacts) -> Reading:
    """Five ways to train, several epochs, on the validation pairs by step.

    Three sets of labels: as given, gold's in place of the paper's GPT-4, and the pairs on which
    both agree. What is overfitted is the best accuracy on the given labels less the last.
    """
    curves = {words: _validation_curves(artifacts, name) for name, words in METHODS.items()}
    table = {}
    for words, by_set in curves.items():
        table[words] = {f"last, {name}": values[-1] for name, (_, values) in by_set.items()}
        given = by_set["given labels"][1]
        table[words]["overfitted: best less last, given labels"] = max(given) - given[-1]
    ours = [table[METHODS[name]] for name in DENOISED]
    noisy = [table["baseline"], table["margin"]]
    return Reading(
        table,
        checks={
            words: compare(fmean(row[column] for row in ours), fmean(r[column] for r in noisy))
            for words, column, compare in (
                ("denoised labels are more accurate on gold's", "last, gold's labels", _is_more),
                (
                    "and overfit the given ones less",
                    "overfitted: best less last, given labels",
                    _is_less,
                ),
            )
        },
        plots=[
            Plot(
                f"Validation accuracy, {name}",
                "training step",
                f"accuracy on {name} (.5 is chance)",
                {words: by_set[name] for words, by_set in curves.items()},
            )
            for name in next(iter(curves.values()))
        ],
    )


def _is_more(ours: float, theirs: float) -> bool:
    return ours > theirs


def _is_less(ours: float, theirs: float) -> bool:
    return ours < theirs


def _validation_curves(
    artifacts: Artifacts, name: str
) -> dict[str, tuple[list[float], list[float]]]:
    """Accuracy of `scorer_<name>_long` on the validation pairs by step, by whose labels."""
    role = f"scorer_{name}_long"
    by_step: dict[int, list[Row]] = {}
    for row in artifacts.rows(role, "validation.jsonl"):
        by_step.setdefault(row["step"], []).append(row)
    if not by_step:
        raise ReportInputError(
            f"{role} left no validation.jsonl: it was trained without score_every"
        )
    steps = [float(step) for step in by_step]
    given = [_mean(row["gap"] > 0 for row in rows) for rows in by_step.values()]
    found = {"given labels": (steps, given)}
    truth = artifacts.truth
    known = {i for i, t in truth.items() if t["gold_chosen"] != t["gold_rejected"]}
    if known:
        wrong = {i for i in known if truth[i]["is_wrong"]}
        parts = [[row for row in rows if row["id"] in known] for rows in by_step.values()]
        gold = [_mean((r["gap"] > 0) != (r["id"] in wrong) for r in rows) for rows in parts]
        both = [_mean(r["gap"] > 0 for r in rows if r["id"] not in wrong) for rows in parts]
        found |= {"gold's labels": (steps, gold), "labels both give": (steps, both)}
    return found


def _mean(flags: Iterable[bool]) -> float:
    return fmean(map(float, flags))


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
