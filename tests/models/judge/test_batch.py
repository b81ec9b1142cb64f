"""What is known is not asked again, in this process, in the next, or after an interruption."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.judge.conftest import endpoint, limited, request
from tests.models.judge.endpoint import Body, ScriptedServer, completion, serving
from trimtab.models.judge.batch import AnswerCache, CachedChatModel, StoppedError
from trimtab.models.judge.budget import Budget, BudgetError
from trimtab.models.judge.chat import ChatRequest, Usage


def _echo(_: int, body: Body) -> Body:
    return completion(body["messages"][0]["content"])


def _chat(
    server: ScriptedServer, folder: Path, budget: Budget | None = None, **more: Any
) -> CachedChatModel:
    budget = budget or Budget()
    return CachedChatModel(endpoint(server, budget), AnswerCache(folder), budget, **more)


def _asked(server: ScriptedServer) -> list[str]:
    return sorted(body["messages"][0]["content"] for body in server.bodies)


def test_answers_are_in_order_and_each_question_is_asked_once(tmp_path: Path) -> None:
    with serving(_echo) as server:
        chat = _chat(server, tmp_path)
        calls = itertools.count()
        texts = ["c", "a", "b", "a", "c"]
        answers = chat.ask([request(text) for text in texts], lambda: next(calls) and None)
        assert [answer.content for answer in answers] == texts
        assert (next(calls), chat.num_asked, chat.num_known) == (5, 3, 2)
        again = chat.ask([request(text) for text in ("b", "d")], lambda: next(calls) and None)
        assert [answer.content for answer in again] == ["b", "d"]
        assert (next(calls), chat.num_asked, chat.num_known) == (8, 4, 3)
        assert _asked(server) == ["a", "b", "c", "d"]
        assert chat.ask([]) == []


def test_another_process_knows_them_and_pays_for_the_rest(tmp_path: Path) -> None:
    with serving(_echo) as server:
        _chat(server, tmp_path).ask([request("a"), request("b")])
        (tmp_path / "own").mkdir()
        chat = _chat(server, tmp_path, limited(tmp_path / "own"))
        chat.ask([request("a"), request("b"), request("a"), request("c")])
    assert _asked(server) == ["a", "b", "c"]
    assert (chat.num_asked, chat.num_known) == (1, 3)
    assert chat.budget.spent == Usage(10, 1)


def test_a_truncated_answer_is_asked_again(tmp_path: Path) -> None:
    with serving(_echo) as server:
        _chat(server, tmp_path).ask([request("a")])
        (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
        path.write_text(path.read_text()[:-1])
        (answer,) = _chat(server, tmp_path).ask([request("a")])
    assert answer.content == "a"
    assert _asked(server) == ["a", "a"]


def test_a_spent_budget_stops_and_a_larger_one_asks_for_the_rest_only(tmp_path: Path) -> None:
    # A request is held at 1 + 64 + 32 + 1 = 98 tokens, and comes to 11.
    texts = [str(number) for number in range(9)]
    with serving(_echo) as server:
        small = _chat(server, tmp_path, limited(tmp_path, max_tokens=150))
        with pytest.raises(BudgetError):
            small.ask([request(text) for text in texts])
        done = len(server.bodies)
        # 98 fit beside 52 spent, so four answers (44) and no more than five (55).
        assert done == 5
        chat = _chat(server, tmp_path, limited(tmp_path, max_tokens=1000))
        answers = chat.ask([request(text) for text in texts])
    assert [answer.content for answer in answers] == texts
    assert _asked(server) == texts
    assert (chat.num_asked, chat.num_known) == (9 - done, done)


def test_a_stop_lets_those_under_way_be_answered_and_kept(tmp_path: Path) -> None:
    requested = iter([False, False, True])
    with serving(_echo) as server:
        chat = _chat(server, tmp_path, stop_requested=lambda: next(requested))
        with pytest.raises(StoppedError, match="3 requests are not answered yet"):
            chat.ask([request(text) for text in "abcde"])
        assert _asked(server) == ["a", "b"]
        _chat(server, tmp_path).ask([request(text) for text in "abcde"])
    assert _asked(server) == ["a", "b", "c", "d", "e"]


def test_what_one_knows_can_be_told_to_another_without_the_folder(tmp_path: Path) -> None:
    with serving(_echo) as server:
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
        first = _chat(server, tmp_path / "here", limited(tmp_path / "here"))
        first.ask([request("a"), request("b")])
        second = _chat(server, tmp_path / "there", limited(tmp_path / "there"))
        second.load_state_dict(first.state_dict())
        assert [a.content for a in second.ask([request("b"), request("a")])] == ["b", "a"]
        assert second.budget.spent == Usage()
        assert _asked(server) == ["a", "b"]
        first.clear_memory()
        assert first.state_dict() == {}
        first.ask([request("a")])
        assert _asked(server) == ["a", "b"]
        assert first.budget.spent == Usage(20, 2)


def test_without_a_cache_a_process_remembers_what_it_needs() -> None:
    class Silent:
        identity = "nobody"

        def answers(self, requests: Iterable[tuple[str, ChatRequest]]) -> Iterator[Any]:
            return iter(())

    chat = CachedChatModel(Silent())
    with pytest.raises(StoppedError):
        chat.ask([request("a")])
