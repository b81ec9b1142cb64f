"""Many `trimtab run smoke` at once in one home, of configurations that overlap.

    python -m tests.tools.many_runs --runs 20

Every second run has another seed, and two of each seed have the same `ppo.kl_coef`: the stages up
to the policies are shared by half of the runs, all others by two. Each run must end well, each
stage must be computed once, and MLflow must hold a finished run of each stage of each run, or else
the exit status is 1. Prints a row of the table of docs/reference/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from trimtab.infra.settings import Settings

SEEDS = 2
TWINS = 2  # runs of one configuration
TINY = ("ppo.num_steps=2", "rounds.max_rounds=1", 'arms=["full","vanilla"]')
GIVE_UP = 5400.0  # seconds, far beyond what they need


def main() -> int:
    """Run all, look at what is left; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.many_runs")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-runs-") as folder:
        home = Path(folder)
        seconds, peak, faults = _run_all(home, options.runs)
        faults += _left(home, options.runs)
    for fault in faults:
        print(fault, file=sys.stderr)
    print("| runs | seconds | memory, GiB | faults |\n|---|---|---|---|")
    print(f"| {options.runs} | {seconds:.0f} | {peak / 2**30:.1f} | {len(faults)} |")
    return int(bool(faults))


def _run_all(home: Path, number: int) -> tuple[float, int, list[str]]:
    """Seconds until the last has ended, most memory at a time, and what went wrong."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))},
        "TRIMTAB_HOME": str(home),
    }
    began, peak, runs = time.monotonic(), 0, []
    for index in range(number):
        kl_coef = 0.05 + 0.01 * (index // (SEEDS * TWINS))
        command = [
            sys.executable,
            "-m",
            "trimtab",
            "run",
            "smoke",
            f"seed={index % SEEDS}",
        ]
        with (home / f"run-{index}.log").open("wb") as log:
            runs.append(
                subprocess.Popen(
                    [*command, f"ppo.kl_coef={kl_coef:.2f}", *TINY],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
    while any(run.poll() is None for run in runs) and time.monotonic() - began < GIVE_UP:
        peak = max(peak, _memory())
        time.sleep(2)
    faults = []
    for index, run in enumerate(runs):
        if run.poll() is None:
            run.terminate()
        if run.wait():
            last = (home / f"run-{index}.log").read_text().splitlines()[-3:]
            faults.append(f"run {index} ended with {run.returncode}: {last}")
    return time.monotonic() - began, peak, faults


def _memory() -> int:
    """Bytes of all that was started here, what processes share counted once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _left(home: Path, number: int) -> list[str]:
    """What MLflow does not hold as it should."""
    from mlflow.tracking import MlflowClient

    uri = Settings.from_env({"TRIMTAB_HOME": str(home)}).mlflow_uri
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    runs: list[Any] = []
    token = None
    while token is not None or not runs:
        page = client.search_runs(["1"], page_token=token)
        runs += page
        token = page.token
        if not token:
            break
    faults = [
        f"MLflow run {r.info.run_name}: {r.info.status}"
        for r in runs
        if r.info.status != "FINISHED"
    ]
    stages = [run.data.tags for run in runs if "trimtab.key" in run.data.tags]
    computed = Counter(tags["trimtab.key"] for tags in stages if tags["trimtab.cached"] == "false")
    keys = {path.parent.name for path in home.glob("store/artifacts/*/*/manifest.json")}
    faults += [f"{key} was computed {computed[key]} times" for key in keys if computed[key] != 1]
    parents = [run for run in runs if "trimtab.key" not in run.data.tags]
    if len(parents) != number:
        faults.append(f"{len(parents)} MLflow runs of {number} flow runs")
    return faults


if __name__ == "__main__":
    sys.exit(main())
