"""Stage `judge`: win, tie or lose between two evaluated policies, with bootstrap intervals.

The gold scorer's verdict is reported only. Promotion is decided on held-out judgement: reward
models that no policy was ever optimised against, on the validation prompts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from models.config import EvaluateConfig
from models.engine.data import read_rows
from models.engine.progress import write_json
from models.functional.judgement import bootstrap_interval, win_tie_lose

CONFIG = EvaluateConfig
PROMOTION_SET = "validation"


def run(config: EvaluateConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `ours`, `theirs` (evaluate artifacts). Output: judgement.json."""
    ours = read_rows(inputs["ours"] / "responses.jsonl")
    theirs = read_rows(inputs["theirs"] / "responses.jsonl")
    if [row["prompt"] for row in ours] != [row["prompt"] for row in theirs]:
        raise ValueError("the two policies answered different prompts and cannot be compared")
    verdicts: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["set"] for row in ours):
        for measure in ("gold", "judge_score"):
            if measure not in ours[0]:
                continue
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a["set"] == name]
            verdicts[f"{name}_{measure}"] = _verdict(
                torch.tensor([a[measure] for a, _ in pairs], dtype=torch.float64),
                torch.tensor([b[measure] for _, b in pairs], dtype=torch.float64),
                config,
            )
    write_json(workdir / "output" / "judgement.json", verdicts)
    decisive = verdicts.get(f"{PROMOTION_SET}_judge_score", next(iter(verdicts.values())))
    flat = {
        f"{name}_{outcome}": verdict[outcome]
        for name, verdict in verdicts.items()
        for outcome in ("win", "tie", "lose", "net", "net_low", "net_high")
    }
    write_json(
        workdir / "output" / "summary.json",
        {**flat, "is_promoted": decisive["net_low"] > 0},
    )


def _verdict(ours: torch.Tensor, theirs: torch.Tensor, config: EvaluateConfig) -> dict[str, Any]:
    """Shares of win, tie and lose, the mean outcome (win 1, tie 0, lose -1) and its interval."""
    difference = ours - theirs
    outcome = torch.where(difference.abs() <= config.tie_margin, 0.0, difference.sign())
    low, high = bootstrap_interval(
        outcome, statistic="mean", num_resamples=config.num_resamples, seed=config.seed
    )
    low_difference, high_difference = bootstrap_interval(
        difference, statistic="mean", num_resamples=config.num_resamples, seed=config.seed
    )
    return {
        **win_tie_lose(ours, theirs, config.tie_margin),
        "net": float(outcome.mean()),
        "net_low": low,
        "net_high": high,
        "ours": float(ours.mean()),
        "theirs": float(theirs.mean()),
        "difference_low": low_difference,
        "difference_high": high_difference,
    }
