"""The runner that TRIMTAB_DASK asks for, and one line where it cannot be had."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any
from unittest import mock

import dask
import pytest
from prefect import Task, flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.prefect_api import ask
from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.names import name_run
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.run import Run
from trimtab.flows.runs import lifecycle
from trimtab.flows.runs.flow import ThreadRunner, task_runner
from trimtab.models import specs
from trimtab.models.config.policy import PPOConfig
from trimtab.models.config.reward import RewardModelConfig, StrengthConfig
from trimtab.models.config.training import TrainConfig


def test_threads_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_DASK", raising=False)
    assert isinstance(task_runner(), ThreadRunner)


@flow(task_runner=ThreadRunner())
def fails_halfway() -> None:
    """A task that fails, one that waits for it and one that waits for that; one of its own."""
    bad = Task(lambda: 1 / 0, name="bad").submit()
    second = Task(lambda _: 1, name="second").submit(bad)
    Task(lambda _: 1, name="third").submit(second)
    good = Task(lambda: 1, name="good").submit()
    good.wait()
    bad.result()


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_no_task_of_a_run_that_fails_stays_as_pending() -> None:
    with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
        state = fails_halfway(return_state=True)
    asked = {"flow_runs": {"id": {"any_": [str(state.state_details.flow_run_id)]}}}
    ended = {"bad": "FAILED", "good": "COMPLETED", "second": "CANCELLED", "third": "CANCELLED"}
    deadline, found = time.monotonic() + 20, {}
    while found != ended and time.monotonic() < deadline:  # what was sent before comes late
        time.sleep(0.5)
        tasks = ask("POST", "task_runs/filter", asked)
        found = {each["name"].rpartition("-")[0]: each["state_type"] for each in tasks}
    assert found == ended
    time.sleep(4)
    assert "PENDING" not in {each["state_type"] for each in ask("POST", "task_runs/filter", asked)}


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


@pytest.mark.parametrize(
    ("tags", "config", "resources"),
    [
        (["gpu"], StrengthConfig(), {"GPU": 1}),
        (["gpu"], RewardModelConfig(), {"GPU": 1}),
        (["gpu"], RewardModelConfig(train=TrainConfig(num_ranks=4)), {"GPU": 4}),
        (["gpu"], PPOConfig(num_ranks=2), {"GPU": 2}),
        ([], RewardModelConfig(train=TrainConfig(num_ranks=4)), {"CPU": 1}),
    ],
)
def test_a_stage_takes_a_gpu_for_each_of_its_ranks(
    monkeypatch: pytest.MonkeyPatch, tags: list[str], config: Any, resources: dict[str, int]
) -> None:
    monkeypatch.setenv("TRIMTAB_DASK", "tls://10.0.0.5:8786")
    asked: list[Any] = []

    def note(*_: object, **__: object) -> None:
        asked.append(dask.get_annotations())

    monkeypatch.setattr(Task, "submit", note)
    device: Any = tags[0] if tags else "cpu"
    Run(recipe_named("smoke")).submit(replace(specs.PPO_MAX, device=device), config)
    assert asked == [{"resources": resources}]


def test_a_gpu_that_trainers_do_not_use_is_said_once_a_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All flows go through `tracked_flow`; here nothing of it but the line is at work."""
    tracked = mock.MagicMock()
    monkeypatch.setattr(lifecycle, "close_earlier_starts", lambda: None)
    monkeypatch.setattr(lifecycle, "start_tracked_run", lambda *_: tracked)
    monkeypatch.setattr(lifecycle, "close_leftovers", lambda _: None)
    monkeypatch.setattr(lifecycle, "_name_flow_run", lambda *_: None)
    config = recipe_named("smoke")
    for line in (None, "this host has a GPU"):
        monkeypatch.setattr(lifecycle, "unused_gpus", lambda _, line=line: line)
        caplog.clear()
        with lifecycle.tracked_flow(config, name_run(config, "rlhf")):
            pass
        assert [each.getMessage() for each in caplog.records] == ([] if line is None else [line])
