"""What the tests of judges share: no key of this machine, quick further tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.judge.endpoint import ScriptedServer
from trimtab.models.config.judge import EndpointConfig
from trimtab.models.judge.budget import Budget, Ledger, Limits, Prices
from trimtab.models.judge.chat import ChatRequest, Message
from trimtab.models.judge.client import Endpoint


@pytest.fixture(autouse=True)
def _no_key_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def endpoint_config(server: ScriptedServer, **changes: Any) -> EndpointConfig:
    quick = {"first_wait_seconds": 0.01, "max_wait_seconds": 0.05, "timeout_seconds": 20}
    return EndpointConfig(**{"base_url": server.url, "model": "judge", **quick, **changes})


def endpoint(server: ScriptedServer, budget: Budget | None = None, **changes: Any) -> Endpoint:
    return Endpoint(endpoint_config(server, **changes), budget or Budget())


def limited(
    folder: Path,
    *,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    prices: Prices = (0.0, 0.0),
) -> Budget:
    """That of a stage whose work folder it is."""
    return Budget([Ledger(folder, Limits(max_tokens, max_cost))], prices)


def request(text: str, max_tokens: int = 1, **more: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), max_tokens, **more)
