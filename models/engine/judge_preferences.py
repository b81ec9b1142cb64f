"""Stage `judge_preferences`: a judge model compares the answers of preference pairs.

Its probabilities are soft labels; how often it agrees with the labels given is its alignment
([RLAIF] Lee et al., arXiv 2309.00267, sections 2.1 and 2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config_judge import JudgePreferencesConfig
from models.engine import signals
from models.engine.asked_rows import SPENT, AskedRows, spent
from models.engine.data import rows_of, write_rows
from models.engine.progress import write_json
from models.functional.judgement import bootstrap_interval
from models.functional.verdicts import (
    alignment,
    clamped_preference,
    debiased_preference,
    order_verdicts,
)
from models.judging.judge import Comparison, Judge
from models.judging.opening import open_judge

CONFIG = JudgePreferencesConfig
Row = dict[str, Any]


def run(config: JudgePreferencesConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, and `constitution` where the judge has one of one's own.

    Output: judgements.jsonl, a row a pair. id, split; preference: the probability that the chosen
    answer is better, mean of shown_first and shown_second, by where it was shown, within the
    judge's `clamp`; verdict 1, 0 or -1; num_unparsed, of both orders' answers; prompt_tokens,
    completion_tokens, cost in the currency of the endpoint's prices.
    """
    pairs = [row for split in config.splits for row in _pairs(config, inputs, split)]
    work = AskedRows.resumed(workdir)
    judge = open_judge(
        *(config.judge, workdir, config.seed, signals.stop_requested, inputs.get("constitution"))
    )

    def judged(part: Sequence[Row], on_answer: Callable[[], None]) -> list[Row]:
        return _judged(judge, part, on_answer)

    rows = work.complete(
        *(judge.asker, pairs, judged, _measures),
        at_once=config.pairs_at_once,
        answers_per_item=judge.answers_per_pair,
    )
    write_rows(workdir / "output" / "judgements.jsonl", rows)
    write_json(workdir / "output" / "summary.json", _summary(config, rows))


def _pairs(config: JudgePreferencesConfig, inputs: dict[str, Path], split: str) -> list[Row]:
    """The first pairs of a split, of the wanted categories; ValueError where there are none."""
    rows = rows_of(inputs["preferences"] / f"{split}.jsonl", config.categories, what="pairs")
    return [{**row, "split": split} for row in rows[: config.max_pairs]]


def _judged(judge: Judge, pairs: Sequence[Row], on_answer: Callable[[], None]) -> list[Row]:
    """Rows of a part of the pairs."""
    verdicts = judge.compare(
        [Comparison(pair["prompt"], pair["chosen"], pair["rejected"]) for pair in pairs], on_answer
    )
    first = _column([verdict.shown_first for verdict in verdicts])
    second = _column([verdict.shown_second for verdict in verdicts])
    preference, _ = debiased_preference(first, second)
    if judge.config.clamp is not None:
        preference = clamped_preference(preference, *judge.config.clamp)
    wins = order_verdicts(first, second)
    return [
        {
            "id": pair["id"],
            "split": pair["split"],
            "preference": value,
            "shown_first": verdict.shown_first,
            "shown_second": verdict.shown_second,
            "verdict": int(outcome),
            "num_unparsed": verdict.num_unparsed,
            **spent(judge.asker, verdict.usage),
        }
        for pair, verdict, value, outcome in zip(
            pairs, verdicts, preference.tolist(), wins.tolist(), strict=True
        )
    ]


def _measures(rows: list[Row]) -> dict[str, float]:
    """Alignment with the labels given, position bias and ties of judged pairs."""
    first = _column([row["shown_first"] for row in rows])
    second = _column([row["shown_second"] for row in rows])
    _, bias = debiased_preference(first, second)
    preference = _column([row["preference"] for row in rows])
    return {
        "alignment": float(alignment(preference).mean()),
        "mean_preference": float(preference.mean()),
        **{name: float(value) for name, value in bias.items()},
        "share_tied": sum(row["verdict"] == 0 for row in rows) / len(rows),
        "num_unparsed": sum(row["num_unparsed"] for row in rows),
    }


def _summary(config: JudgePreferencesConfig, rows: list[Row]) -> dict[str, float]:
    """Measures of all pairs; alignment of each split as well, with its bootstrap interval."""
    summary: dict[str, float] = {"num_pairs": len(rows), **_measures(rows)}
    for name in SPENT:
        summary[name] = sum(row[name] for row in rows)
    for split in config.splits:
        agrees = alignment(_column([row["preference"] for row in rows if row["split"] == split]))
        low, high = bootstrap_interval(agrees, num_resamples=config.num_resamples, seed=config.seed)
        summary[f"{split}_alignment"] = float(agrees.mean())
        summary[f"{split}_alignment_low"], summary[f"{split}_alignment_high"] = low, high
    return summary


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")
