"""Evaluations of a few policies, written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

# By policy the gold score of each main prompt.
Golds = Mapping[str, Sequence[float]]
Write = Callable[..., dict[str, Path]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write one seed's evaluations; returns the folders by `<seed>.<policy>`.

    Held-out reward model 0 says the same as gold, and 1 the opposite. Answers have as many tokens
    as `lengths` say, 5 by default, and a KL of a tenth of the gold score; every other prompt is of
    the category harmless, the others helpful. The forget set repeats
    the main one's prompts with SFT's answers; one validation prompt is answered by all alike.
    """

    def _write(
        seed: int, golds: Golds, lengths: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, Path]:
        found = {}
        for policy, scores in golds.items():
            own = (lengths or {}).get(policy, [5] * len(scores))
            rows = [_row("main", n, gold, own[n]) for n, gold in enumerate(scores)]
            rows += [_row("forget", n, gold, 5) for n, gold in enumerate(golds["sft"])]
            rows.append(_row("validation", 0, 0.5, 5))
            folder = tmp_path / str(seed) / policy
            folder.mkdir(parents=True)
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "responses.jsonl").write_text(text)
            found[f"{seed}.{policy}"] = folder
        return found

    return _write


def _row(place: str, number: int, gold: float, length: int) -> dict[str, object]:
    return {
        "set": place,
        "prompt": f"prompt {number}",
        "category": "harmless" if number % 2 else "helpful",
        "gold": gold,
        "judge_0": gold,
        "judge_1": -gold,
        "judge_score": 0.0,
        "kl": gold / 10,
        "length": length,
    }
