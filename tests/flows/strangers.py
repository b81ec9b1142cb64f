"""Somebody on the same host who knows no key: what the ports of a stack's processes give them."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

METHODS = ("GET", "PUT", "POST", "DELETE")
PATHS = (
    *("/", "/status", "/dir/assign", "/dir/status", "/col/delete?collection=trimtab", "/submit"),
    *("/buckets/trimtab/x", "/buckets/?pretty=y", "/1,0", "/trimtab/x", "/trimtab?list-type=2"),
    *("/?Action=ListUsers&Version=2010-05-08", "/metrics", "/debug/pprof/"),
)
# How a client of gRPC begins: HTTP/2's preface and an empty frame of settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
SECONDS = 2.0
TLS_ALERT = b"\x15"
REFUSED = ("400", "401", "403", "404", "405", "501")


def listening(root: int) -> dict[int, set[str]]:
    """Ports that a process and all below it listen on, with the addresses."""
    addresses: dict[int, set[str]] = {}
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    addresses.setdefault(connection.laddr.port, set()).add(connection.laddr.ip)
    return addresses


def open_sockets(root: int) -> Iterator[Path]:
    """Unix sockets of a process and all below it that another user could open."""
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("unix"):
                path = Path(str(connection.laddr))
                if not path.is_absolute():  # abstract, or as its server's folder has it
                    path = Path(process.cwd(), path)
                if path.is_socket() and _is_open(path):
                    yield path


def _is_open(path: Path) -> bool:
    """Whether others may write to a socket, and pass through all folders above it."""
    if not path.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return False
    return all(folder.stat().st_mode & (stat.S_IXOTH | stat.S_IXGRP) for folder in path.parents)


def given(port: int) -> Iterator[tuple[str, bytes]]:
    """What a port gives to whoever asks: each request that was not refused, with the answer."""
    for is_tls in (False, True):
        for method in METHODS:
            for path in PATHS:
                request = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                body = "Content-Length: 1\r\nConnection: close\r\n\r\nx"
                answer = _ask(port, f"{request}{body}".encode(), is_tls)
                is_empty = method == "GET" and b"\r\nContent-Length: 0\r\n" in answer
                if not _is_refusal(answer) and not is_empty:  # S3 says that it is up
                    yield f"{'TLS ' * is_tls}{method} {path}", answer
        answer = _ask(port, PREFACE, is_tls)
        if not _is_refusal(answer):
            yield f"{'TLS ' * is_tls}HTTP/2", answer


def _is_refusal(answer: bytes) -> bool:
    if answer.startswith(b"HTTP/"):
        return answer.split()[1].decode() in REFUSED
    return not answer or answer.startswith(TLS_ALERT)


def _ask(port: int, request: bytes, is_tls: bool) -> bytes:
    """The beginning of the answer; nothing where the connection is closed or stays silent."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
        if not is_tls:
            plain.sendall(request)
            return plain.recv(1000)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2" if request == PREFACE else "http/1.1"])
        with context.wrap_socket(plain) as secure:
            secure.sendall(request)
            return secure.recv(1000)
    return b""
