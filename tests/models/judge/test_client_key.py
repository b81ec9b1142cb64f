"""The key goes into one header of one endpoint and nowhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.models.judge.conftest import endpoint, endpoint_config, request
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.models.judge.batch import AnswerCache, CachedChatModel
from trimtab.models.judge.budget import Budget
from trimtab.models.judge.client import EndpointError

KEY = "sk-Zx81hu2bqTestKeyThatNobodyElseHas"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def test_the_key_is_sent_from_the_variable_that_is_named() -> None:
    with serving(lambda *_: completion("A")) as server:
        list(endpoint(server, key_variable="MY_KEY").answers([("x", request("x"))]))
        list(endpoint(server).answers([("x", request("x"))]))
    sent, without = server.headers
    assert sent["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in without


def test_the_key_is_in_no_log_error_answer_file_or_repr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint that sends back every header it gets, in faults, refusals and answers."""
    caplog.set_level(logging.DEBUG)

    def script(number: int, body: Body) -> Reply | Body:
        echo = f"you said {KEY}"
        replies = [Reply({"error": {"message": echo}}, status=500), Reply(text=echo)]
        if number < len(replies):
            return replies[number]
        if body["messages"][0]["content"] == "bad":
            return Reply({"error": {"message": echo}}, 401, headers={"X-Echo": KEY})
        return completion(echo)

    with serving(script) as server:
        config = endpoint_config(server, key_variable="MY_KEY")
        model = endpoint(server, key_variable="MY_KEY")
        chat = CachedChatModel(model, AnswerCache(tmp_path), Budget())
        (answer,) = chat.ask([request("good")])
        with pytest.raises(EndpointError) as error:
            chat.ask([request("bad")])
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert answer.content == "you said [key]"
    assert "you said [key]; the key comes from $MY_KEY, which is set" in str(error.value)
    assert len(caplog.messages) > 3  # the two faults, and what httpx says of the rest
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    chain = [error.value, error.value.__cause__, error.value.__context__]
    said = [
        *(*caplog.messages, *files, *map(repr, chain), *map(str, chain)),
        *(model.identity, repr(chat), repr(vars(model)["_client"]), config.model_dump_json()),
    ]
    assert not [text for text in said if KEY in text]


def test_a_key_with_a_slash_is_cut_out_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PHP's JSON has a backslash before a slash."""
    monkeypatch.setenv("MY_KEY", key := "sk-Zx81/hu2bqTestKey/ThatNobodyElseHas")
    written = key.replace("/", "\\/")

    def script(number: int, _: Body) -> Reply:
        if number == 0:
            return Reply(text=f'{{"message": "wrong: {written}"}}', status=500)
        return Reply(text=json.dumps(completion("wrong: ?")).replace("?", written))

    with serving(script) as server:
        ((_, answer),) = endpoint(server, key_variable="MY_KEY").answers([("x", request("x"))])
    assert answer.content == "wrong: [key]"
    assert "wrong: [key]" in caplog.messages[0]
    assert not [line for line in caplog.messages if "hu2bqTestKey" in line]


def _as_numbers(text: str) -> str:
    return "".join(f"\\u{ord(each):04x}" for each in text)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda key: key.replace("+", "\\u002B"), id="as .NET writes JSON"),
        pytest.param(_as_numbers, id="by numbers alone"),
        pytest.param(lambda key: quote(key, safe=""), id="as in an address"),
        pytest.param(lambda key: quote(key, safe="").lower().replace("zx", "Zx"), id="mixed"),
    ],
)
def test_a_key_is_cut_out_of_answers_and_refusals_however_it_is_written(
    write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", key := "sk-Zx81+hu2bqtestkey/thatnobodyelsehas==")
    echo = write(key)
    answer = json.dumps(completion("it was ?")).replace("?", echo)
    told = [Reply(text=f'{{"title": "{echo}"}}', status=500), Reply(text=answer)]
    with serving(lambda number, _: told[number]) as server:
        ((_, found),) = endpoint(server, key_variable="MY_KEY").answers([("x", request("x"))])
    assert found.content == "it was [key]"
    assert '{"title": "[key]"}' in caplog.messages[0]


@pytest.mark.parametrize("bad", [f"{KEY}\nX-Other: 1", f"{KEY} {KEY}", f"{KEY}é", f"{KEY}\x00"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment itself holds no NUL.
    monkeypatch.setattr("os.environ", {"MY_KEY": bad})
    with (
        serving(lambda *_: completion("A")) as server,
        pytest.raises(EndpointError, match=r"\$MY_KEY holds characters that no key has") as error,
    ):
        endpoint(server, key_variable="MY_KEY")
    assert KEY not in str(error.value)


def test_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    with serving(lambda *_: completion("A")) as server:
        list(endpoint(server, key_variable="MY_KEY").answers([("x", request("x"))]))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_word_given_in_place_of_a_key_is_not_cut_out_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "EMPTY")
    with serving(lambda *_: completion("EMPTY")) as server:
        ((_, answer),) = endpoint(server, key_variable="MY_KEY").answers([("x", request("x"))])
    assert answer.content == "EMPTY"
