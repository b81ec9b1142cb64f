"""Flow runs are processes of their own: each outlives the worker that started it, not the stack."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

import psutil

from trimtab.infra.processes.launch import DRAIN_SECONDS

_PR_SET_CHILD_SUBREAPER = 36
# Of a flow run: that of its trainers, then what its own end takes.
WAIT_SECONDS = DRAIN_SECONDS + 30
# Prefect prepares a flow run's workspace as the first of these, which becomes the second.
_MODULES = {"prefect.runner._workspace_supervisor", "prefect.engine"}


def adopt_orphans() -> None:
    """Become the parent of flow runs whose worker dies (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(but: set[int]) -> None:
    """Reap adopted processes that have ended; `but` are children that the supervisor waits for."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in but:
            return
        os.waitpid(ended.si_pid, 0)


def stop() -> None:
    """Have all flow runs stop at a checkpoint; they are resumed when the stack is up again."""
    found = [each for each in psutil.Process().children(recursive=True) if _is_flow_run(each)]
    for each in found:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    _, left = psutil.wait_procs(found, timeout=WAIT_SECONDS)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def _is_flow_run(process: psutil.Process) -> bool:
    try:
        return not _MODULES.isdisjoint(process.cmdline())
    except psutil.Error:
        return False
