"""Judge models in the win matrix and on the page, from verdicts written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.models.reporting.compare.conftest import Write
from trimtab.models.config.reporting import CompareConfig, WinMatrixConfig
from trimtab.models.reporting.compare.methods import answer_of, methods_of
from trimtab.models.reporting.compare.win_matrix import WinMatrix
from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.stages import compare, win_matrix
from trimtab.models.training.stage import Stage

CONFIG = WinMatrixConfig(num_resamples=50)
# Of SFT against a, gold: lost, won, lost, tied; lost, lost.
GOLDS = {
    3: {"sft": [0.5] * 4, "a": [0.9, 0.1, 0.9, 0.5]},
    7: {"sft": [0.5] * 2, "a": [0.9, 0.9]},
}
# By seed and place; the judge has not seen the other prompts.
VERDICTS = {(3, 0): -1, (3, 1): -1, (3, 2): 0, (7, 0): -1}
ASKED = {"num_asked": 4, "share_same_position": 0.25, "position_bias": -0.125}
SPENT = {"num_unparsed": 1, "prompt_tokens": 1000, "completion_tokens": 234, "cost": 1.5}


def _judged(
    folder: Path,
    name: str,
    verdicts: Mapping[tuple[int, int], int],
    pairs: Sequence[tuple[str, str]] = (("sft", "a"),),
    group: str = "main",
) -> Path:
    folder = folder / f"judged_{name}"
    folder.mkdir(parents=True)
    rows = [
        {"seed": seed, "set": group, "place": place, "ours": ours, "theirs": theirs, "verdict": won}
        for ours, theirs in pairs
        for (seed, place), won in verdicts.items()
    ]
    (folder / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps({"name": name, **ASKED, **SPENT}))
    return folder


def _evaluations(write: Write) -> dict[str, Path]:
    return write(3, GOLDS[3]) | write(7, GOLDS[7])


def _matrix(tmp_path: Path, inputs: Mapping[str, Path]) -> WinMatrix:
    win_matrix.run(CONFIG, Stage(dict(inputs), tmp_path / "matrix"))
    text = (tmp_path / "matrix" / "output" / "win_matrix.json").read_text()
    return WinMatrix.from_json(json.loads(text))


@pytest.fixture
def matrix(tmp_path: Path, write: Write) -> WinMatrix:
    """With the judge `m`, and one to whom all is alike."""
    every = {(seed, place): 0 for seed, golds in GOLDS.items() for place in range(len(golds["a"]))}
    judged = {
        "verdicts_0": _judged(tmp_path, "m", VERDICTS),
        "verdicts_1": _judged(tmp_path, "even", every),
    }
    return _matrix(tmp_path, _evaluations(write) | judged)


def test_outcomes_are_those_of_the_prompts_it_was_asked_about(matrix: WinMatrix) -> None:
    assert matrix.judges == ["gold", "judge_score", "m", "even"]
    duels = {(d.judge, d.place, d.ours): d for d in matrix.duels}
    won = duels["m", "main", "a"]
    # Two of three won and a tie; one of one won. Seeds count alike.
    assert won.win.by_seed == pytest.approx([2 / 3, 1])
    assert won.tie.by_seed == pytest.approx([1 / 3, 0])
    assert won.net.value == pytest.approx((2 / 3 + 1) / 2)
    assert duels["m", "main", "sft"].net.value == pytest.approx(-won.net.value)
    assert ("m", "forget", "a") not in duels
    assert duels["gold", "main", "a"].net.by_seed == pytest.approx([0.25, 1])
    even = duels["even", "main", "a"]
    # Six prompts, all ties; seeds of 4 and 2 that count alike vary as 2^2 / (1/4 + 1/2) = 16/3 do.
    z_squared = 1.959964**2
    reach = pytest.approx(z_squared / (16 / 3 + z_squared))
    assert (even.tie.value, -even.net.low, even.net.high) == (pytest.approx(1), reach, reach)
    ratings = {(row.judge, row.policy): row for row in matrix.rated}
    assert ratings["even", "a"].rating.value == pytest.approx(1000)
    assert ratings["m", "a"].rating.value > 1000 > ratings["m", "sft"].rating.value
    # Answers are equally long, so that the win rate at equal length is the plain one, (win + 1)/2;
    # over all four prompts, where the plain one is over seeds.
    controlled = ratings["m", "a"].controlled
    assert controlled is not None and controlled.value == pytest.approx(3.5 / 4, abs=1e-2)


def test_agreement_with_gold_by_hand(matrix: WinMatrix) -> None:
    found = {(row.first, row.second): row for row in matrix.agreements}
    row = found["gold", "m"]
    # SFT against a: gold -1, 1, -1 and -1, the judge -1, -1, 0 and -1. Two of four are equal;
    # by chance (3/4)(3/4); kappa (8/16 - 9/16) / (7/16). Of seed 3: (3/9 - 4/9) / (5/9).
    assert row.num_games == 4
    assert row.share.value == pytest.approx(0.5)
    assert row.share.by_seed == pytest.approx([1 / 3, 1])
    assert row.kappa is not None
    assert row.kappa.value == pytest.approx(-1 / 7)
    assert row.kappa.by_seed == pytest.approx([-1 / 5])  # of seed 7 both say one thing throughout
    assert row.share.low < 0.5 < row.share.high
    # Who finds all alike agrees by chance alone: where gold has its tie.
    even = found["gold", "even"]
    assert (even.num_games, even.share.value) == (6, pytest.approx(1 / 6))
    assert even.kappa is not None and even.kappa.value == pytest.approx(0)
    # All that judge one game or more together are there; the mean is not held against its parts.
    assert ("m", "even") in found and ("judge_score", "m") in found and ("judge_1", "m") in found
    assert ("judge_score", "judge_0") not in found


def test_categories_apart(matrix: WinMatrix) -> None:
    """Places 0 and 2 are helpful, 1 and 3 harmless."""
    assert set(matrix.by_category) == {"helpful", "harmless"}
    duels = {
        (category, duel.judge): duel for category, rows in matrix.by_category.items()
        for duel in rows
    }  # fmt: skip
    assert {duel.theirs for duel in duels.values()} == {"sft"}
    assert duels["helpful", "m"].net.by_seed == pytest.approx([0.5, 1])
    assert duels["harmless", "m"].net.by_seed == pytest.approx([1])
    assert duels["harmless", "gold"].net.by_seed == pytest.approx([-0.5, 1])


def test_the_page_has_the_judges(tmp_path: Path, matrix: WinMatrix) -> None:
    config = CompareConfig(recipe="smoke", seeds=(3, 7), arms=("full",))
    inputs = {f"{seed}.preferences": tmp_path for seed in GOLDS}
    inputs["win_matrix"] = tmp_path / "matrix" / "output"
    compare.run(config, Stage(inputs, tmp_path / "page"))
    page = " ".join((tmp_path / "page" / "output" / "report.html").read_text().split())
    for text in (
        "The same by the judge m",
        "the gold scorer and the judge m",
        "main: harmless",
        # Three of four prompts won, and none lost, are too few to be clear.
        "By the judge m 0 of 1 are clearly better than SFT",
        # Of seeds 3 and 7: two of three and one of one won, one of three a tie.
        'title="win 83 [',
        "the forget set (what SFT was expert at)",
        "Orders disagree (%)",
        ">1,234<",
        "same verdict as the gold scorer in 50 % of games (kappa −0.14)",
    ):
        assert text in page, text
    methods = methods_of(matrix, config, inputs)
    assert answer_of(methods, matrix).details[-1].startswith("By the judge even 0 of 1 are clearly")


def test_verdicts_that_do_not_belong_are_refused(tmp_path: Path, write: Write) -> None:
    evaluations = _evaluations(write)
    cases = {
        "other policies": (VERDICTS, [("sft", "b")], "main", r"the policies \['b', 'sft'\]"),
        "other seeds": ({(5, 0): 1}, [("sft", "a")], "main", r"the set 'main' of seeds \[5\]"),
        "other set": (VERDICTS, [("sft", "a")], "odd", r"the set 'odd' of seeds \[3, 7\]"),
        "twice": (VERDICTS, [("sft", "a")] * 2, "main", "not judged every pair on every prompt"),
    }
    for name, (verdicts, pairs, group, message) in cases.items():
        judged = _judged(tmp_path / name, "m", verdicts, pairs, group)
        with pytest.raises(ReportInputError, match=message):
            _matrix(tmp_path / name, evaluations | {"verdicts_0": judged})
