"""A trainer without torch: does what its job file says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import toy_preload


def main(job_path: str) -> None:
    """Act out the job's `do`."""
    path = Path(job_path)
    job = json.loads(path.read_text())
    ACTIONS[job["do"]](path.parent)


def report(workdir: Path) -> None:
    """Write what this process sees of its surroundings, and some metrics."""
    seen = {
        "preloaded_in": toy_preload.PROCESS,
        "pid": os.getpid(),
        "folder": os.getcwd(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "threads": os.environ["OMP_NUM_THREADS"],
        "extra": os.environ.get("TOY_EXTRA"),
        "stdin": sys.stdin.read(),
        "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
    }
    print("printed to the log")
    (workdir / "seen.json").write_text(json.dumps(seen))
    for step in range(3):
        with (workdir / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": step, "time": 1.0, "metrics": {"x": step}}) + "\n")


def fail(workdir: Path) -> None:
    """Raise after forty lines of output."""
    for number in range(40):
        print("line", number)
    raise ValueError("learning rate is negative")


def leave(workdir: Path) -> None:
    """Exit with a code after a hundred lines of output."""
    for number in range(100):
        print("line", number - 60)
    raise SystemExit(3)


def killed(workdir: Path) -> None:
    """Die as the out-of-memory killer would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash(workdir: Path) -> None:
    """Die of a segmentation fault."""
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep(workdir: Path) -> None:
    """Run until killed, with a child of its own."""
    child = subprocess.Popen(["sleep", "60"])
    (workdir / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)


def drain(workdir: Path) -> None:
    """Run until SIGTERM, then save and leave with the code for it."""
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    (workdir / "pids").write_text(str(os.getpid()))
    while not asked:
        time.sleep(0.01)
    (workdir / "saved").touch()
    raise SystemExit(75)


def stubborn(workdir: Path) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (workdir / "pids").write_text(str(os.getpid()))
    time.sleep(60)


ACTIONS = {
    action.__name__: action
    for action in (report, fail, leave, killed, crash, sleep, drain, stubborn)
}

if __name__ == "__main__":
    main(sys.argv[1])
