"""What a policy took beyond SFT, counted alike for all arms: along its lineage back to SFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.report.artifacts import Artifacts
from models.report.config import LineageEntry

# Stages whose policies all arms start from.
STARTS = ("sft", "constitutional_sft")


@dataclass(frozen=True)
class Budget:
    """num_sampled: responses sampled to train on; num_updates: gradient updates of the policy;
    num_trained_tokens: passed forward and backward, counted for each model that learned from them;
    seconds: of the stages that made it.
    """

    num_sampled: int
    num_updates: int
    num_trained_tokens: int
    seconds: float


def budget_of(artifacts: Artifacts, lineage: Sequence[LineageEntry], role: str) -> Budget | None:
    """The budget of the policy that plays `role`; None for SFT, and where lineage has none.

    Counted are the policy's own stage, the answers it learned from or rehearsed, and the same of
    the policy it went on from. Scorers are not: what they took serves all arms.
    """
    by_key = {entry.key: entry for entry in lineage}
    waiting = [entry.key for entry in lineage if entry.role == role]
    counted: set[str] = set()
    totals = dict.fromkeys(("num_sampled", "num_updates", "num_trained_tokens"), 0)
    seconds = 0.0
    while waiting:
        key = waiting.pop()
        entry = by_key.get(key)
        if entry is None or entry.stage in STARTS or key in counted:
            continue
        counted.add(key)
        summary = artifacts.document(entry.role, "summary.json")
        for name in totals:
            totals[name] += round(summary.get(name, 0))
        seconds += entry.seconds
        waiting += [
            parent["key"]
            for name, parent in entry.parents.items()
            if name in ("policy", "rehearsal") or name.startswith("answers_")
        ]
    return Budget(**totals, seconds=seconds) if counted else None
