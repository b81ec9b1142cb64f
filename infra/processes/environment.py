"""Which environment variables are secrets: a process is started with those that it needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

# Those of the hub that models and data sets are loaded from; it alone is sent them.
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_WORDS = frozenset(
    "APIKEY AUTH CREDENTIAL CREDENTIALS KEY KEYS PASS PASSWD "
    "PASSWORD PGPASSWORD SECRET SECRETS TOKEN TOKENS".split()
)
# Servers that a flow run talks to and trainers do not: their settings, which may hold passwords.
_SERVICES = ("AWS_", "DASK_", "MLFLOW_", "PG", "PREFECT_", "WEED_")
_LOGIN = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by a word of its name or a password in an address.

    Proxies are none: who reaches anything reaches it through them.
    """
    if name.upper().endswith("_PROXY") or name.startswith("DASK_"):
        return False
    return not _WORDS.isdisjoint(name.upper().split("_")) or bool(_LOGIN.search(value))


def drop_secrets(env: Mapping[str, str], but: Collection[str] = ()) -> dict[str, str]:
    """An environment without secrets, `but` those of these names."""
    return {n: value for n, value in env.items() if n in but or not is_secret(n, value)}


def trainer_env(env: Mapping[str, str]) -> dict[str, str]:
    """What of an environment trainers get: no secrets, and nothing about a flow run's servers."""
    kept = {name: value for name, value in env.items() if not name.startswith(_SERVICES)}
    return drop_secrets(kept, HUB_TOKENS)
