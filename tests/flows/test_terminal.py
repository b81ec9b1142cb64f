"""What a person in a terminal sees of a run."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from trimtab.flows import FLOWS
from trimtab.flows.cli import terminal
from trimtab.flows.cli.terminal import draw, draw_live
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.plan import make_plan
from trimtab.models.estimates.machine import Machine
from trimtab.tasks.board import Board


def _drawn(board: Board) -> list[str]:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(draw(board))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_all_of_it_and_what_runs_now_are_drawn() -> None:
    board = Board()
    board.expect({"sft": [1.0], "reward_model": [1.0, 1.0]})
    board.began("1", "sft", "sft")
    board.ended("1", "sft", was_found=True)
    board.began("2", "member 0", "reward_model")
    board.advanced("2", 30, 60, {"grad_norm": 1.234, "loss": 0.6931, "unknown": 3.0})
    board.began("3", "member 1", "reward_model")
    board.began("4", "member 2", "reward_model")
    board.advanced("4", 10, 40, {"loss": 0.5}, "scoring test pairs")
    whole, first, second, third = _drawn(board)
    assert whole.startswith("all") and whole.endswith("1 of 3 stages")
    assert first.startswith("member 0") and first.endswith("30 of 60   loss 0.693   grad norm 1.23")
    assert second.startswith("member 1")
    assert third.endswith("scoring test pairs 10 of 40   loss 0.5")


def test_a_log_s_console_is_shared_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr(terminal, "_console_of_the_log", lambda: console)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    board = Board()
    board.expect({"sft": [1.0]})
    with draw_live(board):
        assert board.is_live and console.soft_wrap
    assert not board.is_live and not console.soft_wrap
    assert "0 of 1 stages" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_console_is_that_of_prefect_s_log() -> None:
    found = terminal._console_of_the_log()
    consoles = [
        handler.console  # type: ignore[attr-defined]
        for handler in logging.getLogger("prefect").handlers
        if hasattr(handler, "console")
    ]
    assert consoles == [] or found in consoles


@pytest.mark.parametrize("without", ["terminal", "TERM", "CI"])
def test_without_a_terminal_nothing_is_drawn(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: without != "terminal", raising=False)
    monkeypatch.setenv("TERM", "dumb" if without == "TERM" else "xterm")
    monkeypatch.delenv("CI", raising=False)
    if without == "CI":
        monkeypatch.setenv("CI", "true")
    board = Board()
    with draw_live(board):
        assert not board.is_live


@pytest.mark.parametrize("flow", FLOWS)
def test_the_plan_s_costs_are_of_all_its_stages_and_the_page(flow: str) -> None:
    config: RunConfig = recipe_named("default")
    plan = make_plan(
        config, flow, Machine.with_gpus(1, 80), num_seeds=2 if flow == "compare" else 1
    )
    costs = plan.costs()
    once = sum(row.stage.stage == "win_matrix" for row in plan.rows)
    assert once == (flow == "compare")
    several = plan.num_seeds * (len(plan.rows) - once)
    assert sum(map(len, costs.values())) == several + once + 1
    assert min(map(min, costs.values())) > 0
    assert costs["sft"][0] > costs["strength"][0]
