"""What revisions by a constitution changed, step by step, and examples of them.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073, section 3.1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.models.reporting.kit.artifacts import Artifacts, Row
from trimtab.models.statistics.estimates import mean_estimate, share_estimate
from trimtab.models.statistics.measured import Estimate
from trimtab.models.synthetic.gold import is_harmless, quality

NUM_EXAMPLES = 3


@dataclass(frozen=True)
class RevisionStep:
    """All answers behind a step; number 0: as the policy gave them.

    share_changed: answers that the step changed; words: mean length. gold, and share_harmless, of
    the answers to harmful prompts: None without the gold scorer, or such prompts.
    """

    number: int
    share_changed: float
    words: float
    num_unusable: int
    gold: Estimate | None
    share_harmless: Estimate | None


@dataclass(frozen=True)
class Revisions:
    """num_demonstrations: prompts of which a revision could be used; tokens, cost: of all asked."""

    num_prompts: int
    num_demonstrations: int
    steps: list[RevisionStep]
    tokens: int
    cost: float


def revisions(artifacts: Artifacts, has_gold: bool, seed: int) -> Revisions | None:
    """Measure the role `revisions`; None where the run has none."""
    rows = artifacts.rows("revisions", "revisions.jsonl")
    if not rows:
        return None
    count = len(rows[0]["steps"])
    steps = [_step(rows, number, has_gold, seed) for number in range(count + 1)]
    return Revisions(
        num_prompts=len(rows),
        num_demonstrations=len(artifacts.rows("revisions", "demonstrations.jsonl")),
        steps=steps,
        tokens=sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows),
        cost=sum(row["cost"] for row in rows),
    )


def revision_examples(artifacts: Artifacts, seed: int) -> list[Row]:
    """Some answers that changed, drawn at random, so that nobody picks them; with principle and
    critique of the first step that changed each."""
    rows = artifacts.rows("revisions", "revisions.jsonl")
    changed = [row for row in rows if _texts(row)[-1] != row["response"]]
    count = min(NUM_EXAMPLES, len(changed))
    examples = []
    for row in random.Random(f"revisions/{seed}").sample(changed, count):
        step = next(step for step in row["steps"] if step["revision"] != row["response"])
        texts = {"prompt": row["prompt"], "before": row["response"], "after": _texts(row)[-1]}
        examples.append({name: step[name] for name in ("principle", "critique")} | texts)
    return examples


def _texts(row: Row) -> list[str]:
    """The policy's answer, and what it was behind each step."""
    return [row["response"], *(step["revision"] for step in row["steps"])]


def _step(rows: Sequence[Row], number: int, has_gold: bool, seed: int) -> RevisionStep:
    texts = [_texts(row)[number] for row in rows]
    before = [_texts(row)[max(0, number - 1)] for row in rows]

    def gold_rates(measure: Callable[[str, str], float | None]) -> Tensor:
        """Of the answers of which gold has something to say; none without gold."""
        answers = zip(rows, texts, strict=True) if has_gold else ()
        rates = [measure(row["prompt"], text) for row, text in answers]
        known = [float(rate) for rate in rates if rate is not None]
        return torch.tensor(known, dtype=torch.float64)

    gold = gold_rates(quality)
    return RevisionStep(
        number=number,
        share_changed=sum(a != b for a, b in zip(texts, before, strict=True)) / len(rows),
        words=sum(len(text.split()) for text in texts) / len(rows),
        num_unusable=sum(not row["steps"][number - 1]["is_usable"] for row in rows)
        if number
        else 0,
        gold=mean_estimate(gold, seed) if len(gold) else None,
        share_harmless=share_estimate(gold_rates(is_harmless), None),
    )
