"""The end of a command on Ctrl-C, on SIGTERM, and when a reader such as `head` closes the pipe."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHOW_CURSOR = "\033[?25h"
WAITING = (
    "trimtab: Ctrl-C: trainers stop at a checkpoint once the step that they are in is done, which "
    "may take minutes; Ctrl-C again ends all at once"
)


class _Ending:
    """Handlers of the signals; `hint` ends their line. `at_once`: without an exception."""

    is_interrupted = False  # of the process, however many of these there are

    def __init__(self, hint: str, at_once: bool) -> None:
        self.hint, self.at_once = hint, at_once

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-C: raise SIGTERM, which Prefect and running trainers handle."""
        if self.is_interrupted:
            if sys.stderr.isatty():
                sys.stderr.write(SHOW_CURSOR)  # bars hide it
                sys.stderr.flush()
            os._exit(128 + signal.SIGINT)  # trainers and servers end with this process
        _Ending.is_interrupted = True
        if getattr(signal.getsignal(signal.SIGTERM), "__func__", None) is not _Ending.terminate:
            print(WAITING, file=sys.stderr, flush=True)
        signal.raise_signal(signal.SIGTERM)

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM, once trainers have stopped and Prefect has noted the end of the flow run."""
        number = signal.SIGINT if self.is_interrupted else signal.SIGTERM
        name = "Ctrl-C" if self.is_interrupted else "SIGTERM"
        print(f"trimtab: stopped by {name}{self.hint}", file=sys.stderr, flush=True)
        if self.at_once:
            os._exit(128 + number)
        sys.exit(128 + number)


def is_interrupted() -> bool:
    """Whether this process was asked to end by Ctrl-C."""
    return _Ending.is_interrupted


@contextmanager
def exit_on_signals(hint: str = "", *, at_once: bool = False) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM end the process with a line and status 130 or 143.

    A running flow first lets its trainers stop at a checkpoint
    (trimtab.infra.processes.launch.stop_trainers_on_sigterm). A second Ctrl-C ends the process at
    once. Where SIGINT is ignored, as after `&` in a script, it stays ignored. `at_once` is for
    imports: a library that is being loaded may turn our exception into one of its own, and there is
    nothing to tidy up yet. Enter it in the main thread; elsewhere it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = _Ending(hint, at_once)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, ending.terminate)
    if before[signal.SIGINT] is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, ending.interrupt)
    try:
        yield
    finally:
        # After a Ctrl-C what is left is the end of the process, and one more ends it at once.
        if not ending.is_interrupted:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def exit_on_closed_output() -> Iterator[None]:
    """Exit silently with status 141, as other commands do, if the reader of stdout is gone.

    Other broken pipes, such as sockets, stay errors.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # nothing but what always counts: error, hang-up
        if not poll.poll(0):
            raise
        # A later write, when Python ends, would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
