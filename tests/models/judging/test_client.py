"""The client against a real server: what it sends, and what it does when things go wrong."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from models.judging.budget import Budget, worst_case
from models.judging.chat import ChatAnswer, Message, Token, Usage
from models.judging.client import EndpointError
from tests.models.judging.conftest import endpoint, request
from tests.models.judging.endpoint import Body, Reply, Script, ScriptedServer, completion, serving


def _ask(server: ScriptedServer, *texts: str, **config: Any) -> dict[str, ChatAnswer]:
    return dict(endpoint(server, **config).answers((text, request(text)) for text in texts))


def _first_then_well(first: Reply) -> Script:
    return lambda number, _: first if number == 0 else completion("A")


def test_a_request_and_its_answer_by_hand() -> None:
    question = request("Which?", max_tokens=3, temperature=0.5, top_logprobs=2, seed=7)
    question = question.followed_by(Message("assistant", "?"), Message("user", "Well?"))
    with serving(lambda *_: completion("B", A=-2.0, B=-0.25)) as server:
        ((name, answer),) = endpoint(server).answers([("x", question)])
    assert server.bodies == [
        {
            "model": "judge",
            "messages": [
                {"role": "user", "content": "Which?"},
                {"role": "assistant", "content": "?"},
                {"role": "user", "content": "Well?"},
            ],
            "max_tokens": 3,
            "temperature": 0.5,
            "logprobs": True,
            "top_logprobs": 2,
            "seed": 7,
        }
    ]
    top = (("A", -2.0), ("B", -0.25))
    assert (name, answer) == ("x", ChatAnswer("B", Usage(10, 1), (Token("A", -2.0, top),)))


def test_what_is_not_wanted_is_not_sent_and_limits_have_the_endpoints_name() -> None:
    with serving(lambda *_: completion("A")) as server:
        _ask(server, "x", limit_field="max_completion_tokens")
    assert server.bodies[0].keys() == {"model", "messages", "max_completion_tokens", "temperature"}


def test_no_more_requests_at_once_than_allowed_and_all_of_those() -> None:
    together = threading.Barrier(3)

    def script(number: int, _: Body) -> Body:
        if number < 9:
            together.wait(20)  # breaks unless three are under way at once
        return completion("A")

    with serving(script) as server:
        found = _ask(server, *map(str, range(10)), max_concurrency=3)
    assert len(found) == 10
    assert server.most_at_once == 3


def test_requests_are_taken_only_when_there_is_room() -> None:
    taken = []

    def questions() -> Any:
        for number in range(20):
            taken.append(number)
            yield str(number), request(str(number))

    with serving(lambda *_: completion("A")) as server:
        answers = endpoint(server, max_concurrency=2).answers(questions())
        next(answers)
        assert len(taken) == 2
        assert len(list(answers)) == 19


@pytest.mark.parametrize(
    "fault",
    [
        Reply({"error": {"message": "slow down"}}, status=429),
        Reply({}, status=408),
        Reply({}, status=409),
        Reply(text="Internal Server Error", status=500),
        Reply({}, status=503),
        Reply(text='{"choices": [{"message": {"content"'),
        Reply(text="<html>nonsense</html>"),
        Reply({"choices": []}),
        Reply({"choices": [{"message": {"content": ["A"]}}]}),
        Reply({**completion("A"), "usage": {"prompt_tokens": -1, "completion_tokens": 0}}),
        Reply(completion("A"), cut=20),
        Reply(completion("A"), cut=0),
        Reply(completion("A", A=float("nan"))),
    ],
    ids=lambda fault: f"{fault.status} {fault.text or ''}{fault.cut}"[:30],
)
def test_faults_that_pass_are_tried_again(fault: Reply) -> None:
    with serving(_first_then_well(fault)) as server:
        asked = endpoint(server)
        answers = dict(asked.answers([("x", request("x"))]))
    assert answers["x"].content == "A"
    assert len(server.bodies) == 2
    assert asked.num_retries == 1


@pytest.mark.parametrize(
    "fault", [Reply(stall=True), Reply(completion("A"), drip=0.02)], ids=["stalls", "drips"]
)
def test_an_answer_that_does_not_come_in_time_is_asked_for_again(fault: Reply) -> None:
    with serving(_first_then_well(fault)) as server:
        assert _ask(server, "x", timeout_seconds=0.5)["x"].content == "A"
        assert len(server.bodies) >= 2


def test_an_endpoint_that_is_not_there_is_an_error_after_so_many_tries() -> None:
    with serving(lambda *_: completion("A")) as server:
        gone = endpoint(server, max_retries=2)
    with pytest.raises(EndpointError, match=r"no connection \(ConnectError.*\(3 tries\)"):
        list(gone.answers([("x", request("x"))]))
    assert gone.num_retries == 2


def test_faults_that_stay_are_an_error_that_quotes_the_last_one() -> None:
    with (
        serving(lambda *_: Reply({"error": {"message": "overloaded"}}, status=529)) as server,
        pytest.raises(EndpointError, match=r"judge\): status 529: overloaded \(4 tries\)"),
    ):
        _ask(server, "x", max_retries=3)
    assert len(server.bodies) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
def test_other_refusals_fail_at_once(status: int) -> None:
    refusal = Reply({"error": {"message": "no"}}, status, headers={"Location": "http://127.0.0.2/"})
    with (
        serving(lambda *_: refusal) as server,
        pytest.raises(EndpointError, match=f"status {status}: no") as error,
    ):
        _ask(server, "x")
    assert len(server.bodies) == 1
    assert ("$OPENAI_API_KEY, which is not set" in str(error.value)) == (status in (401, 403))


def test_after_a_failure_those_under_way_are_answered_and_no_more_are_asked() -> None:
    """The good one is held back until the client has done with the bad one."""
    budget = Budget()

    def script(_: int, body: Body) -> Reply | Body:
        if body["messages"][0]["content"] == "bad":
            return Reply({}, status=400)
        while budget._held != worst_case(request("good")):
            time.sleep(0.01)
        time.sleep(0.1)
        return completion("A")

    questions = [(text, request(text)) for text in ("bad", "good", "never")]
    found: list[str] = []
    with serving(script) as server:
        answers = endpoint(server, budget, max_concurrency=2).answers(questions)
        with pytest.raises(EndpointError, match="status 400"):
            found.extend(name for name, _ in answers)
    assert found == ["good"]
    assert sorted(body["messages"][0]["content"] for body in server.bodies) == ["bad", "good"]


def test_the_endpoints_word_on_when_to_come_back_is_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = Reply({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.25"})
    with serving(_first_then_well(fault)) as server:
        _ask(server, "x", max_wait_seconds=5)
    (line,) = caplog.messages
    assert (
        line
        == f"judge: {server.url}/chat/completions (judge): status 429: slow down; again in 0.2 s"
    )


def test_one_that_asks_to_wait_longer_than_allowed_ends_it() -> None:
    with (
        serving(lambda *_: Reply({}, 429, headers={"Retry-After": "3600"})) as server,
        pytest.raises(EndpointError, match=r"asks to wait 3600 s, and max_wait_seconds is 0\.05"),
    ):
        _ask(server, "x")
    assert len(server.bodies) == 1


def test_a_caller_that_leaves_is_not_waited_for() -> None:
    with serving(lambda number, _: completion("A") if number == 0 else Reply({}, 429)) as server:
        config = {"first_wait_seconds": 1000, "max_wait_seconds": 1000, "max_concurrency": 2}
        answers = endpoint(server, **config).answers((str(n), request(str(n))) for n in range(2))
        next(answers)
        answers.close()
        names = [thread.name for thread in threading.enumerate()]
        for thread in threading.enumerate():
            if thread.name.startswith("judge_"):
                thread.join(20)
                assert not thread.is_alive(), names


def test_usage_that_is_not_told_is_taken_to_be_the_most_it_can_be() -> None:
    body = completion("A")
    del body["usage"]
    budget = Budget()
    with serving(lambda *_: body) as server:
        ((_, answer),) = endpoint(server, budget).answers([("x", request("abc", max_tokens=5))])
    # 3 bytes of text, 64 a request, 32 a message; 5 tokens of answer.
    assert answer.usage == budget.spent == Usage(3 + 64 + 32, 5)
