"""The environments of child processes: with the secrets that they need, and no others."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import trimtab

ROOT = Path(trimtab.__file__).parents[1]

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
    """An environment as trainers get it: without secrets and without a flow run's servers."""
    others = {name: value for name, value in env.items() if not name.startswith(_SERVICES)}
    return drop_secrets(others, HUB_TOKENS)


def child_env(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with the project importable by name from any folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # PYTHONSAFEPATH: a file called datasets.py in the current folder must shadow nothing.
    safe = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    # How long a thread spins for the others before it sleeps. SFT of the default recipe, two
    # threads on two cores: 8.6 steps/s without spinning, 16.8 with this, 14.5 with libgomp's own
    # 300,000, and 11.9 with one thread; beside a busy neighbour 10.7 without, 3.4 with this.
    waiting = {"GOMP_SPINCOUNT": "10000"}
    return {**waiting, **os.environ, **safe, **extra}
