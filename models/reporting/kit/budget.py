"""What a policy took beyond SFT, counted alike for all arms: along its lineage back to SFT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.models.config.reporting import LineageEntry
from trimtab.models.reporting.kit.artifacts import Artifacts

# Stages whose policies all arms start from.
STARTS = ("sft", "constitutional_sft")
# Of a stage's summary, what adds up.
COUNTS = ("num_sampled", "num_updates", "num_trained_tokens", "judge_tokens")


@dataclass(frozen=True)
class Budget:
    """num_sampled: responses sampled to train on; num_updates: gradient updates of the policy;
    num_trained_tokens: passed forward and backward, counted for each model that learned from them;
    seconds: of the stages that made it; judge_tokens, judge_cost: of a judge that rated what it
    learned from, the cost in the currency of its prices; samples_per_answer: responses sampled each
    time it answers, of which one is given.
    """

    num_sampled: int = 0
    num_updates: int = 0
    num_trained_tokens: int = 0
    seconds: float = 0.0
    judge_tokens: int = 0
    judge_cost: float = 0.0
    samples_per_answer: int = 1


def budget_of(
    artifacts: Artifacts, lineage: Sequence[LineageEntry], role: str, evaluation: str
) -> Budget | None:
    """The budget of the policy that plays `role`, its answers `evaluation`; None for SFT, and where
    lineage has none.

    Counted are the policy's own stage, the answers it learned from or rehearsed, and the same of
    the policy it went on from. Scorers are not, nor a judge that labels pairs for all: what they
    took serves all arms. The best of n answers has no policy of its own, but n samples an answer.
    """
    samples = _samples_per_answer(artifacts, evaluation)
    by_key = {entry.key: entry for entry in lineage}
    waiting = [entry.key for entry in lineage if entry.role == role]
    counted: set[str] = set()
    totals = dict.fromkeys(COUNTS, 0)
    seconds = judge_cost = 0.0
    while waiting:
        key = waiting.pop()
        entry = by_key.get(key)
        if entry is None or entry.stage in STARTS or key in counted:
            continue
        counted.add(key)
        summary = artifacts.document(entry.role, "summary.json")
        for name in totals:
            totals[name] += round(summary.get(name, 0))
        judge_cost += summary.get("judge_cost", 0.0)
        seconds += entry.seconds
        waiting += [
            parent["key"]
            for name, parent in entry.parents.items()
            if name in ("policy", "rehearsal") or name.startswith("responses_")
        ]
    if not counted and samples == 1:
        return None
    return Budget(**totals, seconds=seconds, judge_cost=judge_cost, samples_per_answer=samples)


def _samples_per_answer(artifacts: Artifacts, evaluation: str) -> int:
    of_sets = artifacts.document(evaluation, "best_of_k.json").values()
    return max((found["k"][-1] for found in of_sets), default=1)


def budget_columns(budgets: Iterable[Budget | None]) -> dict[str, bool]:
    """Which columns a table has that only some methods need, by a template's names."""
    known = [budget for budget in budgets if budget is not None]
    return {
        "has_judge": any(budget.judge_tokens for budget in known),
        "has_samples": any(budget.samples_per_answer > 1 for budget in known),
    }
