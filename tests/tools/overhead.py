"""What orchestration costs beyond the trainers: a smoke run on the one-server stack, and again.

    python -m tests.tools.overhead --runs 3

Prints a table, in seconds. `stages` is the time in which at least one stage was being computed
(inputs fetched, trained, published), from the run's MLflow timeline; `around a trainer` is what a
stage takes beyond its trainer, on average. The second run finds every stage in the store.
"""

from __future__ import annotations

import argparse
import time
from statistics import mean

from tests.flows.running_stack import Running, Span, running_stack


def main() -> None:
    """Run, run again, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.overhead")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print("| seed | run | stages | between stages | around a trainer | run again |")
    print("|---|---|---|---|---|---|")
    with running_stack() as stack:
        for seed in range(options.runs):
            wall = _run(stack, seed)
            spans = list(stack.timeline(f"smoke-seed{seed}").values())
            busy, manifests = _covered(spans), stack.manifests()
            seconds = {key: entry.seconds for key, entry in manifests.items() if entry is not None}
            around = mean(entry.end - entry.start - seconds[entry.key] for entry in spans)
            again = _run(stack, seed)
            figures = [wall, busy, wall - busy, around, again]
            print(
                f"| {seed} | " + " | ".join(f"{entry:.1f}" for entry in figures) + " |", flush=True
            )


def _run(stack: Running, seed: int) -> float:
    """Wall seconds from asking for a run to its end."""
    started = time.monotonic()
    run = stack.start("rlhf", {"recipe": "smoke", "changes": {"seed": seed}}).json()
    end = stack.end_of(run)
    if end["type"] != "COMPLETED":
        raise RuntimeError(f"it ended {end['name']}: {end['message']}")
    return time.monotonic() - started


def _covered(spans: list[Span]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


if __name__ == "__main__":
    main()
