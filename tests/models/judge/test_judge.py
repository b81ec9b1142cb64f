"""The judge: both orders, thoughts, repair, self-consistency, ratings; on a scripted endpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.models.judge.conftest import endpoint
from tests.models.judge.endpoint import Body, ScriptedServer, completion, serving
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.judge.batch import CachedChatModel
from trimtab.models.judge.chat import ChatModel, Usage
from trimtab.models.judge.judge import Comparison, Judge, PairVerdict
from trimtab.models.judge.rubrics import load_questions

PAIR = Comparison("Human: Which?", "the good one", "the bad one")
ASKS = load_questions()


def _judge(model: ChatModel, **config: Any) -> Judge:
    return Judge(CachedChatModel(model), JudgeConfig(**{"local_model": "any", **config}))


def _compare(server: ScriptedServer, *pairs: Comparison, **config: Any) -> list[PairVerdict]:
    return _judge(endpoint(server), **config).compare(pairs or [PAIR])


def _last(body: Body) -> str:
    return str(body["messages"][-1]["content"])


def _good_is_first(body: Body) -> bool:
    shown = next(m["content"] for m in body["messages"] if "[response A]" in m["content"])
    return "[response A]\n| the good one" in shown


def test_both_orders_by_hand() -> None:
    """P(A) is .6 of .9 where good is A; .4 of .8 where good is B: for good 2/3 and 1/2."""

    def script(_: int, body: Body) -> Body:
        if _good_is_first(body):
            return completion("A", A=math.log(0.6), B=math.log(0.3))
        return completion("A", A=math.log(0.4), B=math.log(0.4))

    with serving(script) as server:
        (verdict,) = _compare(server)
    assert verdict.shown_first == pytest.approx(2 / 3)
    assert verdict.shown_second == pytest.approx(1 / 2)
    assert (verdict.num_unparsed, verdict.usage) == (0, Usage(20, 2))
    assert [body["max_tokens"] for body in server.bodies] == [1, 1]
    assert all(_last(body).endswith(ASKS["compare answer"]) for body in server.bodies)


def test_a_judge_that_always_says_a_prefers_nobody() -> None:
    with serving(lambda *_: completion("A", A=math.log(0.9), B=math.log(0.1))) as server:
        (verdict,) = _compare(server)
    assert verdict.shown_first + verdict.shown_second == pytest.approx(1.0)


def test_without_token_probabilities_the_text_decides() -> None:
    def script(_: int, body: Body) -> Body:
        return completion("Answer: A" if _good_is_first(body) else "B.")

    with serving(script) as server:
        (verdict,) = _compare(server)
        (same,) = _compare(server, top_logprobs=0, max_answer_tokens=7)
    assert (verdict.shown_first, verdict.shown_second, verdict.num_unparsed) == (1.0, 1.0, 0)
    assert same == verdict
    assert server.bodies[-1]["max_tokens"] == 7
    assert "logprobs" not in server.bodies[-1]


def test_nonsense_gets_one_more_try_with_the_form_named() -> None:
    def script(_: int, body: Body) -> Body:
        if _last(body) == ASKS["compare repair"]:
            return completion("A" if _good_is_first(body) else "Both have merits")
        return completion("Let me think")

    with serving(script) as server:
        (verdict,) = _compare(server)
    assert (verdict.shown_first, verdict.shown_second) == (1.0, 0.5)
    assert verdict.num_unparsed == 1
    assert verdict.usage == Usage(40, 4)
    assert len(server.bodies) == 4
    repairs = [body for body in server.bodies if _last(body) == ASKS["compare repair"]]
    assert [body["messages"][-2] for body in repairs] == [
        {"role": "assistant", "content": "Let me think"}
    ] * 2
    assert {body["max_tokens"] for body in repairs} == {16}


def test_an_empty_answer_is_repaired_with_text_in_its_place() -> None:
    with serving(lambda *_: completion("")) as server:
        (verdict,) = _compare(server)
    assert verdict == PairVerdict(0.5, 0.5, 2, Usage(40, 4))
    assert all(message["content"] for body in server.bodies for message in body["messages"])


def test_thoughts_come_before_the_answer_and_go_into_its_question() -> None:
    def script(_: int, body: Body) -> Body:
        if _last(body) == ASKS["compare answer"]:
            thoughts = body["messages"][-2]
            assert thoughts == {"role": "assistant", "content": "First one is right."}
            return completion("A", A=math.log(0.8), B=math.log(0.2))
        return completion("First one is right.", completion_tokens=30)

    with serving(script) as server:
        (verdict,) = _compare(server, chain_of_thought=True, max_thought_tokens=99)
    assert verdict.shown_first == pytest.approx(0.8)
    assert verdict.shown_second == pytest.approx(0.2)
    assert verdict.usage == Usage(40, 62)
    assert [body["max_tokens"] for body in server.bodies] == [99, 99, 1, 1]


def test_samples_are_averaged_and_those_not_understood_left_out() -> None:
    """Three thoughts an order; P(A) behind them is .9, .6 and unreadable: mean .75."""

    def script(_: int, body: Body) -> Body:
        if _last(body) == ASKS["compare repair"]:
            return completion("?")
        if _last(body) != ASKS["compare answer"]:
            assert body["temperature"] == 0.7
            return completion(f"thought {body['seed']}")
        share = {"0": 0.9, "1": 0.6}.get(body["messages"][-2]["content"][-1])
        if share is None:
            return completion("?")
        return completion("A", A=math.log(share), B=math.log(1 - share))

    config = {"chain_of_thought": True, "num_samples": 3, "temperature": 0.7}
    with serving(script) as server:
        (verdict,) = _compare(server, **config)
    assert verdict.shown_first == pytest.approx(0.75)
    assert verdict.shown_second == pytest.approx(0.25)
    assert verdict.num_unparsed == 2
    assert len(server.bodies) == 6 + 6 + 2


def test_votes_of_samples_without_probabilities() -> None:
    """Sampled texts A, A, B, A: three quarters."""
    config = {"num_samples": 4, "temperature": 1.0, "top_logprobs": 0}
    with serving(lambda _, body: completion("B" if body["seed"] == 2 else "A")) as server:
        (verdict,) = _compare(server, **config)
    assert (verdict.shown_first, verdict.shown_second) == (0.75, 0.25)


def test_ratings_by_hand() -> None:
    """2 with .25, 8 with .5, unlike anything .25: (2 * .25 + 8 * .5) / .75 = 6, in [-1, 1] 1/9."""
    top = {"8": math.log(0.5), "2": math.log(0.25), "Hm": math.log(0.25)}
    with serving(lambda *_: completion("8", **top)) as server:
        (verdict,) = _judge(endpoint(server)).score(["Human: hi"], ["hello"])
    assert verdict.score == pytest.approx(6.0)
    assert verdict.normalised == pytest.approx(1 / 9)
    (body,) = server.bodies
    assert _last(body).endswith(f"[response]\n| hello\n\n{ASKS['score answer']}")
    assert body["max_tokens"] == 2


def test_a_rating_that_is_not_understood_is_the_middle() -> None:
    with serving(lambda *_: completion("quite good")) as server:
        first, second = _judge(endpoint(server)).score(["Human: hi"] * 2, ["hello", "bye"])
    assert (first.score, second.num_unparsed) == (pytest.approx(5.5), 1)
    assert first.normalised == pytest.approx(0.0)
    assert _judge(endpoint(server)).score([], []) == []


def test_verdicts_are_in_the_order_of_the_pairs() -> None:
    def script(_: int, body: Body) -> Body:
        return completion("A" if "[response A]\n| good" in _last(body) else "B")

    pairs = [
        Comparison(f"Human: {n}", *(("good", "bad") if n % 3 else ("bad", "good")))
        for n in range(10)
    ]
    calls: list[None] = []
    with serving(script) as server:
        judge = _judge(endpoint(server))
        verdicts = judge.compare(pairs, lambda: calls.append(None))
    assert [v.shown_first for v in verdicts] == [1.0 if n % 3 else 0.0 for n in range(10)]
    assert [v.shown_second for v in verdicts] == [v.shown_first for v in verdicts]
    assert len(calls) == 10 * judge.answers_per_pair == 20


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "must be given, found none"),
        ({"local_model": "x", "gold_accuracy": 0.9}, "found local_model and gold_accuracy"),
        ({"local_model": "x", "num_samples": 2}, "num_samples is 2 at temperature 0"),
        (
            {"local_model": "x", "num_samples": 2, "temperature": 1},
            "all samples have the same token probabilities",
        ),
        ({"local_model": "m", "clamp": (0.6, 0.7)}, r"0 <= low <= 0.5 <= high <= 1, found \(0.6"),
        (
            {"local_model": "m", "clamp": (0.4, 1.1)},
            "clamp.1\n  Input should be less than or equal to 1",
        ),
        ({"gold_accuracy": 0.4}, "greater than or equal to 0.5"),
        ({"endpoint": {"model": "m", "base_url": "ftp://x/v1"}}, "must be an http"),
        ({"endpoint": {"model": "m", "base_url": "http://u:p@x/v1"}}, "belongs in the environment"),
        ({"endpoint": {"model": "m", "base_url": "http://x/v1?key=1"}}, "no user, password, query"),
        ({"endpoint": {"model": "m", "max_cost": 1}}, "max_cost is 1.0, but input_price"),
        (
            {"endpoint": {"model": "m", "key_variable": "sk-123"}},
            "must be the name of an environment",
        ),
        ({"endpoint": {"model": "m", "base_url": "http://x:port/v1"}}, "Port could not be cast"),
        ({"endpoint": {"model": "m", "base_url": "http://x:70000/v1"}}, "Port out of range"),
        ({"endpoint": {"model": "m", "base_url": "http://a b/v1"}}, "must be an http"),
        ({"endpoint": {"model": "m", "base_url": "http://a/v\t1"}}, "must be an http"),
    ],
)
def test_impossible_combinations_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JudgeConfig(**config)


def test_a_slash_behind_the_address_makes_no_other_judge() -> None:
    config = JudgeConfig(endpoint={"model": "m", "base_url": "http://127.0.0.1:1/v1/"})  # type: ignore[arg-type]
    assert config.endpoint is not None and config.endpoint.base_url == "http://127.0.0.1:1/v1"


def test_rubrics_of_the_package_are_found_where_it_lies() -> None:
    folder = Path(__import__("trimtab.models.judge.rubrics", fromlist=["x"]).__file__).parent
    assert {path.name for path in folder.glob("*.toml")} == {
        *("helpfulness.toml", "harmlessness.toml", "summarisation.toml", "questions.toml"),
    }
