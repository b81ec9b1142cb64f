"""Runs on the one-server stack: held back by GPU slots, or spread out over a Dask cluster."""

from __future__ import annotations

import time

import pytest

from tests.flows.dask_cluster import dask_cluster
from tests.flows.running_stack import Running

pytestmark = pytest.mark.slow


def test_five_members_take_two_slots(running: Running) -> None:
    running.trimtab("deploy", "--gpus", "2")
    run = ("run", "smoke", "seed=2", *members(5), "--flow", "label-audit", "--name", "five")
    assert running.trimtab_started(*run, TRIMTAB_MAX_PARALLEL="4").wait() == 0
    timeline = running.timeline("five")
    spans = [span for name, span in timeline.items() if "member" in name]
    assert len(spans) == 5
    at_once = [sum(s.start <= each.start < s.end for s in spans) for each in spans]
    assert max(at_once) == 2
    running.python(
        "import pytest\n"
        "from trimtab.tasks.gpu_slots import SlotsError, gpu_slots\n"
        "with gpu_slots(2): pass\n"
        "with pytest.raises(SlotsError, match='take 3 GPU slots, and there are fewer'):\n"
        "    with gpu_slots(3): pass"
    )


def members(number: int) -> list[str]:
    return ['ensemble.votes=["in_sample"]', f"ensemble.size={number}"]


def test_a_dask_cluster_that_loses_a_node_completes(running: Running) -> None:
    with dask_cluster(running, 2) as (environment, nodes):
        run = running.trimtab_started(
            *("run", "smoke", "seed=3", *members(4), "--flow", "label-audit"),
            **environment,
        )
        deadline = time.monotonic() + 240
        while not all("reward_model" in node.stages for node in nodes):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.05)
        nodes[0].kill()
        assert run.wait(timeout=240) == 0
        assert {"strength", "relabel", "report"} <= nodes[1].stages
    assert None not in running.manifests().values()
