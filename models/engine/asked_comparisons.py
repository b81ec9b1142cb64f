"""What a judge says of pairs of answers, in both orders, as rows; resumed and stopped safely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config.judge import JudgeConfig
from models.engine import signals
from models.engine.asked_rows import AskedRows, spent
from models.functional.verdicts import clamped_preference, debiased_preference, order_verdicts
from models.judging.judge import Comparison, Judge
from models.judging.opening import open_judge

Row = dict[str, Any]


def ask_comparisons(
    config: JudgeConfig,
    pairs: Sequence[Comparison],
    workdir: Path,
    *,
    seed: int,
    at_once: int,
    constitution: Path | None,
    measures: Callable[[list[Row]], dict[str, float]],
) -> list[Row]:
    """A row a pair, in order; told to stop, it keeps what was answered and leaves.

    preference: the probability that the first answer is better, mean of shown_first and
    shown_second, by where it was shown, within the judge's `clamp`; verdict 1, 0 or -1;
    num_unparsed, of both orders' answers; what `spent` says. `measures` of the rows so far go into
    the metrics.
    """
    work = AskedRows.resumed(workdir)
    judge = open_judge(config, workdir, seed, signals.stop_requested, constitution)

    def judged(part: Sequence[Comparison], on_answer: Callable[[], None]) -> list[Row]:
        return _judged(judge, part, on_answer)

    return work.complete(
        *(judge.asker, pairs, judged, measures),
        at_once=at_once,
        answers_per_item=judge.answers_per_pair,
    )


def measures_of(rows: Sequence[Row]) -> dict[str, float]:
    """Position bias, ties and answers not understood of judged pairs; 0 of none."""
    if not rows:
        names = ("position_bias", "share_same_position", "share_tied", "num_unparsed")
        return dict.fromkeys(names, 0)
    first = column([row["shown_first"] for row in rows])
    second = column([row["shown_second"] for row in rows])
    _, bias = debiased_preference(first, second)
    return {
        **{name: float(value) for name, value in bias.items()},
        "share_tied": sum(row["verdict"] == 0 for row in rows) / len(rows),
        "num_unparsed": sum(row["num_unparsed"] for row in rows),
    }


def column(values: list[float]) -> Tensor:
    """Of n rows a float64 tensor (n,)."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _judged(judge: Judge, pairs: Sequence[Comparison], on_answer: Callable[[], None]) -> list[Row]:
    verdicts = judge.compare(pairs, on_answer)
    first = column([verdict.shown_first for verdict in verdicts])
    second = column([verdict.shown_second for verdict in verdicts])
    preference, _ = debiased_preference(first, second)
    if judge.config.clamp is not None:
        preference = clamped_preference(preference, *judge.config.clamp)
    wins = order_verdicts(first, second)
    return [
        {
            "preference": value,
            "shown_first": verdict.shown_first,
            "shown_second": verdict.shown_second,
            "verdict": int(outcome),
            "num_unparsed": verdict.num_unparsed,
            **spent(judge.asker, verdict.usage),
        }
        for verdict, value, outcome in zip(
            verdicts, preference.tolist(), wins.tolist(), strict=True
        )
    ]
