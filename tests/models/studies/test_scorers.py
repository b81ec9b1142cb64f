"""Figures of reward models on scores written down by hand."""

from __future__ import annotations

import pytest

from tests.models.studies.conftest import Row, Run, pair, score, truth
from trimtab.models.studies.advantage_model import figure_3 as score_distributions
from trimtab.models.studies.advantage_model import table_1
from trimtab.models.studies.measures import GIVEN, RIGHT
from trimtab.models.studies.part_two import figure_4, figure_5, figure_6, figure_7, response_ratings
from trimtab.models.studies.variants import RATED


def _preferences() -> dict[str, list[Row]]:
    """Four test pairs: one wrong label, one near-tie."""
    return {
        "test.jsonl": [pair(f"e{n}") for n in range(4)],
        "truth.jsonl": [
            truth("e0", False),
            truth("e1", True),
            truth("e2", False),
            truth("e3", False, "ambiguous"),
        ],
    }


def _scores(*gaps: float) -> dict[str, list[Row]]:
    return {"scores.jsonl": [score(f"e{n}", gap) for n, gap in enumerate(gaps)]}


def test_accuracy_on_given_and_on_right_labels(run: Run) -> None:
    seed_run = run({"preferences": _preferences(), "s": _scores(1, 1, -1, 1)})
    found = seed_run.accuracies("s")
    # Given labels: three of four. Right ones, near-tie left out: e0 right; e1 is flipped: wrong; e2
    # wrong.
    assert found == {RIGHT: pytest.approx(1 / 3), GIVEN: 0.75}


def test_figure_4_is_about_chance(run: Run) -> None:
    worst, best = _scores(-1, 1, -1, 1), _scores(1, -1, 1, 1)
    roles = {f"scorer_tenth_{n}": worst if n < 3 else best for n in range(1, 11)}
    reading = figure_4(run({"preferences": _preferences(), **roles}))
    assert reading.table["tenth 1"][RIGHT] == 0.0
    assert reading.table["tenth 10"][RIGHT] == 1.0
    # Worst below chance; tenths 3 and 4 are perfect, not near chance; the strongest is the best.
    assert list(reading.checks.values()) == [True, False, False]


def test_figure_5_compares_each_tenth_with_itself_flipped(run: Run) -> None:
    worst, best = _scores(-1, 1, -1, 1), _scores(1, -1, 1, 1)
    roles = {
        "scorer_tenth_1": worst,
        "scorer_tenth_1_flipped": best,
        "scorer_tenth_2": best,
        "scorer_tenth_2_flipped": worst,
    }
    assert list(figure_5(run({"preferences": _preferences(), **roles})).checks.values()) == [
        True,
        False,
    ]


WORST, MIDDLE, BEST = (-1, 1, -1, 1), (1, 1, -1, 1), (1, -1, 1, 1)  # 0, 1/3 and 1 by right labels


def test_figure_6_wants_margin_and_soft_labels_together(run: Run) -> None:
    def roles(*gaps: tuple[float, ...]) -> dict[str, dict[str, list[Row]]]:
        names = ("tenth_10", "tenth_10_margin", "tenth_10_soft", "tenth_10_soft_margin")
        return {f"scorer_{n}": _scores(*g) for n, g in zip(names, gaps, strict=True)}

    reading = figure_6(run({"preferences": _preferences(), **roles(MIDDLE, MIDDLE, BEST, BEST)}))
    assert all(reading.checks.values())
    assert reading.table["margin"][RIGHT] == pytest.approx(1 / 3)
    worse = roles(MIDDLE, BEST, BEST, WORST)
    assert not any(figure_6(run({"preferences": _preferences(), **worse})).checks.values())


def test_figure_7_compares_with_and_without_a_margin(run: Run) -> None:
    def holds(baseline: tuple[float, ...], margin: tuple[float, ...]) -> bool:
        roles = {"scorer_baseline": _scores(*baseline), "scorer_margin": _scores(*margin)}
        reading = figure_7(run({"preferences": _preferences(), **roles}))
        assert list(reading.table) == ["baseline", "margin"]
        return all(reading.checks.values())

    assert holds(MIDDLE, BEST)
    assert not holds(MIDDLE, MIDDLE)


def test_table_1_compares_two_models_on_the_same_pairs(run: Run) -> None:
    # Both order the pairs alike; the reward model is sure of itself, and wrong once in four.
    sure, careful = _scores(9, 9, -9, 9), _scores(1, 1, -1, 1)
    roles = {"scorer_raw": sure, "advantage_raw": careful}
    reading = table_1(run({"preferences": _preferences(), **roles}))
    errors = [row["calibration error, given labels"] for row in reading.table.values()]
    # Confidence sigmoid(9) = .99988 against .75; sigmoid(1) = .73106 against .75.
    assert errors == pytest.approx([0.24988, 0.01894], abs=1e-5)
    assert all(reading.checks.values())


def test_figure_3_tells_good_from_bad_whatever_the_unit(run: Run) -> None:
    def rows(unit: float) -> list[Row]:
        scores = {"e0": (3.0, 1.0), "e1": (2.0, 0.0)}
        return [
            score(name, unit * good) | {"rejected_score": unit * bad}
            for name, (good, bad) in scores.items()
        ]

    roles = {
        "scorer_raw": {"scores.jsonl": rows(1.0)},
        "advantage_raw": {"scores.jsonl": rows(10.0)},
    }
    reading = score_distributions(run(roles))
    found = [row["AUROC of good against bad answers"] for row in reading.table.values()]
    # Good 3, 2 against bad 1, 0: every good answer is above every bad one.
    assert found == [1.0, 1.0]
    assert reading.plots[0].series == reading.plots[1].series


def test_response_ratings_are_held_against_flips_by_strength(run: Run) -> None:
    """Two training pairs, of which one is labelled wrong, and four test pairs."""
    preferences = _preferences()
    preferences["truth.jsonl"] += [truth("t0", True), truth("t1", False)]

    def roles(is_flipped: dict[str, tuple[bool, bool]], gaps: dict[str, tuple[float, ...]]) -> Row:
        found: Row = {"preferences": preferences}
        for name in RATED:
            rows = [
                {"id": f"t{n}", "is_flipped": flip, "label": 1.0 - 0.25 * n, "prompt": "p"}
                for n, flip in enumerate(is_flipped[name])
            ]
            found[f"pairs_{name}"] = {"train.jsonl": rows}
            found[f"scorer_{name}"] = _scores(*gaps[name])
        return found

    none, right, all_wrong = (False, False), (True, False), (False, True)
    is_flipped = {"given": none, "smoothed": none, "flipped": none}
    is_flipped |= {"rated": right, "flipped_rated": right}
    # e0 and e2 are right, e1 is labelled wrong: of three clear pairs 1, 2 or 3 are right.
    gaps = dict.fromkeys(("given", "smoothed", "flipped"), (1, 1, -1, 1))
    gaps |= {"rated": (1, -1, -1, 1), "flipped_rated": (1, -1, 1, 1)}
    reading = response_ratings(run(roles(is_flipped, gaps)))
    assert all(reading.checks.values())
    shares = [row["training labels that are wrong"] for row in reading.table.values()]
    assert shares == [0.5, 0.5, 0.0, 0.5, 0.0]
    row = reading.table["pairs as given"]
    assert (row["mean label"], row["pairs a prompt"]) == (0.875, 2.0)
    worse = response_ratings(
        run(roles(is_flipped | {"rated": all_wrong}, dict.fromkeys(RATED, (1, 1, 1, 1))))
    )
    assert not any(worse.checks.values())
