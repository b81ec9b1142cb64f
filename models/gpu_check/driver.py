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
from pathlib import Path
from typing import Any, NoReturn

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
    """What a part is given, and where it notes what it finds.

    work: a folder that all parts share. out: for traces. device: cuda or cpu. results: of earlier
    parts. until: when the part must be done, as time.monotonic(). path: of what is noted.
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

    def note(self, name: str, value: float | str, unit: str = "", **more: Any) -> None:
        """Keep a value, whatever becomes of the part; it goes to the log too.

        A rehearsal meets and misses no targets.
        """
        if self.device == "cpu":
            more = {key: each for key, each in more.items() if key not in ("target", "met")}
        self.values.append({"name": name, "value": value, "unit": unit, **more})
        _write(self.path, self.values)
        print(f"{name}: {value} {unit} {more or ''}", flush=True)

    def found(self, part: str, name: str) -> Any:
        """A value of an earlier part; None where there is none."""
        values = (each["values"] for each in self.results if each["part"] == part)
        return next((v["value"] for some in values for v in some if v["name"] == name), None)


def check(
    parts: Sequence[Part], request: dict[str, Any], out: Path, work: Path, started: float
) -> int:
    """Run the parts, write results.json and log.txt, print the table; returns the exit status.

    started: when the command began, as time.monotonic(). This process never asks CUDA for
    anything, as what it forks could not use it then.
    """
    has_gpu = not request["rehearse"] and status_of(forked(_sees_gpu)) == 0
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
            results.append(_row(name, None, 0.0, [], why=reason))
        else:
            most = 60 * part.most * (1 if has_gpu else PATIENCE)
            until = min(end, time.monotonic() + most)
            device = "cuda" if has_gpu else "cpu"
            path = work / "values.json"
            path.unlink(missing_ok=True)
            bench = Bench(work, out, device, request, results, until, path)
            print(f"{name} ...", flush=True)
            results.append(_run(part, bench, out / LOG))
        head |= _card(results)
        _write(out / RESULTS, {**head, "seconds": _since(started), "parts": results})
    print(table({**head, "seconds": _since(started), "parts": results}))
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
    """One part, in a session of its own that is killed at its deadline, with all it has started."""
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        stream.write(f"== {part.name}\n")
    begin = log.stat().st_size
    child = os.fork()
    if child == 0:
        die_with_parent()
        os.setsid()
        module, _, name = part.function.partition(":")
        _exit_as(lambda: getattr(importlib.import_module(module), name)(bench), log)
    try:
        status = _wait(child, bench.until)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it left behind
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    with log.open(errors="replace") as stream:
        stream.seek(begin)
        last = stream.read().splitlines()[-LAST_LINES:]
    values = json.loads(bench.path.read_text()) if bench.path.exists() else []
    seconds = _since(start)
    if status is None:
        return _row(part.name, False, seconds, values, last, f"it took longer than {seconds:.0f} s")
    if status == LEFT_OUT:
        return _row(part.name, None, seconds, values, last, last[-1] if last else "")
    if status < 0:
        return _row(
            part.name, False, seconds, values, last, f"killed by {signal.Signals(-status).name}"
        )
    why = None if status == 0 else (last[-1] if last else f"exit status {status}")
    return _row(part.name, status == 0, seconds, values, last, why)


def _wait(child: int, until: float) -> int | None:
    """The exit status of a child, negative for a signal; None if it is not done in time."""
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def forked(function: Callable[[], None], log: Path | None = None) -> int:
    """Run a function in a fork that dies with this process; returns its process id.

    log: where its output goes; None: where this process's does.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        die_with_parent()
        _exit_as(function, log)
    return child


def status_of(child: int) -> int:
    """The exit status of a fork once it has ended, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _exit_as(function: Callable[[], None], log: Path | None) -> NoReturn:
    """End this process by what the function does: 0, its SystemExit, LEFT_OUT, or 1."""
    code = 1
    try:
        if log is not None:
            stream = log.open("a", buffering=1)
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.stdout = sys.stderr = stream
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except LeftOutError as reason:
        code = LEFT_OUT
        print(reason)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _sees_gpu() -> None:
    import torch

    raise SystemExit(0 if torch.cuda.is_available() else 1)


def _row(
    name: str,
    ok: bool | None,
    seconds: float,
    values: list[dict[str, Any]],
    last: Sequence[str] = (),
    why: str | None = None,
) -> dict[str, Any]:
    found = {"part": name, "ok": ok, "seconds": seconds, "values": values, "last": list(last)}
    return found if why is None else {**found, "why": why}


def _head(request: dict[str, Any], is_rehearsal: bool) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for name in NAMED_VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    given = {name: value for name, value in request.items() if name != "smoke"}
    return {
        "card": None,
        "is_rehearsal": is_rehearsal,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions,
        "warnings": untested_versions(versions),
        "code": _digest_of_code(),
        "arguments": given,
    }


def untested_versions(versions: dict[str, str]) -> list[str]:
    """A line for each library whose version is outside of the tested range."""
    try:
        asked = map(Requirement, metadata.requires("trimtab") or ())
    except metadata.PackageNotFoundError:
        return ["trimtab is not installed: nothing tells which versions are tested"]
    return [
        f"{each.name} {versions[each.name]}: tested is {each.specifier}"
        for each in asked
        if each.marker is None and each.name in versions
        if not each.specifier.contains(versions[each.name], prereleases=True)
    ]


def _digest_of_code() -> str:
    """Of all modules of models/: what was measured."""
    found = hashlib.sha256()
    folder = ROOT / "models" if (ROOT / "models").is_dir() else ROOT / "trimtab" / "models"
    for path in sorted(folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _card(results: list[dict[str, Any]]) -> dict[str, Any]:
    values = [v for row in results for v in row["values"] if v["name"] == "card"]
    return {"card": values[0]["value"]} if values else {}


def _since(start: float) -> float:
    return round(time.monotonic() - start, 1)


def _write(path: Path, content: Any) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)
