"""The program: 200 clients at once, SIGTERM, kill -9, and what it does not start with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.models.reward_server.serving import REQUEST, SECRET, address, is_free, start
from tests.models.training.test_external_scorer import save_scorer
from trimtab.models.reporting.export import export_scorer
from trimtab.models.reward_server import __main__ as program
from trimtab.models.training.external_scorer import ExternalScorer

NUM_CLIENTS, REQUESTS_EACH = 200, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_scorer(tmp_path_factory.mktemp("scorer") / "model")
    export_scorer(folder)
    return folder


def _asked(client: int, number: int) -> tuple[str, str]:
    """Prompts that several clients share, answers of very different lengths."""
    return f"Question {client % 20}?", f" Answer {number} of {client}." * (1 + (client * 7) % 11)


@pytest.mark.slow
def test_two_hundred_clients_at_once_get_their_own_scores(folder: Path) -> None:
    """In the formats of OpenRLHF, slime, verl and our own, in turn."""

    async def ask(session: aiohttp.ClientSession, base: str, client: int) -> list[float]:
        found = []
        for number in range(REQUESTS_EACH):
            prompt, answer = _asked(client, number)
            path, body, read = [
                ("get_reward", {"query": [prompt + answer]}, lambda value: value["rewards"][0]),
                ("remote_rm", {"prompt": prompt, "response": answer}, lambda value: value),
                ("classify", {"input": prompt + answer}, lambda v: v["data"][-1]["probs"][-1]),
                (
                    "score",
                    {"inputs": [{"prompt": prompt, "response": answer}]},
                    lambda v: v["scores"][0],
                ),
            ][(client + number) % 4]
            async with session.post(f"http://{base}/{path}", json=body) as response:
                assert response.status == 200, await response.text()
                found.append(read(await response.json()))  # type: ignore[no-untyped-call]
        return found

    async def all_at_once(base: str) -> list[list[float]]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            return await asyncio.gather(*(ask(session, base, n) for n in range(NUM_CLIENTS)))

    server = start(folder)
    try:
        base = address(server)
        found = asyncio.run(all_at_once(base))
        text = httpx.get(f"http://{base}/metrics").text
    finally:
        server.kill()
    dialogues = [[_asked(n, each) for each in range(REQUESTS_EACH)] for n in range(NUM_CLIENTS)]
    scorer = ExternalScorer.load(str(folder))
    expected = scorer.score([each for row in dialogues for each in row])
    for row, scores in zip(dialogues, found, strict=True):
        assert scores == pytest.approx([expected[each] for each in row], abs=1e-5)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(samples["trimtab_reward_batch_texts_sum"]) == NUM_CLIENTS * REQUESTS_EACH
    # Were no texts of several clients scored together, there would be as many batches.
    assert float(samples["trimtab_reward_batch_texts_count"]) < NUM_CLIENTS * REQUESTS_EACH / 4


def _load(base: str, stop: threading.Event) -> Iterator[threading.Thread]:
    """Clients that ask until they are stopped, or nobody answers."""

    def ask() -> None:
        with httpx.Client(base_url=f"http://{base}", timeout=60) as client:
            while not stop.is_set():
                try:
                    client.post("/", json={"inputs": [f"text {n}" * 20 for n in range(50)]})
                except httpx.HTTPError:
                    return

    for _ in range(8):
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        yield thread


@pytest.mark.slow
def test_a_server_killed_under_load_leaves_nothing_and_starts_again(
    folder: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env, body = {"TMPDIR": str(temporary)}, {"inputs": ["Whole."]}
    server = start(folder, env=env)
    base = address(server)
    port = int(base.rpartition(":")[2])
    before = httpx.post(f"http://{base}/", json=body, timeout=60).json()
    stop = threading.Event()
    threads = list(_load(base, stop))
    while "queue_texts 0.0" in httpx.get(f"http://{base}/metrics", timeout=60).text:
        time.sleep(0.01)
    server.send_signal(signal.SIGKILL)
    assert server.wait(60) == -signal.SIGKILL
    stop.set()
    for thread in threads:
        thread.join(60)
    assert is_free(port) and list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):  # of its session, of which it was the first
        os.killpg(server.pid, 0)
    again = start(folder, env=env, port=port)
    try:
        assert address(again) == base
        assert httpx.post(f"http://{base}/", json=body, timeout=60).json() == before
    finally:
        again.kill()


@pytest.mark.slow
def test_sigterm_answers_what_is_queued(folder: Path) -> None:
    # What has come waits for ten seconds, but at the end of the program.
    server = start(folder, wait_ms=10_000, batch_tokens=10**6)
    base = address(server)
    answers: list[Any] = []

    def ask(number: int) -> None:
        body = {"inputs": [f"text {number}"] * 3}
        answers.append(httpx.post(f"http://{base}/", json=body, timeout=60))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    while "queue_texts 30.0" not in httpx.get(f"http://{base}/metrics", timeout=60).text:
        time.sleep(0.01)
    server.terminate()
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 10
    assert all(len(answer.json()["scores"]) == 3 for answer in answers)
    assert server.wait(60) == 143
    assert server.stderr is not None and server.stderr.read() == ""
    assert is_free(int(base.rpartition(":")[2]))


@pytest.mark.slow
def test_a_folder_that_is_no_reward_model_is_a_line(tmp_path: Path) -> None:
    server = start(tmp_path / "nothing")
    _, said = server.communicate(timeout=120)
    assert server.returncode == 1
    assert said.startswith("trimtab: ") and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"host": "0.0.0.0"}, None, "--host: found 0.0.0.0 without a key; allowed: TRIMTAB_REWARD"),
        ({"host": "203.0.113.7"}, SECRET, "--host 203.0.113.7 --port 0: found Cannot assign"),
        ({}, "short", "TRIMTAB_REWARD_KEY: found 5 characters; allowed: 16 or more, printable"),
        ({}, "", "TRIMTAB_REWARD_KEY: found 0 characters; allowed: 16 or more, printable"),
        ({}, "a key with blanks in it", "TRIMTAB_REWARD_KEY: found 23 characters; allowed"),
        ({"key_file": "open"}, None, "open: found a file that others may read; allowed: mode 600"),
        ({"key_file": "none"}, None, "none: found no file that can be read"),
        ({"key_file": "short"}, None, "short: found 3 characters; allowed: 16 or more"),
    ],
)
def test_what_it_does_not_start_with(
    changes: dict[str, Any],
    key: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text, mode in (("open", SECRET, 0o644), ("short", "abc", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    if "key_file" in changes:
        changes = {"key_file": str(tmp_path / changes["key_file"])}
    assert _main(monkeypatch, key, changes) == 2
    error = capsys.readouterr().err
    assert error.startswith("trimtab: ") and said in error and len(error.splitlines()) == 1
    assert key in (None, "") or key not in error


def _main(monkeypatch: pytest.MonkeyPatch, key: str | None, changes: dict[str, Any]) -> int:
    """The exit status, where the server itself would return at once."""
    monkeypatch.setattr(program, "serve", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv(program.KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(program.KEY, key)
    for name in program.ENVIRONMENT:
        monkeypatch.setenv(name, "1")
    return program.main(json.dumps({**REQUEST, "folders": ["model"], **changes}))


def test_a_key_is_of_a_file_or_the_environment_which_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert program.read_key(file, {program.KEY: "another-of-a-test"}) == SECRET
    assert program.read_key(None, {}) is None
    assert _main(monkeypatch, SECRET, {"host": "127.0.0.1"}) == 0
    assert program.KEY not in os.environ


def test_a_port_that_is_taken_is_said_and_answers_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with program.bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        # By that asyncio sets TCP_NODELAY.
        assert taken.proto == socket.IPPROTO_TCP
        assert _main(monkeypatch, None, {"port": port}) == 2
    assert f"--port {port}: found Address already in use" in capsys.readouterr().err
    with program.bind("::1", 0) as six:
        assert program.listen(six, 1) == f"http://[::1]:{six.getsockname()[1]}"
    with program.bind("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        with program.bind("127.0.0.1", port) as two:  # while neither listens
            assert program.listen(one, 1) == f"http://127.0.0.1:{port}"
            with pytest.raises(program.ServeError, match=f"--port {port}: found Address already"):
                program.listen(two, 1)
