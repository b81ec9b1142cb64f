"""Endpoints for tests of stages that ask one: prices, kill -9, SIGTERM."""

from __future__ import annotations

import json
import math
from typing import Any

import psutil

from tests.models.judge.endpoint import Body, Reply, Script, ScriptedServer, completion
from trimtab.infra.processes.launch import PRELOAD, running_fork_server
from trimtab.models.config.judge import EndpointConfig
from trimtab.models.training import signals


def priced(server: ScriptedServer, **endpoint: Any) -> EndpointConfig:
    """The endpoint as a stage's configuration has it: retries are quick, tokens cost something."""
    quick = {"first_wait_seconds": 0.01, "max_wait_seconds": 0.1}
    prices = {"input_price": 1.0, "output_price": 10.0}
    return EndpointConfig(**{"base_url": server.url, "model": "m", **quick, **prices, **endpoint})


def requests_of(server: ScriptedServer) -> list[str]:
    """All requests, in an order of their own."""
    return sorted(json.dumps(body) for body in server.bodies)


def prefer_longer(_: int, body: Body) -> Body:
    """The longer one with .8, and .1 more of all where it stands first."""
    lines = body["messages"][-1]["content"].split("\n")
    first, second = (lines[lines.index(f"[response {place}]") + 1] for place in "AB")
    share = 0.9 if len(first) > len(second) else 0.3
    return completion("A", A=math.log(share), B=math.log(1 - share))


def killing(script: Script, at: int) -> Script:
    """kill -9 of the trainer under the warm server while request `at` is under way."""

    def killed(number: int, body: Body) -> Reply | Body:
        if number == at:
            (trainer,) = psutil.Process(running_fork_server(PRELOAD).pid).children()
            trainer.kill()
            return Reply(stall=True)
        return script(number, body)

    return killed


def stopping(script: Script, at: int) -> Script:
    """The stage, run in this process, is told to stop at request `at`."""

    def stopped(number: int, body: Body) -> Reply | Body:
        signals._flag.raised = signals._flag.raised or number == at
        return script(number, body)

    return stopped
