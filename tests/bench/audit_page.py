"""The label audit's page with many pairs: its weight, and how long a browser takes with it.

python -m tests.bench.audit_page --browser /usr/bin/chromium --pairs 150000
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.material import prose_of
from tests.tools.audit_page import PAIR, SHOWN, give, write
from tests.tools.browser import Browser, browser
from trimtab.models.reporting.audit.pairs import AuditedPair

FRAMES = Path(__file__).parents[1] / "web" / "frames.js"


def main() -> None:
    """Write a page, load it, print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_page")
    parser.add_argument("--browser", required=True)
    parser.add_argument("--pairs", type=int, default=150_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser(options.browser) as page:
        for name, value in measure(page, Path(folder), options.pairs).items():
            print(
                f"| {name} | {value:,.1f} |"
                if isinstance(value, float)
                else f"| {name} | {value:,} |"
            )


def many_pairs(number: int) -> list[AuditedPair]:
    """Pairs as long as HH's: prompts of 90 words, answers of 45, a few words often; ten members."""
    rng = random.Random(0)
    prose = prose_of(rng)
    pairs = []
    for index in range(number):
        strength = rng.gauss(0.8, 1.0)
        pairs.append(
            replace(
                PAIR,
                id=f"p-{rng.getrandbits(64):016x}",
                prompt=" ".join(prose(90)),
                chosen=" ".join(prose(45)),
                rejected=" ".join(prose(45)),
                category=f"part {index % 4}",
                strength_mean=strength,
                differences=tuple(rng.gauss(strength, 0.5) for _ in range(10)),
            )
        )
    return pairs


def measure(page: Browser, folder: Path, number: int) -> dict[str, Any]:
    """Weight and times by name."""
    pairs = many_pairs(number)
    started = time.process_time()
    path = write(pairs, folder / "audit.html")
    found: dict[str, Any] = {
        "pairs": number,
        "million characters": sum(len(p.prompt + p.chosen + p.rejected) for p in pairs) / 1e6,
        "page, MB": path.stat().st_size / 1e6,
        "seconds to write it, CPU": time.process_time() - started,
    }
    return found | browser_times(page, path, number)


def browser_times(page: Browser, path: Path, number: int) -> dict[str, float]:
    """Seconds until a page of `number` pairs can be used, and of what a person does there.

    The longest time in which it does not answer is that between two frames.
    """
    found = {}
    started = time.monotonic()
    page.open(path)
    page.wait(SHOWN)
    found["seconds to the first pair"] = time.monotonic() - started
    page.wait("document.readyState === 'complete'")
    found["seconds to the end of the page"] = time.monotonic() - started
    page.run(FRAMES.read_text("utf-8"))
    started = time.monotonic()
    give(page, "kind", "contradicts it: looks wrong")
    found["seconds to filter"] = time.monotonic() - started
    page.run("window.longest = 0")
    give(page, "search", "no such word", "input")
    said = f"0 of {number:,} pairs"
    found["seconds to search all texts"] = page.wait(
        f"document.getElementById('count').textContent === {said!r}"
    )
    found["seconds without an answer meanwhile"] = page.run("window.longest") / 1000
    return found


if __name__ == "__main__":
    main()
