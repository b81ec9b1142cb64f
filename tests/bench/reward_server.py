"""`trimtab serve-reward` beside a server that passes one request at a time, as trainers ask them.

    python -m tests.bench.reward_server

Clients send a text each, in OpenRLHF's form, and the next when they have the answer; as many ask at
once as are named. Eight responses in a row have a prompt in common. The other server is what one
would write: FastAPI, transformers' model, a forward pass for each request. Both score the same
model, the small Llama of the other benchmarks, in processes of their own, and are asked in turns.
Prints a table: requests per second, and of their latencies the median and the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
from fastapi import FastAPI, Request

from tests.bench.material import HIDDEN, LAYERS, MAX_TOKENS, prose_of, small_llama
from tests.ports import free_ports

ARMS = ("Trimtab", "one request, one pass")
RESPONSES = 8  # to a prompt
PROMPT_WORDS, RESPONSE_WORDS = 40, 40  # on average
TOLERANCE = 1e-4


class Measured(NamedTuple):
    """Requests per second, seconds of each, and its score."""

    rate: float
    seconds: list[float]
    scores: list[float]


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reward_server")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--naive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.naive is not None:
        serve_naively(options.naive, options.port)
        return
    texts = list(_texts(options.requests))
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_scorer(Path(scratch) / "scorer", texts)
        with ExitStack() as servers:
            port = free_ports(len(ARMS))
            urls = [
                servers.enter_context(_server(arm, folder, port + number))
                for number, arm in enumerate(ARMS)
            ]
            asyncio.run(_until_they_answer(urls, texts[:RESPONSES]))
            for clients in options.clients:
                _print(clients, [_turn(urls, texts, clients) for _ in range(options.runs)])


def _texts(count: int) -> Iterator[dict[str, Any]]:
    prose = prose_of(random.Random(0))
    for number in range(count):
        if number % RESPONSES == 0:
            prompt = f"\n\nHuman: {' '.join(prose(PROMPT_WORDS))}\n\nAssistant:"
        response = f" {' '.join(prose(RESPONSE_WORDS))}"
        yield {"query": [prompt + response], "prompts": [prompt], "labels": [None]}


def make_scorer(folder: Path, texts: list[dict[str, Any]]) -> Path:
    """An exported reward model of random weights."""
    from trimtab.models.gpu_check.material import byte_pair_tokenizer
    from trimtab.models.nets.loading import new_scorer, save_model
    from trimtab.models.reporting.export import export_scorer

    tokenizer = byte_pair_tokenizer([text for body in texts for text in body["query"]])
    policy = folder.with_name("policy")
    save_model(small_llama(tokenizer, HIDDEN, LAYERS, MAX_TOKENS), tokenizer, policy)
    save_model(new_scorer(policy, 0), tokenizer, folder)
    export_scorer(folder)
    return folder


def _turn(urls: list[str], texts: list[dict[str, Any]], clients: int) -> list[Measured]:
    """Each arm once, one after the other; their scores agree."""
    measured = [asyncio.run(_ask(url, texts, clients)) for url in urls]
    ours, theirs = (turn.scores for turn in measured)
    worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert worst < TOLERANCE, worst
    return measured


@contextmanager
def _server(arm: str, folder: Path, port: int) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.bench.reward_server", "--naive", str(folder)]
    if arm == ARMS[0]:
        command = [sys.executable, "-c", "from trimtab.flows.cli.cli import main; main()"]
        command += ["serve-reward", str(folder)]
    program = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/get_reward"
    finally:
        program.terminate()
        program.wait()


async def _ask(url: str, texts: list[dict[str, Any]], clients: int) -> Measured:
    waiting = iter(enumerate(texts))
    seconds, scores = [0.0] * len(texts), [0.0] * len(texts)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client() -> None:
            for number, body in waiting:
                begun = time.perf_counter()
                async with session.post(url, json=body) as response:
                    response.raise_for_status()
                    scores[number] = (await response.json())["rewards"][0]
                seconds[number] = time.perf_counter() - begun

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return Measured(len(texts) / (time.perf_counter() - started), seconds, scores)


async def _until_they_answer(urls: list[str], texts: list[dict[str, Any]]) -> None:
    for url in urls:
        while True:
            try:
                await _ask(url, texts, 1)  # which warms them up
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.2)


def serve_naively(folder: Path, port: int) -> None:
    """What one would write, and OpenRLHF's `serve_rm` does but for its processes."""
    import torch
    import uvicorn
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    app = FastAPI()

    @app.post("/get_reward")
    async def get_reward(request: Request) -> dict[str, Any]:
        texts = (await request.json())["query"]
        with torch.no_grad():
            logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        return {"rewards": logits[:, 0].tolist()}

    uvicorn.run(app, port=port, log_level="error")


def _print(clients: int, turns: list[list[Measured]]) -> None:
    print(f"\n{clients} at once\n")
    print("| | requests/s | least to most | p50, ms | p99, ms | Trimtab's rate is higher by |")
    print("|---|---|---|---|---|---|")
    for number, arm in enumerate(ARMS):
        rates = [turn[number].rate for turn in turns]
        ratio = median(turn[0].rate / turn[number].rate for turn in turns)
        p50, p99 = (
            1000 * median(sorted(turn[number].seconds)[_place(share, turn)] for turn in turns)
            for share in (0.5, 0.99)
        )
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"| {arm} | {median(rates):.0f} | {spread} | {p50:.0f} | {p99:.0f} | {ratio:.2f} |")


def _place(share: float, turn: list[Measured]) -> int:
    return int(share * (len(turn[0].seconds) - 1))


if __name__ == "__main__":
    main()
