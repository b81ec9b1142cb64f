"""Asked to stop (SIGTERM): a stage leaves at once, unless it has said that it saves first.

defer()
while training:
    if stop_requested():
        save_checkpoint(...)
        stop()
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

EXIT_STOPPED = 75  # EX_TEMPFAIL: not done, run me again

_PR_SET_PDEATHSIG = 1


class _Flag:
    raised = False
    deferred = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.raised = True
        if not self.deferred:
            stop()


_flag = _Flag()


def install() -> None:
    """Make SIGTERM end the stage with EXIT_STOPPED. Call it in the main thread."""
    _flag.raised = _flag.deferred = False
    signal.signal(signal.SIGTERM, _flag.handle)


def defer() -> None:
    """Let SIGTERM only set the flag from now on: the caller polls it, and saves before it stops."""
    _flag.deferred = True


def undefer() -> None:
    """Let SIGTERM end the stage at once again, also one that came meanwhile."""
    _flag.deferred = False
    if _flag.raised:
        stop()


def stop_requested() -> bool:
    """Whether a SIGTERM has come since `install`: write a checkpoint, then call `stop`."""
    return _flag.raised


def stop() -> NoReturn:
    """Exit with EXIT_STOPPED: the same job, run again, resumes."""
    print("stopped on request; the same stage run again continues", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_STOPPED)


def die_with_parent() -> None:
    """Have the kernel kill this process when the process that started it dies (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call took effect
        os._exit(1)
