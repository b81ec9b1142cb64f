"""kill -9 at random moments of smoke runs on the one-server stack; each must end as if undisturbed.

    python -m tests.tools.chaos --kills 50 --seed 0

Killed are workers, flow runs, trainers, MLflow and the S3 server. Afterwards every run is
Completed, its artifacts have the digests of a run that was left alone, each of its stages has a
finished MLflow run, nothing is still said to run, no GPU slot is held, and no manifest is broken;
otherwise the exit status is 1. Prints the table of docs/reference/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.flows.running_stack import Running, running_stack

VICTIMS = {
    "worker": "prefect worker start",
    "flow run": "prefect.engine",
    "trainer": "trimtab.infra.processes.fork_server",
    "MLflow": "mlflow server",
    "S3": "weed ",
}
# A run may be started 20 times; each kill of a flow run costs one.
KILLS_A_RUN = 10
PAUSE = (1.0, 12.0)
PATIENCE = 1800.0
SETTLING = 120.0  # leases of dead trainers run out within a minute
CHANGES: dict[str, Any] = {"ppo": {"num_steps": 12}}


@dataclass
class Disturbed:
    """A run and what was done to it."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def main() -> int:
    """Run undisturbed, then disturbed, until there were enough kills; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.chaos")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    done: list[Disturbed] = []
    with running_stack() as stack:
        while sum(run.kills.total() for run in done) < options.kills:
            run = Disturbed(seed=100 * options.seed + len(done))
            wanted = _undisturbed(run.seed)
            _disturb(stack, run, chance)
            run.faults += _differences(stack, wanted)
            lacking = stack.without_mlflow_run(wanted)
            run.faults += [f"{key} has no finished MLflow run" for key in lacking]
            done.append(run)
            print(json.dumps({**run.__dict__, "kills": dict(run.kills)}), flush=True)
    print(_table(done))
    return int(any(run.faults for run in done))


def _undisturbed(seed: int) -> dict[str, str]:
    """Key -> digest of every artifact of the same run in a folder of its own."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "TRIMTAB_"))}
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [
                *(sys.executable, "-m", "trimtab.flows.cli", "run", "smoke", f"seed={seed}"),
                f"ppo={json.dumps(CHANGES['ppo'])}",
            ],
            env={**outside, "TRIMTAB_HOME": home},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = [json.loads(path.read_text()) for path in Path(home).rglob("*/manifest.json")]
    return {each["key"]: each["digest"] for each in found if each["stage"] != "report"}


def _disturb(stack: Running, run: Disturbed, chance: random.Random) -> None:
    started = time.monotonic()
    flow_run = stack.start(
        "rlhf", {"recipe": "smoke", "changes": {**CHANGES, "seed": run.seed}}
    ).json()
    while run.kills.total() < KILLS_A_RUN:
        time.sleep(chance.uniform(*PAUSE))
        if stack.state_of(flow_run)["type"] == "COMPLETED":
            break
        kind = chance.choice(list(VICTIMS))
        if victims := stack.processes(VICTIMS[kind]):
            os.kill(chance.choice(victims), signal.SIGKILL)
            run.kills[kind] += 1
    # A Crashed run is scheduled again within seconds: only Completed is its end.
    while time.monotonic() < started + PATIENCE:
        state = stack.state_of(flow_run)
        if state["type"] in ("COMPLETED", "FAILED"):
            break
        time.sleep(1)
    run.seconds = round(time.monotonic() - started, 1)
    if state["type"] != "COMPLETED":
        run.faults.append(f"it ended {state['name']}: {state['message']}")
    deadline = time.monotonic() + SETTLING
    while (left := stack.left_running(flow_run)) and time.monotonic() < deadline:
        time.sleep(1)
    run.faults += left


def _differences(stack: Running, wanted: dict[str, str]) -> list[str]:
    manifests = stack.manifests()
    found = {key: manifest.digest for key, manifest in manifests.items() if manifest}
    broken = [f"{key} has a broken manifest" for key in manifests.keys() - found.keys()]
    lacking = [f"{key} is missing" for key in wanted if key not in found]
    other = [f"{k} is not bit-identical" for k in wanted if found.get(k, wanted[k]) != wanted[k]]
    return [*broken, *lacking, *other]


def _table(done: list[Disturbed]) -> str:
    lines = ["| seed | kills | seconds | faults |", "|---|---|---|---|"]
    for run in done:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(run.kills.items()))
        lines.append(f"| {run.seed} | {kills} | {run.seconds:.0f} | {len(run.faults)} |")
    total = sum((run.kills for run in done), Counter[str]())
    kills = ", ".join(f"{count} {kind}" for kind, count in sorted(total.items()))
    lines.append(f"| all | {total.total()}: {kills} | | {sum(len(r.faults) for r in done)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
