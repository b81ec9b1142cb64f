"""Output into a pipe whose reader, such as `head`, has read enough."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_output_ends_it() -> Iterator[None]:
    """Inside, a command ends as others do when nobody reads on: silently, with status 141.

    Lines that went dead elsewhere, such as sockets, stay errors.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_closed(sys.stdout.fileno()):
            raise
        # What is left to write would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _is_closed(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # nothing but what always counts: error, hang-up
    return bool(poll.poll(0))
