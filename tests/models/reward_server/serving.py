"""A reward server for tests: in this process, or as the program that `trimtab serve-reward` is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from trimtab.models.reward_server.__main__ import KEY, LOOPBACK, bind
from trimtab.models.reward_server.app import Access, RewardServer, create_app
from trimtab.models.reward_server.batching import QueueLimits
from trimtab.models.reward_server.ensemble import Ensemble

LIMITS = QueueLimits(texts=4096, tokens=10**6, batch_tokens=2048, wait_seconds=0.002)
SECRET = "a-key-of-a-test-0123"
REQUEST: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "key_file": None,
    "std_coef": 1.0,
    "answers": None,
    "strip": [],
    "precision": "auto",
    "batch_tokens": 2048,
    "wait_ms": 2.0,
    "queue_texts": 4096,
    "queue_tokens": 10**6,
    "request_texts": 256,
    "body_mib": 1.0,
}


@contextmanager
def served(
    ensemble: Ensemble,
    key: str | None = None,
    limits: QueueLimits = LIMITS,
    max_request_texts: int = 256,
    max_body: int = 2**20,
) -> Iterator[tuple[str, RewardServer]]:
    """The address of a server of this process, and its parts."""
    access = Access(key, LOOPBACK)
    server = RewardServer(ensemble, "rm", access, limits, max_request_texts, max_body)
    running = uvicorn.Server(uvicorn.Config(create_app(server), log_level="error"))
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        listener.listen()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", server
        finally:
            running.should_exit = True
            thread.join(30)


def start(
    *folders: Path, env: Mapping[str, str] | None = None, **changes: Any
) -> subprocess.Popen[str]:
    """The program, started."""
    request = {**REQUEST, "folders": list(map(str, folders)), **changes}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trimtab.models.reward_server", json.dumps(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != KEY} | {**(env or {})},
        start_new_session=True,
    )


def address(program: subprocess.Popen[str]) -> str:
    """host:port of a program, once it listens."""
    assert program.stdout is not None and program.stderr is not None
    line = program.stdout.readline()
    assert line.startswith("rewards at http://"), program.stderr.read()
    return line.strip().rpartition("/")[2]


def is_free(port: int) -> bool:
    """Whether nothing listens at a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
