"""A label audit of many pairs: time and memory of its reading, of all of it, and of its page.

    python -m tests.bench.large_audit --pairs 200000 --browser /usr/bin/chromium

Made rows of HH's length: prompts of 90 words, each once; answers of 45 words, of `--answers`
different ones, of which the kinder are the better ones but for a tenth of the labels; and fields
that mean nothing to Trimtab. Without a browser the page is not opened; `--read-only` stops after
reading.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.bench.browser import Browser, browser
from tests.bench.material import prose_of
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.stages import preferences
from trimtab.models.training.stage import Stage

KIND, UNKIND = (
    ("please", "gladly", "thanks", "together"),
    ("never", "stupid", "go away", "whatever"),
)
WRONG = 0.1
FRAMES = Path(__file__).parents[1] / "web" / "frames.js"
MIB = 1 << 20


def main() -> None:
    """Write the file, measure, print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large_audit")
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--browser")
    parser.add_argument("settings", nargs="*", help="of the audit, e.g. relabel.flip_below=0")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--reads", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reads is not None:
        print(json.dumps(_read(options.reads)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "raw"
        folder.mkdir()
        write(folder / "pairs.jsonl", options.pairs, options.answers)
        figures: dict[str, Any] = {"MB of the file": (folder / "pairs.jsonl").stat().st_size / 1e6}
        figures |= _in_a_process(folder)
        if not options.read_only:
            home = Path(scratch) / "home"
            figures |= audit(folder / "pairs.jsonl", home, options.settings)
            (page,) = (home / "reports").glob("*/audit.html")
            if options.browser:
                with browser(options.browser) as opened:
                    figures |= browser_times(opened, page, options.pairs)
    for name, value in figures.items():
        print(f"| {name} | {value:,.1f} |" if isinstance(value, float) else f"| {name} | {value} |")


def write(path: Path, number: int, num_answers: int) -> None:
    """Rows of pairs, a few words often."""
    rng = random.Random(0)
    prose = prose_of(rng)

    def answers(marks: tuple[str, ...]) -> list[str]:
        texts = [prose(45) for _ in range(num_answers // 2)]
        return [
            " ".join([*words, rng.choice(marks), *words[:3], rng.choice(marks)]) for words in texts
        ]

    kind, unkind = answers(KIND), answers(UNKIND)
    with path.open("w", encoding="utf-8") as lines:
        for index in range(number):
            pair = [rng.choice(kind), rng.choice(unkind)]
            pair = pair[::-1] if rng.random() < WRONG else pair
            row = {
                "id": f"row-{index}",
                "prompt": f"{index} {' '.join(prose(90))}",
                "chosen": pair[0],
                "rejected": pair[1],
                "category": f"part {index % 4}",
                "worker": f"w{rng.randrange(200)}",
                "meta": {"seconds": rng.randrange(600), "models": ["a", f"m{rng.randrange(9)}"]},
            }
            lines.write(json.dumps(row) + "\n")


def _in_a_process(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.large_audit", "--reads", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def _read(folder: Path) -> dict[str, Any]:
    """The stage that reads, checks and splits, and the largest memory of its process."""
    config = PreferencesConfig(sources=("pairs.jsonl",), validation_share=0, test_share=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started, computed = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        preferences.run(config, Stage({"source_0": folder}, Path(scratch)))
    took, computed = time.perf_counter() - started, time.process_time() - computed
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds to read": took,
        "seconds of it on a core": computed,
        "MiB of the reader": most,
        "MiB of its libraries": before,
    }


def audit(file: Path, home: Path, settings: Sequence[str]) -> dict[str, Any]:
    """The command, first start included, and the largest memory of its processes together."""
    environment = {**os.environ, "TRIMTAB_HOME": str(home)}
    command = [sys.executable, "-m", "trimtab", "audit", str(file), *settings]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    with _memory(process.pid) as most:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    took = time.perf_counter() - started
    print(output, file=sys.stderr)
    return {"seconds of the audit": took} | {f"MiB of {name}": n for name, n in most.items()}


@contextmanager
def _memory(pid: int) -> Iterator[dict[str, float]]:
    """The largest sum over a process and those below it, and the largest of one; shared pages of
    a forked process count for each."""
    most = {"all its processes": 0.0, "its largest process": 0.0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            sizes = []
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                try:
                    sizes.append(process.memory_full_info().pss / MIB)
                except psutil.Error:
                    continue
            if sizes:
                most["all its processes"] = max(most["all its processes"], sum(sizes))
                most["its largest process"] = max(most["its largest process"], max(sizes))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def browser_times(page: Browser, path: Path, number: int) -> dict[str, float]:
    """Seconds until a page of `number` pairs can be used, and of what a person does there.

    The longest time in which it does not answer is that between two frames.
    """
    figures = {}
    started = time.monotonic()
    page.open(path)
    page.wait("document.getElementById('content')?.children.length > 0")
    figures["seconds to the first pair"] = time.monotonic() - started
    page.wait("document.readyState === 'complete'")
    figures["seconds to the end of the page"] = time.monotonic() - started
    page.run(FRAMES.read_text("utf-8"))
    started = time.monotonic()
    _set(page, "kind", "contradicts it: looks wrong")
    figures["seconds to filter"] = time.monotonic() - started
    page.run("window.longest = 0")
    _set(page, "search", "no such word", "input")
    count = f"0 of {number:,} pairs"
    figures["seconds to search all texts"] = page.wait(
        f"document.getElementById('count').textContent === {count!r}"
    )
    figures["seconds without an answer meanwhile"] = page.run("window.longest") / 1000
    return figures


def _set(page: Browser, control: str, value: str, event: str = "change") -> None:
    page.run(
        f"(() => {{ const control = document.getElementById({control!r});"
        f"control.value = {value!r}; control.dispatchEvent(new Event({event!r})); }})()"
    )


if __name__ == "__main__":
    main()
