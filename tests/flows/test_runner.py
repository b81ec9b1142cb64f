"""The runner that TRIMTAB_DASK asks for, and one line where it cannot be had."""

from __future__ import annotations

import sys

import dask
import pytest
from prefect.task_runners import ThreadPoolTaskRunner

from flows.config import ConfigError
from flows.runner import task_runner


def test_threads_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_DASK", raising=False)
    assert isinstance(task_runner(), ThreadPoolTaskRunner)


def test_a_cluster_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_DASK", "tls://10.0.0.5:8786")
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(ConfigError, match=r"TRIMTAB_DASK is set: pip install 'trimtab\[dask\]'"):
        task_runner()


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_DASK", "tcp://127.0.0.1:9")
    runner = task_runner()
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        runner,
        pytest.raises(ConfigError, match="TRIMTAB_DASK is tcp://127.0.0.1:9, where no scheduler"),
    ):
        _ = runner.client  # type: ignore[attr-defined]
