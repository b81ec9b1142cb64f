"""The server: what a client gets through HTTP is what the model says in the same process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.models.judge.conftest import request
from tests.models.judge.tiny import running, save_tiny, tiny_model, tiny_tokenizer
from trimtab.models.config.judge import EndpointConfig
from trimtab.models.judge.budget import Budget
from trimtab.models.judge.client import Endpoint, EndpointError
from trimtab.models.judge.local import LocalModel
from trimtab.models.judge.serve import create_app

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def local() -> LocalModel:
    torch.set_num_threads(1)
    return LocalModel(tiny_model(context=400), tiny_tokenizer(), "tiny")


@pytest.fixture
def url(local: LocalModel) -> Iterator[str]:
    with running(create_app(local, "tiny")) as url:
        assert url.startswith("http://127.0.0.1:")
        yield url


def _endpoint(url: str, **more: Any) -> Endpoint:
    config: dict[str, Any] = {"base_url": url, "model": "tiny", "max_retries": 0, **more}
    return Endpoint(EndpointConfig(**config), Budget())


@pytest.mark.slow
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


def _asking(role: Any = "user", content: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}], **fields}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "JSON decode error"),
        ("[]", "not a chat request: : Input should be a valid dictionary"),
        ({}, "messages: Field required"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        (_asking(content=["x"]), "messages.0.content: Input should be a valid string"),
        (_asking(role=None), "messages.0.role: Input should be a valid string"),
        (_asking(tools=[]), "tools: Extra inputs are not permitted"),
        (_asking(n=2, stream=True), "n: Input should be 1; stream: Input should be False"),
        (_asking(max_tokens=0), "max_tokens: Input should be greater than or equal to 1"),
        (_asking(temperature=3), "temperature: Input should be less than or equal to 2"),
        (_asking(top_logprobs=21), "top_logprobs: Input should be less than or equal to 20"),
        (
            f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1{400 * "0"}.5}}',
            "max_tokens: Input should be a finite number",
        ),
        ("[" * 100_000, "body"),
    ],
)
def test_bad_requests_are_explained(url: str, body: Any, message: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{url}/chat/completions", content=content, headers=headers)
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
    command = [
        sys.executable,
        "-m",
        "trimtab.models.judge.serve",
        "--model",
        str(folder),
        "--port",
        "0",
    ]
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
