"""The secrets of the stack: in the environment only, never in a file, a command line or a log."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping

from trimtab.infra.stack.programs import StackError

SECRETS = {
    "PGPASSWORD": "password of the database user `trimtab`",
    "AWS_ACCESS_KEY_ID": "access key of the object store",
    "AWS_SECRET_ACCESS_KEY": "its secret",
    "MLFLOW_TRACKING_USERNAME": "MLflow's administrator",
    "MLFLOW_TRACKING_PASSWORD": "that user's password, 12 characters or more",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "what MLflow signs its forms with",
    "PREFECT_API_AUTH_STRING": "user:password of Prefect's server",
}


def missing(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The secrets that are not set."""
    return [name for name in SECRETS if not environment.get(name)]


def require() -> None:
    """Raise StackError naming every secret that is not set, and how to make them."""
    if missing():
        names = "\n".join(f"  {name}: {SECRETS[name]}" for name in missing())
        raise StackError(
            f"secrets that the environment lacks:\n{names}\n"
            'Make them with: eval "$(python -m trimtab.infra.stack secrets)", and keep them: '
            "what is in the databases opens with these only"
        )


def generate() -> dict[str, str]:
    """New values for the secrets that are not set."""
    made = {
        "AWS_ACCESS_KEY_ID": f"TRIMTAB{secrets.token_hex(6).upper()}",
        "MLFLOW_TRACKING_USERNAME": "trimtab",
        "PREFECT_API_AUTH_STRING": f"trimtab:{secrets.token_urlsafe(24)}",
    }
    return {name: made.get(name, secrets.token_urlsafe(24)) for name in missing()}


def export_lines(values: Mapping[str, str]) -> str:
    """Lines for a shell to evaluate."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
