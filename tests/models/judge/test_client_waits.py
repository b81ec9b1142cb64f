"""How long the client waits before it tries again, and for whom."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.models.judge.conftest import endpoint, request
from tests.models.judge.endpoint import Reply, ScriptedServer, completion, serving
from trimtab.models.judge.client import EndpointError


def _ask(server: ScriptedServer, **config: Any) -> None:
    list(endpoint(server, **config).answers([("x", request("x"))]))


def test_the_endpoints_word_on_when_to_come_back_is_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = Reply({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.25"})
    with serving(lambda number, _: fault if number == 0 else completion("A")) as server:
        _ask(server, max_wait_seconds=5)
    (line,) = caplog.messages
    asked = f"{server.url}/chat/completions (judge)"
    assert line == f"{asked}: status 429: slow down; next attempt in 0.2 s"


@pytest.mark.parametrize("at", ["0", "0.001", "nan", "Sun, 01 Mar 2020 11:00:00 GMT"])
def test_one_that_asks_for_no_wait_is_waited_for_ever_longer(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The waits are .2 and .4 s, half of each by chance."""
    fault = Reply({}, 429, headers={"Retry-After": at})
    with serving(lambda number, _: fault if number < 2 else completion("A")) as server:
        _ask(server, first_wait_seconds=0.2, max_wait_seconds=5)
    waits = [float(line.split()[-2]) for line in caplog.messages]
    assert 0.1 <= waits[0] <= 0.2 <= waits[1] <= 0.4


def test_one_that_asks_to_wait_longer_than_allowed_ends_it() -> None:
    with (
        serving(lambda *_: Reply({}, 429, headers={"Retry-After": "3600"})) as server,
        pytest.raises(EndpointError, match=r"asks to wait 3600 s, and max_wait_seconds is 0\.05"),
    ):
        _ask(server)
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
