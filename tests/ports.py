"""Free ports in a row, for servers of a test."""

from __future__ import annotations

import os
import socket

_FIRST, _LAST, _APART = 20000, 30000, 50


def free_ports(count: int) -> int:
    """The first of so many; processes begin to look at different places."""
    starts = range(_FIRST, _LAST, _APART)
    offset = os.getpid() % len(starts)
    for first in [*starts[offset:], *starts[:offset]]:
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
