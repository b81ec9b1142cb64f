"""Somebody else of the host, who takes a port if ever it is free."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

THIEF = """
import socket, sys
print("up", flush=True)
while True:
    try:
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        continue
    print("stolen", flush=True)
    connection, _ = listener.accept()
    print(connection.recv(1000), flush=True)
"""


@contextmanager
def thief(port: int) -> Iterator[None]:
    """Tries to take the port all the time, as `nobody` if this is root; it may not succeed."""
    stranger = ["setpriv", "--reuid", "nobody", "--clear-groups"] if os.geteuid() == 0 else []
    python = os.path.realpath(sys.executable)  # `nobody` cannot reach an environment below /root
    process = subprocess.Popen(
        ["nice", *stranger, python, "-S", "-c", THIEF, str(port)],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield
        assert process.poll() is None
        assert not select.select([process.stdout], [], [], 0)[0], f"port {port} was stolen"
    finally:
        process.kill()
        process.wait()
