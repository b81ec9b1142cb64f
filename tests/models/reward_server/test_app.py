"""The server over HTTP: scores, keys, limits, metrics, and clients as trainers write them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import torch

from tests.models.reward_server.malformed import malformed_bodies
from tests.models.reward_server.serving import LIMITS, SECRET, served
from tests.models.training.test_external_scorer import ASKED, save_scorer
from trimtab.models.reporting.export import export_scorer
from trimtab.models.reward_server import app
from trimtab.models.reward_server.ensemble import Ensemble
from trimtab.models.training.external_scorer import ExternalScorer

END = "<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_scorer(tmp_path_factory.mktemp("scorer") / "model")
    export_scorer(folder)
    return folder


@pytest.fixture(scope="module")
def ensemble(folder: Path) -> Ensemble:
    return Ensemble.load([str(folder)], 1.0)


@pytest.fixture(scope="module")
def address(ensemble: Ensemble) -> Iterator[str]:
    with served(ensemble) as (address, _):
        yield address


@pytest.fixture(scope="module")
def scores(folder: Path) -> dict[Any, float]:
    return ExternalScorer.load(str(folder)).score([*ASKED, "Whole."])


def post(address: str, path: str, body: Any, **more: Any) -> httpx.Response:
    return httpx.post(f"http://{address}{path}", json=body, timeout=60, **more)


def numbers(text: str) -> dict[str, float]:
    """The samples of Prometheus' text."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("trimtab_reward_"): float(value) for name, _, value in lines}


@pytest.mark.parametrize("path", app.PATHS)
def test_scores_are_those_of_the_scorer(path: str, address: str, scores: dict[Any, float]) -> None:
    inputs = [{"prompt": prompt, "response": answer} for prompt, answer in ASKED]
    answer = post(address, path, {"inputs": [*inputs, "Whole."]})
    assert answer.status_code == 200
    found = answer.json()
    assert found["scores"] == pytest.approx([scores[each] for each in (*ASKED, "Whole.")], abs=1e-5)
    assert found["spreads"] == [0.0] * 8


async def _openrlhf(
    session: aiohttp.ClientSession, address: str, prompt: str, answer: str
) -> float:
    """As `_fetch_rewards_via_http` and `execute` of openrlhf/utils/agent.py."""
    body = {"query": [f"{prompt}{answer}{END}"], "prompts": [prompt], "labels": ["4"]}
    async with session.post(f"http://{address}/get_reward", json=body) as response:
        response.raise_for_status()
        info = await response.json()
    score = info.get("scores")
    reward, logs = torch.tensor([info.get("rewards")]), info.get("extra_logs") or {}
    assert torch.tensor([score]).shape == reward.shape == (1, 1)
    assert all(torch.tensor([value]).shape == (1, 1) for value in logs.values())
    return float(reward)


async def _remote_rm(
    session: aiohttp.ClientSession, address: str, prompt: str, answer: str
) -> float:
    """As `remote_rm` of slime/rollout/rm_hub and miles/rollout/rm_hub."""
    payload = {"prompt": prompt, "response": answer, "label": None}
    async with session.post(f"http://{address}/remote_rm", json=payload) as resp:
        resp.raise_for_status()
        reward = await resp.json()
    assert isinstance(reward, float)
    return reward


async def _verl(session: aiohttp.ClientSession, address: str, prompt: str, answer: str) -> float:
    """As `compute_score_disrm` of verl/experimental/reward_loop/reward_loop.py."""
    payload = {"model": "folder", "input": f"{prompt}{answer}{END}", "use_activation": False}
    async with session.post(f"http://{address}/classify", json=payload) as resp:
        resp.raise_for_status()
        output = await resp.json()
    return float(output["data"][-1]["probs"][-1])


async def _vllm(session: aiohttp.ClientSession, address: str, prompt: str, answer: str) -> float:
    """As vLLM's examples/pooling/score/score_api_online.py."""
    body = {"model": "rm", "queries": prompt, "documents": [answer]}
    async with session.post(f"http://{address}/score", json=body) as response:
        output = await response.json()
    return float(output["data"][0]["score"])


@pytest.mark.parametrize("key", [None, SECRET])
@pytest.mark.parametrize("client", [_openrlhf, _remote_rm, _verl, _vllm])
def test_a_trainer_s_client_reads_the_score(
    client: Any, key: str | None, ensemble: Ensemble, scores: dict[Any, float]
) -> None:
    """The key is in the address, as none of them sends a header."""
    # Read as text where the prompt is no dialogue; others the template writes of their turns.
    asked = [each for each in ASKED if each[0] == "Name a fruit."]

    async def ask(address: str) -> list[float]:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(client(session, address, *each) for each in asked))

    with served(ensemble, key) as (address, _):
        found = asyncio.run(ask(f"x:{key}@{address}" if key else address))
    assert found == pytest.approx([scores[each] for each in asked], abs=1e-5)


def test_the_functions_of_the_page_give_the_scores(address: str, scores: dict[Any, float]) -> None:
    """docs/how-to/serve-a-reward.md: verl's custom reward function, and TRL's."""
    page = (Path(__file__).parents[3] / "docs/how-to/serve-a-reward.md").read_text("utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    functions: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:8100", address), functions)
    expected = pytest.approx([scores[each] for each in ASKED], abs=1e-5)
    prompts, answers = zip(*ASKED, strict=True)
    assert functions["reward"](prompts=prompts, completions=answers, trainer_state=None) == expected
    said = [[{"role": "assistant", "content": answer}] for answer in answers]
    assert functions["reward"](prompts=prompts, completions=said) == expected

    async def as_verl() -> list[float]:
        """As `run_single` of verl/experimental/reward_loop/reward_manager/naive.py."""
        asked = [
            {
                "data_source": "a",
                "ground_truth": "",
                "extra_info": {"prompt": prompt, "num_turns": 2},
            }
            | {"solution_str": answer}
            for prompt, answer in ASKED
        ]
        return [await functions["compute_score"](**each) for each in asked]

    assert asyncio.run(as_verl()) == expected


def test_without_the_key_nothing_is_read(ensemble: Ensemble) -> None:
    with served(ensemble, SECRET) as (address, server):
        for headers in (
            {},
            {"Authorization": "Bearer"},
            {"Authorization": f"Bearer {SECRET[:-1]}"},
            {"Authorization": SECRET},
            {"Authorization": "Basic !!!"},
            {"Authorization": "Basic \xff"},
        ):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = post(address, "/score", {"inputs": ["a"]}, headers=raw)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer" and SECRET not in answer.text
            assert httpx.get(f"http://{address}/metrics", headers=raw).status_code == 401
        # Of a stranger's body nothing is waited for.
        with socket.create_connection(address.split(":"), timeout=30) as stranger:
            stranger.sendall(b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
            assert stranger.recv(100).startswith(b"HTTP/1.1 401")
        bearer = {"Authorization": f"Bearer {SECRET}", "Host": "rewards.example"}
        assert post(address, "/score", {"inputs": ["a"]}, headers=bearer).status_code == 200
        assert post(address, "/score", {"inputs": ["a"]}, auth=("any", SECRET)).status_code == 200
        assert httpx.get(f"http://{address}/ready").status_code == 200
        text = httpx.get(f"http://{address}/metrics", headers=bearer).text
        assert numbers(text)['refused_total{reason="key"}'] == 7
        assert server.queue.num_texts == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1"])
def test_pages_that_give_loopback_another_name_are_refused(host: str, address: str) -> None:
    answer = post(address, "/score", {"inputs": ["a"]}, headers={"Host": host})
    assert answer.status_code == 421
    assert httpx.get(f"http://{address}/metrics", headers={"Host": host}).status_code == 421
    for known in ("localhost", "localhost:1234", "[::1]:80"):
        assert post(address, "/", {"inputs": ["a"]}, headers={"Host": known}).status_code == 200


def test_two_hundred_malformed_bodies_are_an_error_each(
    address: str, scores: dict[Any, float]
) -> None:
    with httpx.Client(base_url=f"http://{address}", timeout=60) as client:
        for number, body in enumerate(malformed_bodies()):
            path = app.PATHS[number % len(app.PATHS)]
            answer = client.post(path, content=body)
            assert answer.status_code in (400, 422), (body[:80], answer.text)
            said = answer.json()
            assert said.keys() == {"error"} and len(said["error"].splitlines()) == 1
        assert number >= 200
        assert client.get("/health").json() == {"status": "ok"}
        found = client.post("/", json={"inputs": ["Whole."]}).json()["scores"]
        assert found == pytest.approx([scores["Whole."]], abs=1e-5)
        for method, path in (("GET", "/score"), ("PUT", "/"), ("POST", "/other"), ("GET", "/docs")):
            answer = client.request(method, path)
            assert answer.status_code in (404, 405)
            assert answer.json()["error"].startswith(f"found {method} {path}; allowed: POST to /,")


def test_a_request_has_a_size(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(ensemble, max_request_texts=3, max_body=1000) as (address, server):
        answer = post(address, "/score", {"inputs": ["a"] * 4})
        assert answer.status_code == 413
        assert answer.json() == {"error": "the body: found 4 texts; allowed: 3 or fewer"}
        for size in (1000, 20_000_000):  # also one that is not sent yet when it is too large
            answer = post(address, "/score", {"inputs": ["a" * size]})
            assert answer.status_code == 413
            said = f"the body: found {size + 15} bytes; allowed: 1000 or fewer"
            assert answer.json() == {"error": said}
        monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
        with socket.create_connection(address.split(":"), timeout=30) as slow:
            slow.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        monkeypatch.undo()
        with socket.create_connection(address.split(":"), timeout=30) as gone:
            gone.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        _wait_for(server, 'requests_total{format="none",status="499"}')
        assert server.queue.num_texts == 0


def _wait_for(server: app.RewardServer, sample: str) -> None:
    deadline = time.monotonic() + 30
    while sample not in numbers(server.metrics.text().decode()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Slow(Ensemble):
    """Scores nothing until it may."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble.members, ensemble.std_coef, ensemble.means)
        self.has_begun, self.may_compute = threading.Event(), threading.Event()

    def score(self, texts: Any) -> Any:
        """As an ensemble's."""
        self.has_begun.set()
        assert self.may_compute.wait(60)
        return super().score(texts)


def test_a_full_queue_says_to_come_again(ensemble: Ensemble) -> None:
    """503, which OpenRLHF, slime and verl send again: verl takes any 4xx for final."""
    slow = Slow(ensemble)

    async def ask(address: str) -> tuple[list[int], httpx.Response]:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:

            def send(text: str) -> asyncio.Future[httpx.Response]:
                return asyncio.ensure_future(client.post("/", json={"inputs": [text]}))

            waiting = [send("a")]
            assert await asyncio.to_thread(slow.has_begun.wait, 60)
            waiting += [send("b"), send("c")]
            while (ready := await client.get("/ready")).status_code == 200:
                pass
            assert ready.json() == {"status": "full"}
            refused = await send("d")
            assert (await client.get("/health")).status_code == 200
            slow.may_compute.set()
            return [each.status_code for each in await asyncio.gather(*waiting)], refused

    limits = replace(LIMITS, texts=2, batch_tokens=1)
    with served(slow, limits=limits, max_request_texts=2) as (address, server):
        statuses, refused = asyncio.run(ask(address))
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json() == {"error": "the queue is full: 2 texts wait; try again"}
        assert statuses == [200] * 3
        assert httpx.get(f"http://{address}/ready").status_code == 200
        assert server.queue.num_texts == server.queue.num_tokens == 0
        assert numbers(server.metrics.text().decode())['refused_total{reason="full"}'] == 1


def test_who_goes_is_not_scored(ensemble: Ensemble) -> None:
    slow = Slow(ensemble)
    with served(slow, limits=replace(LIMITS, batch_tokens=1)) as (address, server):
        body = json.dumps({"inputs": ["a", "b", "c"]}).encode()
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(address.split(":"), timeout=30) as client:
            client.sendall(head.encode() + body)
            while server.queue.num_texts != 2:  # one is with the model
                time.sleep(0.01)
        _wait_for(server, 'requests_total{format="inputs",status="499"}')
        slow.may_compute.set()
        assert post(address, "/", {"inputs": ["d"]}).status_code == 200
        assert numbers(server.metrics.text().decode())["batch_texts_sum"] == 2.0  # a and d


def test_a_score_that_is_no_number_is_an_error(folder: Path, tmp_path: Path) -> None:
    ensemble = Ensemble.load([str(folder)], 1.0)
    with torch.no_grad():
        ensemble.members[0].scorer.model.score.weight.fill_(float("nan"))
    with served(ensemble) as (address, _):
        answer = post(address, "/", {"inputs": ["a"]})
        assert (answer.status_code, answer.json()) == (
            500,
            {"error": "text 0: the model's score is nan"},
        )


def test_a_model_that_fails_is_not_healthy(
    ensemble: Ensemble, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Ensemble):
        is_broken = True

        def score(self, texts: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("out of memory")
            return super().score(texts)

    broken = Broken(ensemble.members, 1.0, ensemble.means)
    with served(broken) as (address, _):
        answer = post(address, "/", {"inputs": ["secret words"]})
        assert (answer.status_code, answer.json()["error"]) == (
            500,
            "the model failed: RuntimeError",
        )
        for path in ("/health", "/ready"):
            assert httpx.get(f"http://{address}{path}").status_code == 503
        broken.is_broken = False
        assert post(address, "/", {"inputs": ["a"]}).status_code == 200
        assert httpx.get(f"http://{address}/health").json() == {"status": "ok"}
    assert capsys.readouterr().err == "trimtab: a batch failed: RuntimeError: out of memory\n"


def test_prometheus_reads_what_was_done(ensemble: Ensemble) -> None:
    with served(ensemble) as (address, _):
        for body in ({"inputs": ["ab", "c"]}, {"prompt": "a", "response": "b"}, {"inputs": 3}):
            post(address, "/", body)
        answer = httpx.get(f"http://{address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = numbers(answer.text)
    assert found['requests_total{format="inputs",status="200"}'] == 1
    assert found['requests_total{format="remote_rm",status="200"}'] == 1
    assert found['requests_total{format="none",status="422"}'] == 1
    assert found['refused_total{reason="body"}'] == 1
    assert found["latency_seconds_count"] == 2
    # Bytes and an end token: 3 and 2, and 3.
    assert (found["batch_texts_sum"], found["batch_tokens_sum"]) == (3, 8)
    assert (found["queue_texts"], found["queue_tokens"], found["cut_texts"]) == (0, 0, 0)
