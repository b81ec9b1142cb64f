"""The server: what a client gets through HTTP is what the model says in the same process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from models.config.judge import EndpointConfig
from models.judge.budget import Budget
from models.judge.client import Endpoint, EndpointError
from models.judge.local import LocalModel
from models.judge.serve import JudgeServer
from tests.models.judge.conftest import request
from tests.models.judge.tiny import save_tiny, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def local() -> LocalModel:
    torch.set_num_threads(1)
    return LocalModel(tiny_model(context=400), tiny_tokenizer(), "tiny")


@pytest.fixture
def url(local: LocalModel) -> Iterator[str]:
    with JudgeServer(local, "tiny") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert server.server_address[0] == "127.0.0.1"
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def _endpoint(url: str, **more: Any) -> Endpoint:
    config: dict[str, Any] = {"base_url": url, "model": "tiny", "max_retries": 0, **more}
    return Endpoint(EndpointConfig(**config), Budget())


def test_through_http_as_without(local: LocalModel, url: str) -> None:
    requests = {
        f"{number} {kind}": request("x" * number, **{"max_tokens": 1, **kind})
        for number in range(1, 30)
        for kind in (
            {"top_logprobs": 20},
            {"max_tokens": 6, "temperature": 1.3, "seed": number, "top_logprobs": 2},
            {"max_tokens": 6},
        )
    }
    here = dict(local.answers(requests.items()))
    there = dict(_endpoint(url).answers(requests.items()))
    assert here.keys() == there.keys()
    for name, answer in here.items():
        other = there[name]
        assert (other.content, other.usage, other.finish_reason) == (
            *(answer.content, answer.usage, answer.finish_reason),
        )
        assert [t.text for t in other.tokens] == [t.text for t in answer.tokens]
        for ours, theirs in zip(answer.tokens, other.tokens, strict=True):
            assert [v for _, v in ours.top] == pytest.approx([v for _, v in theirs.top], abs=1e-4)


def test_one_that_is_too_long_is_refused_and_the_others_are_not(url: str) -> None:
    found: list[str] = []
    questions = [(str(n), request("x" * (500 if n == 3 else n))) for n in range(8)]
    with pytest.raises(EndpointError, match="status 400: the request has .* more than the model"):
        found.extend(name for name, _ in _endpoint(url, max_concurrency=8).answers(questions))
    assert sorted(found) == ["0", "1", "2", "4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not a chat request (JSONDecodeError"),
        ("[]", "not a chat request"),
        ({}, "not a chat request (KeyError: 'messages')"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "role and content must be text"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": []}, "fields ['tools']"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "stream must be false and n 1"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "one token"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": 3}, "from 0 to 2"),
        (
            f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1{400 * "0"}.5}}',
            "not a chat request (OverflowError",
        ),
    ],
)
def test_bad_requests_are_explained(url: str, body: Any, message: str) -> None:
    text = {"content": body} if isinstance(body, str) else {"json": body}
    response = httpx.post(f"{url}/chat/completions", **text)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_other_addresses_and_endless_bodies_are_refused(url: str) -> None:
    assert httpx.post(f"{url}/completions", json={}).status_code == 404
    assert httpx.get(f"{url}/other").status_code == 404
    assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "tiny"
    endless = httpx.post(f"{url}/chat/completions", content=iter([b"x"]))
    assert endless.status_code == 413


@pytest.mark.slow
def test_the_command_serves_a_folder_until_it_is_interrupted(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model")
    command = [sys.executable, "-m", "models.judge.serve", "--model", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = line.split()[-1]
        assert line == f"serving {folder} at {url}\n" and url.startswith("http://127.0.0.1:")
        asked = request("Which?", max_tokens=5)
        ((_, answer),) = _endpoint(url).answers([("x", asked)])
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    ((_, expected),) = LocalModel.load(str(folder)).answers([("x", asked)])
    assert answer == expected
