"""Requests as each trainer's client sends them, and the answers as it reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.reward_server.malformed import malformed_bodies
from trimtab.models.reward_server.formats import RequestError, Scored, read_request

SCORED = [Scored(0.5, 0.1, 3), Scored(-2.0, 0.2, 4), Scored(1.5, 0.3, 5)]
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
MESSAGES = (("user", "Hi"), ("assistant", "Ho"))


def ask(body: Any) -> tuple[list[Any], Any]:
    """Dialogues, and the answer where they score as SCORED does."""
    request = read_request(json.dumps(body).encode(), "rm")
    return request.dialogues, request.reply(SCORED[: len(request.dialogues)])


def test_texts_messages_and_exchanges() -> None:
    pair = {"prompt": "Hi", "response": ""}
    dialogues, answer = ask({"inputs": ["a", [USER, ANSWER], pair]})
    assert dialogues == ["a", MESSAGES, ("Hi", "")]
    assert answer == {"scores": [0.5, -2.0, 1.5], "spreads": [0.1, 0.2, 0.3]}
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    empty = {"role": "assistant", "content": ""}
    given = {"prompt": [parts], "response": "Ho"}
    assert ask({"inputs": [given, [USER, empty]]})[0] == [
        MESSAGES,
        (MESSAGES[0], ("assistant", "")),
    ]


def test_openrlhf() -> None:
    """openrlhf/utils/agent.py, _fetch_rewards_via_http: lists; `execute` reads rewards, scores and
    the lists of extra_logs."""
    body = {"query": ["Hi Ho", "xHi Ho", "Ho"], "prompts": ["Hi", "Hi", None], "labels": [None] * 3}
    dialogues, answer = ask(body)
    assert dialogues == [("Hi", " Ho"), "xHi Ho", "Ho"]
    assert answer["rewards"] == answer["scores"] == [0.5, -2.0, 1.5]
    assert answer["extra_logs"] == {"reward_spread": [0.1, 0.2, 0.3]}
    # The second of two servers, where there is one text.
    assert ask({"query": [], "prompts": [], "labels": []}) == (
        [],
        {"rewards": [], "scores": [], "extra_logs": {"reward_spread": []}},
    )


@pytest.mark.parametrize(("prompt", "read"), [("Hi", ("Hi", "Ho")), ([USER], MESSAGES)])
def test_slime_and_miles(prompt: Any, read: Any) -> None:
    """rollout/rm_hub/__init__.py, remote_rm: the answer itself is the reward."""
    assert ask({"prompt": prompt, "response": "Ho", "label": "4"}) == ([read], 0.5)


@pytest.mark.parametrize("activation", ["use_activation", "activation"])
def test_verl_and_vllm_s_classes(activation: str) -> None:
    """verl's reward_loop.py, compute_score_disrm, which reads data[-1].probs[-1]; before 0.11.2 of
    vLLM `activation`. vllm/entrypoints/pooling/classify/protocol.py has the answer's fields."""
    dialogues, answer = ask({"model": "folder", "input": "Hi Ho", activation: False})
    assert dialogues == ["Hi Ho"] and answer["data"][-1]["probs"][-1] == 0.5
    dialogues, answer = ask({"input": ["a", "b"]})
    assert dialogues == ["a", "b"]
    assert answer.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert answer["data"] == [
        {"index": 0, "label": "reward", "probs": [0.5], "num_classes": 1},
        {"index": 1, "label": "reward", "probs": [-2.0], "num_classes": 1},
    ]
    assert (answer["model"], answer["object"], answer["usage"]["prompt_tokens"]) == (
        "rm",
        "list",
        7,
    )
    assert ask({"messages": [USER, ANSWER]})[0] == [MESSAGES]


@pytest.mark.parametrize(
    ("first", "second"),
    [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")],
)
def test_vllm_s_scores(first: str, second: str) -> None:
    """vllm/entrypoints/pooling/scoring/protocol.py: one to one, one to several, pairs."""
    assert ask({first: "Hi", second: "Ho"})[0] == [("Hi", "Ho")]
    assert ask({first: "Hi", second: ["Ho", "He"]})[0] == [("Hi", "Ho"), ("Hi", "He")]
    dialogues, answer = ask({first: ["Hi", "Ha"], second: ["Ho", "He"], "model": "mine"})
    assert dialogues == [("Hi", "Ho"), ("Ha", "He")] and answer["model"] == "mine"
    assert answer["data"] == [
        {"index": 0, "object": "score", "score": 0.5},
        {"index": 1, "object": "score", "score": -2.0},
    ]


def test_what_is_no_request_is_one_sentence() -> None:
    bodies = list(malformed_bodies())
    assert len(bodies) >= 200 and len(set(bodies)) == len(bodies)
    for body in bodies:
        with pytest.raises(RequestError) as error:
            read_request(body, "rm")
        said = str(error.value)
        assert error.value.status in (400, 422) and "\n" not in said and len(said) < 600, body[:80]
        assert "found" in said or "no JSON" in said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is no JSON: Expecting property name"),
        (b'{"inputs": [NaN]}', "the body is no JSON: found NaN; allowed: finite numbers"),
        (b"[]", "the body: found list []; allowed: an object"),
        (
            b'{"inputs": ["a", 3]}',
            "inputs[1]: found int 3; allowed: a text, a list of messages, or",
        ),
        (
            b'{"inputs": [{"prompt": "a", "response": 1}]}',
            "inputs[0].response: found int 1; allowed",
        ),
        (b'{"query": "a"}', "query: found str 'a'; allowed: a list of texts"),
        (b'{"input": [1, 2]}', "input[0]: found int 1; allowed: a text of Unicode characters"),
        (
            b'{"messages": [{"role": "user", "content": "a"}]}',
            "messages[0].role: found str 'user'; allowed: assistant, whose answer is scored",
        ),
        (
            b'{"inputs": [[{"role": "wizard", "content": "a"}]]}',
            "inputs[0][0].role: found 'wizard'; allowed: system | user | assistant | tool",
        ),
        (
            b'{"queries": ["a", "b"], "documents": ["c"]}',
            "queries: found 2 for 1 documents; allowed: one, or one for each",
        ),
        (
            b'{"input": "a", "use_activation": true}',
            "use_activation: found bool True; allowed: false: scores are logits, and no sigmoid",
        ),
    ],
)
def test_a_mistake_says_where_it_is(body: bytes, said: str) -> None:
    with pytest.raises(RequestError) as error:
        read_request(body, "rm")
    assert str(error.value).startswith(said)
