"""Parts in turn, each a process with a deadline; results.json is whole after every one of them.

results.json: {"card", "is_rehearsal", "date", "versions", "warnings", "code", "arguments",
"parts": [...]}. A part: `part`, `ok` (null: left out, and `why`), `seconds`, `values`, `last` (of
its log). A value: `name`, `value`, `unit`; where there are several runs `least` and `most`; where
it is planned or promised `beside`, `target` and `met`. `groups` hold a kernel table.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from trimtab.models.config.packages import ROOT
from trimtab.models.gpu_check.parts import Part
from trimtab.models.gpu_check.table import table
from trimtab.models.training.signals import die_with_parent

RESULTS, LOG = "results.json", "log.txt"
LEFT_OUT = 77  # exit status of a part that cannot run here
REHEARSED = 3  # of the command: nothing failed, and nothing was measured
LAST_LINES = 12
PATIENCE = 4  # in a rehearsal deadlines are so many times longer
NAMED_VERSIONS = """
torch transformers accelerate peft sentence-transformers tokenizers numpy pydantic trl datasets
deepspeed liger-kernel triton
""".split()


class LeftOutError(Exception):
    """A part that cannot run here, and why: no failure."""


class WrongError(Exception):
    """Numbers that are wrong."""


@dataclass
class Bench:
    """The inputs of a part, and the values that it notes.

    work: a folder that all parts share. out: for traces. device: cuda or cpu. results: of earlier
    parts. until: the deadline, as time.monotonic(). path: of the file with the values.
    request: minutes for all parts; pairs, a file (null: made up); parts by name (none: all);
    rehearse, on the CPU although there is a GPU; peers, a folder with wheels of TRL and what it
    needs; smoke, the configurations of recipe smoke's stages.
    """

    work: Path
    out: Path
    device: str
    request: dict[str, Any]
    results: list[dict[str, Any]]
    until: float
    path: Path
    values: list[dict[str, Any]] = field(default_factory=list)

    def note(
        self,
        name: str,
        value: float | str,
        unit: str = "",
        at_least: float | None = None,
        **more: Any,
    ) -> None:
        """Keep a value, whatever becomes of the part; it goes to the log too.

        at_least: what was promised of it. A rehearsal meets and misses no targets.
        """
        if at_least is not None:
            more |= {"target": f"at least {at_least} {unit}", "met": float(value) >= at_least}
        if self.device == "cpu":
            more = {key: detail for key, detail in more.items() if key not in ("target", "met")}
        self.values.append({"name": name, "value": value, "unit": unit, **more})
        _write(self.path, self.values)
        print(f"{name}: {value} {unit} {more or ''}", flush=True)

    def earlier_value(self, part: str, name: str) -> Any:
        """A value of an earlier part; None where there is none."""
        rows = [row for row in self.results if row["part"] == part]
        values = {value["name"]: value["value"] for row in rows for value in row["values"]}
        return values.get(name)


def check(
    parts: Sequence[Part], request: dict[str, Any], out: Path, work: Path, started: float
) -> int:
    """Run the parts, write results.json and log.txt, print the table; returns the exit status.

    started: when the command began, as time.monotonic(). This process never asks CUDA for
    anything, as what it forks could not use it then.
    """
    has_gpu = not request["rehearse"] and status_of(forked(_sees_gpu)) == 0
    device = "cuda" if has_gpu else "cpu"
    head = _head(request, not has_gpu)
    for line in head["warnings"]:
        print(line, flush=True)
    (out / LOG).unlink(missing_ok=True)
    results: list[dict[str, Any]] = []
    end = started + 60 * request["minutes"]
    for part in parts:
        name = part.name
        reason = _reason_to_leave_out(part, results, end - time.monotonic())
        if reason is not None:
            results.append(_row(name, None, reason))
        else:
            most = 60 * part.most * (1 if has_gpu else PATIENCE)
            until = min(end, time.monotonic() + most)
            path = work / "values.json"
            path.unlink(missing_ok=True)
            bench = Bench(work, out, device, request, results, until, path)
            print(f"{name} ...", flush=True)
            results.append(_run(part, bench, out / LOG))
        values = [value for row in results for value in row["values"]]
        head["card"] = next((v["value"] for v in values if v["name"] == "card"), None)
        content = {**head, "seconds": _since(started), "parts": results}
        _write(out / RESULTS, content)
    print(table(content))
    failed = next((row for row in results if row["ok"] is False), None)
    if failed is not None:
        print(f"first failure: {failed['part']}: {failed['why']}; see {out / LOG}")
        return 1
    return 0 if has_gpu else REHEARSED


def _reason_to_leave_out(part: Part, results: list[dict[str, Any]], left: float) -> str | None:
    done = {row["part"]: row["ok"] for row in results}
    missing = [name for name in part.needs if not done.get(name)]
    if missing:
        return f"it needs {', '.join(missing)}"
    if left < 60 * part.least:
        return f"it takes {60 * part.least:.0f} s, and {max(0, left):.0f} s are left"
    return None


def _run(part: Part, bench: Bench, log: Path) -> dict[str, Any]:
    """One part, in another session that is killed at its deadline, with all it has started."""
    start = time.monotonic()
    with log.open("a") as stream:
        stream.write(f"== {part.name}\n")
    begin = log.stat().st_size

    def measure() -> None:
        os.setsid()
        module, _, name = part.function.partition(":")
        getattr(importlib.import_module(module), name)(bench, **part.options)

    child = forked(measure, log)
    assert child.pid is not None
    try:
        child.join(max(0.0, bench.until - time.monotonic()))
        status = child.exitcode
    finally:
        child.kill()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it left behind
        child.join()
    with log.open(errors="replace") as stream:
        stream.seek(begin)
        last = stream.read().splitlines()[-LAST_LINES:]
    seconds = _since(start)
    ok = None if status == LEFT_OUT else status == 0
    why = last[-1] if last else f"exit status {status}"
    if status is None:
        why = f"it took longer than {seconds:.0f} s"
    elif status < 0:
        why = f"killed by {signal.Signals(-status).name}"
    values = json.loads(bench.path.read_text()) if bench.path.exists() else []
    return _row(part.name, ok, None if ok else why, seconds, values, last)


def forked(function: Callable[[], None], log: Path | None = None) -> ForkProcess:
    """Run a function in a fork that dies with this process: LEFT_OUT is LeftOutError's exit status.

    log: where its output goes; None: where this process's does.
    """

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with_parent()
        if log is not None:
            sys.stdout = sys.stderr = stream = log.open("a", buffering=1)
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        code = 1
        try:
            function()
            code = 0
        except LeftOutError as reason:
            print(reason)
            code = LEFT_OUT
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # a thread or child that is left would hold up another way to end

    child = multiprocessing.get_context("fork").Process(target=run)
    # What a signal's handler raises is lost where os.fork calls its hooks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child


def status_of(child: ForkProcess) -> int | None:
    """The exit status of a fork once it has ended, negative for a signal."""
    child.join()
    return child.exitcode


def _sees_gpu() -> None:
    import torch

    sys.exit(0 if torch.cuda.is_available() else 1)


def _row(
    name: str,
    ok: bool | None,
    why: str | None,
    seconds: float = 0.0,
    values: Sequence[dict[str, Any]] = (),
    last: Sequence[str] = (),
) -> dict[str, Any]:
    row = {"part": name, "ok": ok, "seconds": seconds, "values": [*values], "last": [*last]}
    return row if why is None else {**row, "why": why}


def _head(request: dict[str, Any], is_rehearsal: bool) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for name in NAMED_VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "card": None,
        "is_rehearsal": is_rehearsal,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions,
        "warnings": untested_versions(versions),
        "code": _digest_of_code(),
        "arguments": {name: value for name, value in request.items() if name != "smoke"},
    }


def untested_versions(versions: dict[str, str]) -> list[str]:
    """A line for each library whose version is outside of the tested range."""
    try:
        requirements = map(Requirement, metadata.requires("trimtab") or ())
    except metadata.PackageNotFoundError:
        return ["trimtab is not installed: nothing tells which versions are tested"]
    return [
        f"{library.name} {versions[library.name]}: tested is {library.specifier}"
        for library in requirements
        if library.marker is None and library.name in versions
        if not library.specifier.contains(versions[library.name], prereleases=True)
    ]


def _digest_of_code() -> str:
    """Of all modules of models/: what was measured."""
    digest = hashlib.sha256()
    folder = ROOT / "models" if (ROOT / "models").is_dir() else ROOT / "trimtab" / "models"
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _since(start: float) -> float:
    return round(time.monotonic() - start, 1)


def _write(path: Path, content: Any) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)
