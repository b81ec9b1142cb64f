"""Asked to stop: SIGTERM sets a flag that trainers poll between steps.

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

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.raised = True


_flag = _Flag()


def install() -> None:
    """Make SIGTERM raise the flag instead of ending the process. Call it in the main thread."""
    _flag.raised = False
    signal.signal(signal.SIGTERM, _flag.handle)


def stop_requested() -> bool:
    """Whether a SIGTERM has come since `install`: write a checkpoint, then call `stop`."""
    return _flag.raised


def stop() -> NoReturn:
    """Leave with the exit code that says: state is saved, the same job run again continues."""
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
