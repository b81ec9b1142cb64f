"""Where things live on this machine, from the environment.

TRIMTAB_HOME         work folders and the embedded defaults; `.trimtab` in the current folder
TRIMTAB_STORE        a folder or s3://bucket/prefix; `<home>/store`
MLFLOW_TRACKING_URI  `sqlite:///<home>/mlflow.db`
TRIMTAB_ANSWERS      answers of judge models, which all runs share; `<home>/answers`
TRIMTAB_MAX_PARALLEL cores that trainers share, each taking one or more; those this process may use
TRIMTAB_REGISTER     copy: policies are copied to MLflow; in-store: their versions name the folder
                     in the S3 store; copy
TRIMTAB_DASK         scheduler of a Dask cluster, such as tls://10.0.0.5:8786; unset, threads
CUDA_VISIBLE_DEVICES GPUs that trainers may use, a trainer one (or more); all of this host
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from trimtab.infra.processes.gpus import gpus_of_host


class SettingsError(ValueError):
    """An environment variable with a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """Resolved locations; `home` is absolute."""

    home: Path
    store_url: str
    mlflow_uri: str
    answers: Path
    max_parallel: int
    gpus: tuple[str, ...] = ()
    dask: str | None = None
    registers_in_store: bool = False

    @property
    def work(self) -> Path:
        """Folder of the stages' work folders."""
        return self.home / "work"

    @property
    def embedded_mlflow(self) -> bool:
        """Whether MLflow is the SQLite file in `home` and no server."""
        return self.mlflow_uri == embedded_mlflow_uri(self.home)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the variables above; an empty one counts as unset. Raises SettingsError."""
        env = os.environ if env is None else env
        home = Path(env.get("TRIMTAB_HOME") or ".trimtab").expanduser().resolve()
        return cls(
            home=home,
            store_url=env.get("TRIMTAB_STORE") or str(home / "store"),
            mlflow_uri=env.get("MLFLOW_TRACKING_URI") or embedded_mlflow_uri(home),
            answers=Path(env.get("TRIMTAB_ANSWERS") or home / "answers").expanduser().resolve(),
            max_parallel=_max_parallel(env.get("TRIMTAB_MAX_PARALLEL", "")),
            gpus=gpus_of_host(env),
            dask=env.get("TRIMTAB_DASK") or None,
            registers_in_store=_registers_in_store(env),
        )


def hide_password(url: str) -> str:
    """An address as it may be shown: what comes before the host is left out."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def embedded_mlflow_uri(home: Path) -> str:
    """The tracking URI used when none is given."""
    return f"sqlite:///{home / 'mlflow.db'}"


def _registers_in_store(env: Mapping[str, str]) -> bool:
    how, store = env.get("TRIMTAB_REGISTER") or "copy", env.get("TRIMTAB_STORE") or "a folder"
    if how not in ("copy", "in-store") or (how == "in-store" and not store.startswith("s3://")):
        raise SettingsError(
            f"TRIMTAB_REGISTER is {how!r} and TRIMTAB_STORE {store!r}; allowed: copy, or in-store "
            "with a store in S3 (on one disk weights are links)"
        )
    return how == "in-store"


def _max_parallel(text: str) -> int:
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(
            f"TRIMTAB_MAX_PARALLEL is {text!r}; allowed: a whole number of at least 1; "
            "unset it to use all cores"
        )
    return int(text)
