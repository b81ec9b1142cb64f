"""How far a run is: stages done of all, and the time left by the plan's costs."""

from __future__ import annotations

import pytest

from trimtab.tasks.board import Board, duration_text


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def test_time_left_is_what_the_rest_costs_at_the_pace_so_far(clock: _Clock) -> None:
    board = Board(clock)
    board.expect({"sft": [10.0], "reward_model": [20.0, 40.0], "report": [10.0]})
    assert (board.done, board.total, board.standing()) == (0, 4, "0 of 4 stages")
    board.began("1", "sft", "sft")
    clock.now += 30
    board.ended("1", "sft", was_found=False)
    # 10 of 80 took 30 s: 70 are left.
    assert board.seconds_left() == pytest.approx(30 * 70 / 10)
    assert board.standing() == "1 of 4 stages, about 4 min left"
    board.began("2", "member 0", "reward_model")  # each costs 30 on average
    board.advanced("2", 1, 2, {"loss": 0.5})
    clock.now += 30
    assert board.seconds_left() == pytest.approx(60 * 55 / 25)
    (running,) = board.running
    assert (running.share, running.metrics) == (0.5, {"loss": 0.5})
    # A stage whose training is done counts as done.
    board.advanced("2", 1, 900, {}, "scoring test pairs")
    (running,) = board.running
    assert (running.share, running.done, running.total) == (1.0, 1, 900)


def test_what_is_found_in_the_store_says_nothing_about_the_pace(clock: _Clock) -> None:
    board = Board(clock)
    board.expect({"sft": [10.0], "reward_model": [30.0], "report": [10.0]})
    for stage in ("sft", "reward_model"):
        board.began(stage, stage, stage)
        clock.now += 10
        board.ended(stage, stage, was_found=True)
    assert board.standing() == "2 of 3 stages"
    board.began("3", "report", "report")
    board.advanced("3", 3, 4, {})
    clock.now += 10
    assert board.seconds_left() == pytest.approx(30 * 2.5 / 7.5)
    board.ended("3", "report", was_found=False)
    assert board.standing() == "3 of 3 stages"


def test_nothing_is_told_too_early_or_of_no_plan(clock: _Clock) -> None:
    board = Board(clock)
    board.began("1", "sft", "sft")
    board.ended("1", "sft", was_found=False)
    assert (board.total, board.standing(), board.seconds_left()) == (0, "", None)
    board.expect({"sft": [1.0], "ppo_max": [99.0]})
    board.began("1", "sft", "sft")
    clock.now += 4
    board.ended("1", "sft", was_found=False)
    assert board.seconds_left() is None  # a hundredth of the work
    board.expect({"sft": [50.0], "ppo_max": [50.0]})
    board.began("1", "sft", "sft")
    clock.now += 4
    board.ended("1", "sft", was_found=False)
    assert board.seconds_left() is None  # four seconds


def test_without_a_plan_all_stages_are_those_submitted(clock: _Clock) -> None:
    board = Board(clock)
    board.expect_submitted()
    for _ in range(3):
        board.submitted()
    board.began("a", "sft", "sft")
    board.ended("a", "sft", was_found=False)
    assert board.standing() == "1 of 3 stages"
    board.began("b", "sft", "sft")
    board.failed("b")
    assert board.running == [] and board.done == 1


def test_stages_of_one_label_are_told_apart(clock: _Clock) -> None:
    """Those of several seeds have the same."""
    board = Board(clock)
    board.expect({"world": [1.0] * 3})
    for key in "abc":
        board.began(key, "world", "world")
    assert [each.label for each in board.running] == ["world"] * 3
    for key in "abc":
        board.ended(key, "world", was_found=False)
    assert board.standing() == "3 of 3 stages"


def test_what_the_plan_had_and_the_run_has_not_is_no_part_of_the_end(clock: _Clock) -> None:
    board = Board(clock)
    board.expect({"sft": [1.0], "meta_rm": [1.0] * 3, "report": [1.0]})
    board.submitted()
    board.ended("a", "sft", was_found=False)
    assert board.total == 5
    board.submitted(is_last=True)
    board.ended("b", "report", was_found=False)
    assert board.standing() == "2 of 2 stages"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3.0, "under a minute"),
        (50.0, "about 1 min"),
        (620.0, "about 10 min"),
        (3570.0, "about 1 h 0 min"),
        (9000.0, "about 2 h 30 min"),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words
