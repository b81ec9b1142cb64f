"""GPU slots while Prefect's server, or its database, is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from trimtab.tasks import resources as module
from trimtab.tasks.resources import SlotsError, gpu_slots

REQUEST = httpx.Request("POST", "http://127.0.0.1/api/v2/concurrency_limits/increment")


def _answer(status: int, text: str = "") -> httpx.HTTPStatusError:
    response = httpx.Response(status, request=REQUEST)
    return httpx.HTTPStatusError(text, request=REQUEST, response=response)


def _failing(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[int]:
    """Have slots fail for these reasons, one try after another; gives how many each try took."""
    left, taken = list(errors), []

    @contextmanager
    def concurrency(_: str, occupy: int, **others: Any) -> Iterator[None]:
        taken.append(occupy)
        if left:
            raise ConcurrencySlotAcquisitionError("no slots") from left.pop(0)
        yield

    monkeypatch.setattr(module, "concurrency", concurrency)
    return taken


def test_an_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = _failing(monkeypatch, _answer(500), httpx.ConnectError("refused"), _answer(503))
    with gpu_slots(2):
        assert taken == [2, 2, 2, 2]


def test_what_will_not_pass_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, _answer(422, module.TOO_MANY), _answer(401))
    with pytest.raises(SlotsError, match="take 3 GPU slots"), gpu_slots(3):
        pass
    with pytest.raises(ConcurrencySlotAcquisitionError), gpu_slots(1):
        pass


def test_a_command_s_own_server_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no such limit, of which Prefect would warn in every stage that takes a GPU."""
    taken = _failing(monkeypatch)
    monkeypatch.setenv(module.EMBEDDED_VARIABLE, "1")
    with gpu_slots(2):
        assert taken == []
