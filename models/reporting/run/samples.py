"""Sample dialogues before and after: the same prompts, answered by SFT and by the final policy.

Some are drawn at random, so that nobody picks them; beside them the largest gains and losses.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from trimtab.models.reporting.kit.artifacts import Artifacts, Row

NUM_RANDOM, NUM_EXTREME = 5, 3


@dataclass(frozen=True)
class Sample:
    """One prompt with both answers and how each was judged."""

    place: str
    prompt: str
    before: str
    after: str
    judged_before: float
    judged_after: float


@dataclass(frozen=True)
class SampleGroup:
    """Samples chosen in one way, which `title` names."""

    title: str
    samples: list[Sample]


def sample_groups(artifacts: Artifacts, role: str, measure: str, seed: int) -> list[SampleGroup]:
    """Random samples of the main and forget sets, and the extremes of the main set."""
    before, after = (artifacts.rows(name, "responses.jsonl") for name in ("eval_sft", role))
    if not before or [row["prompt"] for row in before] != [row["prompt"] for row in after]:
        return []
    rng = random.Random(f"samples/{seed}")
    groups = []
    for place, title in (("main", "main test prompts"), ("forget", "forget set")):
        pairs = [(a, b) for a, b in zip(before, after, strict=True) if a["set"] == place]
        if not pairs:
            continue
        drawn = rng.sample(pairs, min(NUM_RANDOM, len(pairs)))
        groups.append(SampleGroup(f"Drawn at random from the {title}", _samples(drawn, measure)))
        ordered = sorted(pairs, key=lambda pair: pair[1][measure] - pair[0][measure])
        gains = [pair for pair in ordered[::-1] if pair[1][measure] > pair[0][measure]]
        losses = [pair for pair in ordered if pair[1][measure] < pair[0][measure]]
        for word, chosen in (("gains", gains), ("losses", losses)):
            if chosen:
                part = _samples(chosen[:NUM_EXTREME], measure)
                groups.append(SampleGroup(f"Largest {word} on the {title}", part))
    return groups


def _samples(pairs: list[tuple[Row, Row]], measure: str) -> list[Sample]:
    return [
        Sample(a["set"], a["prompt"], a["response"], b["response"], a[measure], b[measure])
        for a, b in pairs
    ]
