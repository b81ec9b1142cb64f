"""The client against a real server: what it sends, and what it does when things go wrong."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.models.judge.conftest import endpoint, limited, request
from tests.models.judge.endpoint import Body, Reply, Script, ScriptedServer, completion, serving
from trimtab.models.judge.budget import worst_case
from trimtab.models.judge.chat import ChatAnswer, Message, Token, Usage
from trimtab.models.judge.client import EndpointError


def _ask(server: ScriptedServer, *texts: str, **config: Any) -> dict[str, ChatAnswer]:
    return dict(endpoint(server, **config).answers((text, request(text)) for text in texts))


def _first_then_well(first: Reply) -> Script:
    return lambda number, _: first if number == 0 else completion("A")


def _with_token(token: Any) -> Body:
    """A completion that says of the likeliest token what is no text."""
    body = completion("A", A=-0.5, B=-2.0)
    body["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1]["token"] = token
    return body


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
        Reply(text=json.dumps(completion("A", A=-1.0)).replace("-1.0", f"-1{400 * '0'}")),
        Reply(completion("A", prompt_tokens=10**400)),
        Reply(_with_token(None)),
        Reply(_with_token(["A"])),
        Reply({}, 429, headers={"Retry-After": "Mon, 01 Jan 99999999999 00:00:00 GMT"}),
        Reply(text="not gzipped", headers={"Content-Encoding": "gzip"}),
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


@pytest.mark.slow
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
    with pytest.raises(EndpointError, match=r"no connection \(ConnectError.*\(3 attempts\)"):
        list(gone.answers([("x", request("x"))]))
    assert gone.num_retries == 2


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_no_machine_can_have_is_an_error_at_once(host: str) -> None:
    with serving(lambda *_: completion("A")) as server:
        asked = endpoint(server, base_url=f"http://{host}/v1")
        with pytest.raises(EndpointError, match=r"\(judge\): no address"):
            list(asked.answers([("x", request("x"))]))


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """As of an answer cut off in an emoji: what is kept of it can be written to any file."""
    text = json.dumps(completion("A?")).replace("?", "\\ud83d")
    with serving(lambda *_: Reply(text=text)) as server:
        answer = _ask(server, "x")["x"]
    assert answer.content == "A\ufffd"
    assert answer.content.encode() == b"A\xef\xbf\xbd"


def test_faults_that_stay_are_an_error_that_quotes_the_last_one() -> None:
    with (
        serving(lambda *_: Reply({"error": {"message": "overloaded"}}, status=529)) as server,
        pytest.raises(EndpointError, match=r"judge\): status 529: overloaded \(4 attempts\)"),
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


def test_after_a_failure_those_under_way_are_answered_and_no_more_are_asked(
    tmp_path: Path,
) -> None:
    """The good one is held back until the client has done with the bad one."""
    budget = limited(tmp_path)

    def script(_: int, body: Body) -> Reply | Body:
        if body["messages"][0]["content"] == "bad":
            return Reply({}, status=400)
        while budget.spent != worst_case(request("good")):
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


def test_usage_that_is_not_told_is_taken_to_be_the_most_it_can_be(tmp_path: Path) -> None:
    body = completion("A")
    del body["usage"]
    budget = limited(tmp_path)
    with serving(lambda *_: body) as server:
        ((_, answer),) = endpoint(server, budget).answers([("x", request("abc", max_tokens=5))])
    # 3 bytes of text, 64 a request, 32 a message; 5 tokens of answer.
    assert answer.usage == budget.spent == Usage(3 + 64 + 32, 5)


@pytest.mark.parametrize(
    ("status", "billed"), [(502, True), (504, True), (408, True), (500, False), (429, False)]
)
def test_what_a_gateway_gave_up_on_may_be_billed(status: int, billed: bool, tmp_path: Path) -> None:
    budget = limited(tmp_path)
    with serving(_first_then_well(Reply({}, status))) as server:
        list(endpoint(server, budget).answers([("x", request("abc"))]))
    most = Usage(3 + 64 + 32, 1)
    assert budget.spent == (most if billed else Usage()) + Usage(10, 1)
