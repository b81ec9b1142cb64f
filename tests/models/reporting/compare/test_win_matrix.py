"""Every two policies judged, on evaluations written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.models.reporting.compare.conftest import Write
from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.reporting.compare.answers import Answers, read_answers
from trimtab.models.reporting.compare.win_matrix import Duel, WinMatrix, build_win_matrix
from trimtab.models.reporting.kit.artifacts import ReportInputError

CONFIG = WinMatrixConfig(num_resamples=50)


def _answers(folders: Mapping[str, Path]) -> dict[str, Answers]:
    seeds: dict[int, dict[str, Path]] = {}
    for name, folder in folders.items():
        seed, policy = name.split(".")
        seeds.setdefault(int(seed), {})[policy] = folder
    return read_answers(seeds)


def _duel(matrix: WinMatrix, ours: str, theirs: str, place: str = "main") -> Duel:
    (found,) = (
        duel
        for duel in matrix.duels
        if (duel.place, duel.judge, duel.ours, duel.theirs) == (place, "gold", ours, theirs)
    )
    return found


def test_the_matrix_by_hand(write: Write) -> None:
    """Two seeds of four and of two prompts; a difference below .01 is a tie."""
    first = write(3, {"sft": [0.5] * 4, "b": [0.9, 0.9, 0.5, 0.1], "a": [0.9, 0.505, 0.5, 0.4]})
    second = write(7, {"sft": [0.5] * 2, "b": [0.9, 0.9], "a": [0.1, 0.5]})
    matrix = build_win_matrix(_answers(first | second), CONFIG)
    assert matrix.policies == ["sft", "a", "b"]
    assert matrix.judges == ["gold", "judge_score"]
    # b against SFT: 2 wins, 1 tie, 1 loss of 4; 2 of 2. a: 1, 2, 1 of 4; a loss and a tie of 2.
    b, a = _duel(matrix, "b", "sft"), _duel(matrix, "a", "sft")
    assert b.net.by_seed == pytest.approx([0.25, 1.0])
    assert b.net.value == pytest.approx(0.625)
    assert [each.by_seed[0] for each in (b.win, b.tie, b.lose)] == pytest.approx([0.5, 0.25, 0.25])
    assert a.net.by_seed == pytest.approx([0.0, -0.5])
    # b against a: a tie, a win, a tie, a loss; two wins.
    assert _duel(matrix, "b", "a").net.by_seed == pytest.approx([0.0, 1.0])
    # What SFT was expert at, nobody has lost here; validation prompts are not judged again.
    assert _duel(matrix, "b", "sft", "forget").tie.value == 1.0
    assert {duel.place for duel in matrix.duels} == {"main", "forget"}
    (measured,) = (m for m in matrix.measured if (m.place, m.policy) == ("main", "b"))
    # Gold .6 and .9: every seed counts alike, though one has more prompts.
    assert measured.means["gold"].value == pytest.approx(0.75)
    assert measured.means["kl"].by_seed == pytest.approx([0.06, 0.09])
    assert measured.means["length"].value == 5


def test_what_one_wins_the_other_loses(write: Write) -> None:
    golds = {"sft": [0.5, 0.2, 0.7, 0.1], "a": [0.6, 0.2, 0.1, 0.9], "b": [0.1, 0.3, 0.6, 0.5]}
    matrix = build_win_matrix(_answers(write(0, golds)), CONFIG)
    for duel in matrix.duels:
        if duel.judge == "gold":
            other = _duel(matrix, duel.theirs, duel.ours, duel.place)
            assert duel.net.value == pytest.approx(-other.net.value)
            assert (duel.net.low, duel.net.high) == pytest.approx((-other.net.high, -other.net.low))
            assert duel.win == other.lose
            assert duel.tie == other.tie


def test_a_known_order_is_found_by_ratings(write: Write) -> None:
    """Of ten prompts each policy beats the next below on all but one."""
    steps = [0.1] * 9 + [-0.1]
    golds = {name: [0.5 + n * s for s in steps] for n, name in enumerate(("sft", "c", "b", "a"))}
    matrix = build_win_matrix(_answers(write(0, golds) | write(1, golds)), CONFIG)
    rated = {row.policy: row.rating for row in matrix.rated if row.judge == "gold"}
    assert sorted(rated, key=lambda name: -rated[name].value) == ["a", "b", "c", "sft"]
    assert sum(rating.value for rating in rated.values()) == pytest.approx(4000)
    for rating in rated.values():
        assert rating.low <= rating.value <= rating.high
        assert rating.by_seed[0] == pytest.approx(rating.by_seed[1])
    # The one prompt on which all is turned round is drawn for all games at once: where a resample
    # has it often, all ratings move together, and those of the ends move most.
    width = {name: rating.high - rating.low for name, rating in rated.items()}
    assert width["a"] > width["b"]


def test_judges_agree_with_themselves_and_not_with_their_opposite(write: Write) -> None:
    golds = {"sft": [0.5, 0.5, 0.5, 0.5], "a": [0.9, 0.1, 0.9, 0.5]}
    matrix = build_win_matrix(_answers(write(0, golds)), CONFIG)
    found = {(row.first, row.second): row for row in matrix.agreements}
    assert {row.num_games for row in matrix.agreements} == {4}
    same = found["gold", "judge_0"]
    assert same.kappa is not None
    assert (same.share.value, same.kappa.value) == (1.0, 1.0)
    # Verdicts of a (listed second) are SFT's -1, 1, -1, 0 against 1, -1, 1, 0: one of four agrees.
    # Chance: (1/4)(1/2) + (1/4)(1/4) + (1/2)(1/4) = 5/16; kappa (4/16 - 5/16) / (11/16) = -1/11.
    opposite = found["gold", "judge_1"]
    assert opposite.kappa is not None
    assert opposite.share.by_seed == [opposite.share.value] == [0.25]
    assert opposite.kappa.by_seed == [opposite.kappa.value] == [pytest.approx(-1 / 11)]
    assert opposite.kappa.low < -1 / 11 < opposite.kappa.high
    # The mean of both reward models is 0 throughout: all ties, where gold has one in four.
    assert found["gold", "judge_score"].share.value == 0.25


def test_a_method_that_wins_by_length_wins_half_at_equal_length(write: Write) -> None:
    """The longer answer always wins, and ours is as often longer as shorter, by other amounts."""
    lengths = {"sft": [5] * 8, "long": [9, 9, 8, 8, 2, 2, 1, 1]}
    golds = {"sft": [0.5] * 8, "long": [0.9] * 4 + [0.1] * 4}
    matrix = build_win_matrix(_answers(write(0, golds, lengths)), CONFIG)
    (rated,) = (r for r in matrix.rated if (r.judge, r.policy) == ("gold", "long"))
    assert rated.plain is not None
    assert rated.controlled is not None
    assert rated.length_effect is not None
    assert rated.plain.value == rated.controlled.value == pytest.approx(0.5)
    assert rated.length_effect > 1
    # The longer wins 9 times in 10, and ours is longer 30 times in 40: 70 % won, for length alone.
    lengths = {"sft": [5] * 800, "long": ([9] * 30 + [1] * 10) * 20}
    won = [0.9] * 27 + [0.1] * 3 + [0.9] + [0.1] * 9
    golds = {"sft": [0.5] * 800, "long": won * 20}
    matrix = build_win_matrix(_answers(write(1, golds, lengths)), CONFIG)
    (rated,) = (r for r in matrix.rated if (r.judge, r.policy) == ("gold", "long"))
    assert rated.plain is not None
    assert rated.controlled is not None
    assert rated.plain.value == pytest.approx(0.7)
    assert rated.controlled.value == pytest.approx(0.5, abs=1e-2)


def test_clearly_takes_the_interval_and_every_seed(write: Write) -> None:
    """Better in the mean with a whole interval, but one seed is not: nothing is clear."""
    rows = {"sft": [0.5] * 30, "always": [0.9] * 30, "worse": [0.1] * 30}
    first = write(0, {**rows, "once": [0.9] * 30})
    second = write(1, {**rows, "once": [0.9] * 14 + [0.1] * 16})
    matrix = build_win_matrix(_answers(first | second), CONFIG)
    once = _duel(matrix, "once", "sft").net
    assert once.low > 0
    assert min(once.by_seed) < 0
    assert once.standing == "not clear"
    assert _duel(matrix, "always", "sft").net.standing == "better"
    assert _duel(matrix, "worse", "sft").net.standing == "worse"
    assert _duel(matrix, "sft", "always").net.standing == "worse"


def test_it_comes_back_from_json(write: Write) -> None:
    matrix = build_win_matrix(_answers(write(0, {"sft": [0.5, 0.1], "a": [0.9, 0.2]})), CONFIG)
    assert WinMatrix.from_json(json.loads(json.dumps(matrix.to_json()))) == matrix


def test_what_does_not_belong_together_is_refused(write: Write) -> None:
    first = write(0, {"sft": [0.5, 0.1], "a": [0.9, 0.2]})
    with pytest.raises(ReportInputError, match=r"seed 1 has the policies \['b', 'sft'\]"):
        _answers(first | write(1, {"sft": [0.5], "b": [0.9]}))
    with pytest.raises(ReportInputError, match="c of seed 2 answered other prompts than SFT did"):
        _answers(write(2, {"sft": [0.5, 0.5], "c": [0.9]}))
