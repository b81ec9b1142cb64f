"""kill -9 at random moments of smoke runs on the one-server stack; each must end as if undisturbed.

    python -m tests.tools.chaos --kills 50 --seed 0

Three runs go on at once: two are of one configuration, and the third shares all stages up to the
policies with them. Killed are workers, flow runs, trainers and every server of the stack, equally
often, in an order and with pauses that the seed decides. At the end every run is Completed, its
artifacts have the digests of a run that was left alone, each of its stages has a finished MLflow
run, and nothing is left: no run or task that is said to run, no GPU slot, no file lock, no process,
no file of a stage that has ended, no checkpoint. Otherwise the exit status is 1. Prints the tables
of docs/reference/reliability.md.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests

from tests.flows.running_stack import Running, processes_of, running_stack
from trimtab.infra.store.cleaner import unneeded

T = TypeVar("T")
# What the command line of each has in it. A session is PostgreSQL's process for one connection.
VICTIMS = {
    "worker": "prefect worker start",
    "flow run": "prefect.engine",
    "trainer": "trimtab.infra.processes.fork_server",
    "MLflow": "mlflow_app",
    "Prefect": "trimtab.infra.prefect.app",
    "S3": "weed ",
    "PostgreSQL": "postgres -D ",
    "PostgreSQL session": "postgres: trimtab ",
}
# Processes that a flow run consists of: none may be left once all have ended.
OF_RUNS = ("prefect.engine", "prefect.runner", "trimtab.infra.processes")
# Two runs of the first configuration and one of the second are under way at once.
CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {"ppo": {"num_steps": 12}},
    {"ppo": {"num_steps": 12, "kl_coef": 0.07}},
)
AT_ONCE = (0, 0, 1)
# A run may be started 20 times; a quarter of the kills, of workers and flow runs, cost it one.
KILLS_A_BATCH = 25
PAUSE = (1.0, 12.0)  # seconds between two kills
APPEARANCE = 20.0  # seconds to wait for a victim of the kind whose turn it is
OUTAGE = 180.0  # seconds that a server may need to answer again
PATIENCE = 1800.0  # seconds for a batch
SETTLING = 120.0  # seconds: leases of dead trainers run out within a minute
CHECKS = (
    "runs that end Completed",
    "artifacts with the digests of undisturbed runs",
    "stages with a finished MLflow run",
    "runs and tasks that Prefect takes for running",
    "runs that MLflow takes for running",
    "GPU slots held",
    "file locks held",
    "processes left",
    "files of stages that have ended, checkpoints, data for MLflow",
)
COMPLETED, DIGESTS, TRACKED, PREFECT, MLFLOW, SLOTS, LOCKS, PROCESSES, FILES = CHECKS


@dataclass
class Findings:
    """What was looked at and what was wrong, by check."""

    looked_at: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, check: str, faults: Sequence[str], number: int = 1) -> None:
        """`number` things were looked at, and these are the faults."""
        self.looked_at[check] += number
        self.faults[check] += faults

    @property
    def num_faults(self) -> int:
        return sum(map(len, self.faults.values()))


@dataclass
class Batch:
    """Runs that were under way at once, and what was done to them."""

    seed: int
    runs: list[dict[str, Any]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    num_faults: int = 0


@dataclass
class Chaos:
    """The stack, whose turn it is to be killed, and what was found."""

    stack: Running
    chance: random.Random
    wanted_kills: int
    undisturbed: Path
    began: float = field(default_factory=time.monotonic)
    deck: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def num_kills(self) -> int:
        return sum(batch.kills.total() for batch in self.batches)

    def say(self, text: str) -> None:
        """A line of progress."""
        passed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - self.began))
        done = f"{self.num_kills} of {self.wanted_kills} kills"
        print(f"{passed}  {done:<14}  {text}", flush=True)

    def next_kind(self) -> str:
        """The kind whose turn it is: each once before one has a second turn."""
        if not self.deck:
            self.deck = list(VICTIMS)
            self.chance.shuffle(self.deck)
        return self.deck.pop()


def main() -> int:
    """Batches of runs, undisturbed and disturbed, until there were enough kills; 1 for faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.chaos")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of victims, pauses and runs")
    parser.add_argument(
        "--undisturbed",
        type=Path,
        metavar="FOLDER",
        help="where the runs that are left alone are kept, for the next command of the same seed",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stack is to end, too
    with tempfile.TemporaryDirectory(prefix="undisturbed-") as folder, running_stack() as stack:
        place = options.undisturbed or Path(folder)
        chaos = Chaos(stack, random.Random(options.seed), options.kills, place)
        while chaos.num_kills < options.kills:
            _run_batch(chaos, seed=100 * options.seed + len(chaos.batches))
        _look_around(chaos)
    left = processes_of(chaos.stack.stack.folder)
    chaos.findings.add(PROCESSES, [f"after the stack: {each}" for each in left])
    for check, faults in chaos.findings.faults.items():
        for fault in faults:
            print(f"FAULT  {check}: {fault}")
    print(_tables(chaos))
    return int(chaos.findings.num_faults > 0)


def _run_batch(chaos: Chaos, seed: int) -> None:
    chaos.say(f"seed {seed}: the same runs, undisturbed")
    wanted = _undisturbed(seed, chaos.undisturbed / str(seed))
    batch = Batch(seed)
    chaos.batches.append(batch)
    before = chaos.findings.num_faults
    started = time.monotonic()
    batch.runs = [_start(chaos.stack, seed, index) for index in range(len(AT_ONCE))]
    chaos.say(f"seed {seed}: {len(batch.runs)} runs started")
    while (
        batch.kills.total() < KILLS_A_BATCH
        and chaos.num_kills < chaos.wanted_kills
        and _under_way(chaos.stack, batch)
    ):
        time.sleep(chaos.chance.uniform(*PAUSE))
        _kill_one(chaos, batch)
    _wait_for_ends(chaos, batch, started + PATIENCE)
    batch.seconds = time.monotonic() - started
    _compare(chaos, wanted)
    batch.num_faults = chaos.findings.num_faults - before
    chaos.say(f"seed {seed}: {batch.seconds:.0f} s, {batch.num_faults} faults")


def _undisturbed(seed: int, home: Path) -> dict[str, str]:
    """Key -> digest of every artifact of the same runs, in a home of their own."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "TRIMTAB_"))}
    for changes in CONFIGURATIONS:
        command = [sys.executable, "-m", "trimtab", "run", "smoke", f"seed={seed}"]
        command += [f"ppo.{name}={value}" for name, value in changes["ppo"].items()]
        subprocess.run(
            command,
            env={**outside, "TRIMTAB_HOME": str(home)},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    found = [json.loads(path.read_text()) for path in home.rglob("*/manifest.json")]
    return {each["key"]: each["digest"] for each in found if each["stage"] != "report"}


def _patiently(ask: Callable[[], T]) -> T:
    """Ask a server that may be down at the moment; what it raises after three minutes."""
    deadline = time.monotonic() + OUTAGE
    while True:
        try:
            return ask()
        except (requests.RequestException, KeyError, TypeError) as error:
            answer = getattr(error, "response", None)
            is_refusal = answer is not None and 400 <= answer.status_code < 500
            if is_refusal or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _start(stack: Running, seed: int, index: int) -> dict[str, Any]:
    body = {
        "parameters": {
            "recipe": "smoke",
            "changes": {**CONFIGURATIONS[AT_ONCE[index]], "seed": seed},
        },
        "name": f"chaos {seed}.{index}",
        "idempotency_key": f"chaos-{seed}-{index}",
    }

    def start() -> dict[str, Any]:
        path = f"deployments/{stack.deployment('rlhf')['id']}/create_flow_run"
        answer = stack.prefect("POST", path, body)
        answer.raise_for_status()
        return dict(answer.json())

    return _patiently(start)


def _state(stack: Running, run: dict[str, Any]) -> dict[str, Any]:
    return _patiently(lambda: stack.state_of(run))


def _under_way(stack: Running, batch: Batch) -> list[str]:
    """The states of the runs that have not ended; one that has crashed is scheduled again."""
    states = [_state(stack, run) for run in batch.runs]
    ended = ("COMPLETED", "FAILED", "CANCELLED")
    return [state["name"] for state in states if state["type"] not in ended]


def _kill_one(chaos: Chaos, batch: Batch) -> None:
    """Kill one of the kind whose turn it is; one that does not come has its turn later."""
    kind = chaos.next_kind()
    deadline = time.monotonic() + APPEARANCE
    while not (found := sorted(_processes(chaos.stack, VICTIMS[kind]))):
        if time.monotonic() > deadline:
            chaos.deck.insert(0, kind)
            return
        time.sleep(0.2)
    victim = chaos.chance.choice(found)
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        chaos.deck.append(kind)
        return
    batch.kills[kind] += 1
    chaos.say(f"seed {batch.seed}: killed {kind} (process {victim}, one of {len(found)})")


def _processes(stack: Running, words: str) -> Iterator[int]:
    """Processes below the stack's whose command line has these words, orphans included."""
    for process in psutil.Process(stack.pid).children(recursive=True):
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and words in f"{' '.join(process.cmdline())} ":
                yield process.pid
        except psutil.Error:
            continue


def _wait_for_ends(chaos: Chaos, batch: Batch, deadline: float) -> None:
    stack, said = chaos.stack, ""
    while (states := _under_way(stack, batch)) and time.monotonic() < deadline:
        if (text := ", ".join(states)) != said:
            chaos.say(f"seed {batch.seed}: {len(states)} runs go on ({text})")
            said = text
        time.sleep(1)
    ends = {run["name"]: _state(stack, run) for run in batch.runs}
    faults = [
        f"{name} is {state['name']}: {state['message']}"
        for name, state in ends.items()
        if state["type"] != "COMPLETED"
    ]
    chaos.findings.add(COMPLETED, faults, len(batch.runs))
    deadline = time.monotonic() + SETTLING
    while any((left := _said_to_run(stack, batch)).values()) and time.monotonic() < deadline:
        time.sleep(1)
    for check, faults in left.items():
        chaos.findings.add(check, faults, len(batch.runs) if check == PREFECT else 1)


def _said_to_run(stack: Running, batch: Batch) -> dict[str, list[str]]:
    left: dict[str, list[str]] = {PREFECT: [], MLFLOW: [], SLOTS: []}
    for run in batch.runs:
        for each in _patiently(lambda run=run: stack.left_running(run)):  # type: ignore[misc]
            check = MLFLOW if each.startswith("MLflow") else SLOTS if "slots" in each else PREFECT
            if each not in left[check]:
                left[check].append(each)
    return left


def _compare(chaos: Chaos, wanted: Mapping[str, str]) -> None:
    """The store's artifacts with those of undisturbed runs, and MLflow's runs of them."""
    manifests = _patiently(chaos.stack.manifests)
    found = {key: manifest.digest for key, manifest in manifests.items() if manifest}
    faults = [f"{key} has a broken manifest" for key in manifests.keys() - found.keys()]
    faults += [f"{key} is missing" for key in wanted if key not in found]
    faults += [f"{k} is not bit-identical" for k in wanted if found.get(k, wanted[k]) != wanted[k]]
    chaos.findings.add(DIGESTS, faults, len(wanted))
    lacking = _patiently(lambda: chaos.stack.without_mlflow_run(wanted))
    chaos.findings.add(TRACKED, lacking, len(wanted))


def _look_around(chaos: Chaos) -> None:
    """What all runs have left, once all have ended."""
    stack, findings = chaos.stack, chaos.findings
    deadline = time.monotonic() + SETTLING
    while (left := _processes_of_runs(stack)) and time.monotonic() < deadline:
        time.sleep(1)
    findings.add(PROCESSES, left)
    open_ = {"state": {"type": {"any_": ["RUNNING", "PENDING", "PAUSED", "CANCELLING"]}}}
    for kind in ("flow_runs", "task_runs"):
        runs = _patiently(lambda kind=kind: _all_of(stack, kind, open_))  # type: ignore[misc]
        findings.add(PREFECT, [f"{kind}: {each['name']} {each['state_name']}" for each in runs])
    findings.add(LOCKS, list(_locked(stack.stack.folder)))
    findings.add(FILES, [*_files_left(stack), *_objects_left(stack)])


def _processes_of_runs(stack: Running) -> list[str]:
    found = {pid for words in OF_RUNS for pid in _processes(stack, words)}
    return [f"process {pid}: {' '.join(psutil.Process(pid).cmdline())}" for pid in found]


def _all_of(stack: Running, kind: str, filter_: dict[str, Any]) -> list[dict[str, Any]]:
    answer = stack.prefect("POST", f"{kind}/filter", {kind: filter_, "limit": 200})
    answer.raise_for_status()
    return list(answer.json())


def _locked(folder: Path) -> Iterator[str]:
    """Files of runs that some process holds a lock on (Linux)."""
    paths = [path for path in folder.glob("*/work/.locks/**/*") if path.is_file()]
    paths += folder.glob("*/outbox/**/*.jsonl")
    inodes = {(os.stat(path).st_dev, os.stat(path).st_ino): path for path in paths}
    for line in Path("/proc/locks").read_text().splitlines():
        major, minor, inode = line.split()[-3].split(":")  # behind `->`, where it is waited for
        device = os.makedev(int(major, 16), int(minor, 16))
        if path := inodes.get((device, int(inode))):
            yield f"{path.relative_to(folder)}: {line}"


def _files_left(stack: Running) -> Iterator[str]:
    folder = stack.stack.folder
    for pattern in ("*/work/*", "*/outbox/**/*.*"):
        for path in sorted(folder.glob(pattern)):
            if path.name != ".locks":
                yield str(path.relative_to(folder))


def _objects_left(stack: Running) -> list[str]:
    """What `trimtab clean` would remove from the store if it did not wait for days."""
    with stack.store() as store:
        found = unneeded(store, reports_since=0.0, written_before=store.objects.now() + 60.0)
    return [f"{each.root}: {each.why}" for each in found]


def _tables(chaos: Chaos) -> str:
    lines = ["| seed | kills | seconds | faults |", "|---|---|---|---|"]
    total: Counter[str] = Counter()
    for batch in chaos.batches:
        total += batch.kills
        lines.append(
            f"| {batch.seed} | {_counted(batch.kills)} | {batch.seconds:.0f} | {batch.num_faults} |"
        )
    lines.append(
        f"| all | {total.total()}: {_counted(total)} | "
        f"{sum(batch.seconds for batch in chaos.batches):.0f} | {chaos.findings.num_faults} |"
    )
    lines += ["", "| looked at | number | faults |", "|---|---|---|"]
    for check in CHECKS:
        number = chaos.findings.looked_at[check]
        lines.append(f"| {check} | {number} | {len(chaos.findings.faults[check])} |")
    return "\n".join(lines)


def _counted(kills: Mapping[str, int]) -> str:
    return ", ".join(f"{kills[kind]} {kind}" for kind in VICTIMS if kills.get(kind))


if __name__ == "__main__":
    sys.exit(main())
