"""Stage `judge_preferences`: a judge model compares the answers of preference pairs.

Its probabilities are soft labels; how often it agrees with the labels given is its alignment
([RLAIF] Lee et al., arXiv 2309.00267, sections 2.1 and 2.3). Every answer is kept on disk as it
comes, so that a run that was killed asks nothing twice; what is finished is a checkpoint besides,
from which a run that was stopped goes on elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config_judge import JudgePreferencesConfig
from models.engine import signals
from models.engine.checkpoint import newest_checkpoint, save_checkpoint
from models.engine.data import read_rows, write_rows
from models.engine.progress import Progress, write_json
from models.functional.judgement import bootstrap_interval
from models.functional.verdicts import alignment, debiased_preference, order_verdicts
from models.judging.asking import StoppedError
from models.judging.chat import Usage
from models.judging.judge import Comparison, Judge
from models.judging.opening import open_judge

CONFIG = JudgePreferencesConfig
Row = dict[str, Any]

# A checkpoint holds all rows so far: parts that are done quickly share one.
SECONDS_BETWEEN_CHECKPOINTS = 30.0


def run(config: JudgePreferencesConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`. Output: judgements.jsonl, a row a pair.

    id, split; preference: the probability that the chosen answer is better, mean of shown_first
    and shown_second, by where it was shown; verdict 1, 0 or -1; num_unparsed, of both orders'
    answers; prompt_tokens, completion_tokens, cost in the currency of the endpoint's prices.
    """
    pairs = [row for split in config.splits for row in _pairs(config, inputs, split)]
    work = _Work.resumed(workdir)
    judge = open_judge(config.judge, workdir, config.seed, signals.stop_requested)
    judge.asker.budget.count(sum((_usage(row) for row in work.rows), Usage()))
    judge.asker.remember(work.answers)
    progress = Progress(workdir)
    while len(work.rows) < len(pairs):
        part = pairs[len(work.rows) :][: config.pairs_at_once]
        try:
            work.rows += _judged(judge, part, progress, len(work.rows), len(pairs))
        except StoppedError:
            work.answers = judge.asker.known()
            work.save(workdir)
            signals.stop()
        judge.asker.forget()
        progress.log(len(work.rows), {**_measures(work.rows), **_spending(judge)})
        work.save_if_due(workdir)
    write_rows(workdir / "output" / "judgements.jsonl", work.rows)
    write_json(workdir / "output" / "summary.json", _summary(config, work.rows))


def _pairs(config: JudgePreferencesConfig, inputs: dict[str, Path], split: str) -> list[Row]:
    path = inputs["preferences"] / f"{split}.jsonl"
    rows = read_rows(path)[: config.max_pairs]
    if not rows:
        raise ValueError(f"{path} holds no pairs: nothing to judge; leave {split!r} out of splits")
    return [{**row, "split": split} for row in rows]


@dataclass
class _Work:
    """Rows of the pairs judged so far, and answers on the way to further ones."""

    rows: list[Row] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    step: int = 0
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def resumed(cls, workdir: Path) -> _Work:
        """From the newest checkpoint; from now on a request to stop waits for the answers."""
        state = newest_checkpoint(workdir) or {}
        return cls(state.get("rows", []), state.get("answers", {}), state.get("step", 0))

    def save(self, workdir: Path) -> None:
        self.step += 1
        save_checkpoint(workdir, self.step, {"rows": self.rows, "answers": self.answers})
        self.saved_at = time.monotonic()

    def save_if_due(self, workdir: Path) -> None:
        """Between two parts, where no answers are on the way."""
        self.answers = {}
        if time.monotonic() - self.saved_at >= SECONDS_BETWEEN_CHECKPOINTS:
            self.save(workdir)


def _judged(
    judge: Judge, pairs: list[Row], progress: Progress, num_before: int, num_pairs: int
) -> list[Row]:
    """Rows of a part of the pairs; progress is told in whole percent of all."""
    answers = 0

    def on_answer() -> None:
        nonlocal answers
        before, now = (
            100 * (num_before + count // judge.answers_per_pair) // num_pairs
            for count in (answers, answers + 1)
        )
        answers += 1
        if now > before:
            progress.advance(num_before + answers // judge.answers_per_pair, num_pairs)

    verdicts = judge.compare(
        [Comparison(pair["prompt"], pair["chosen"], pair["rejected"]) for pair in pairs], on_answer
    )
    first = _column([verdict.shown_first for verdict in verdicts])
    second = _column([verdict.shown_second for verdict in verdicts])
    preference, _ = debiased_preference(first, second)
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
            "prompt_tokens": verdict.usage.prompt_tokens,
            "completion_tokens": verdict.usage.completion_tokens,
            "cost": judge.asker.budget.cost(verdict.usage),
        }
        for pair, verdict, value, outcome in zip(
            pairs, verdicts, preference.tolist(), wins.tolist(), strict=True
        )
    ]


def _measures(rows: list[Row]) -> dict[str, float]:
    """Alignment with the labels given, position bias and ties of judged pairs."""
    first = _column([row["shown_first"] for row in rows])
    second = _column([row["shown_second"] for row in rows])
    preference, bias = debiased_preference(first, second)
    return {
        "alignment": float(alignment(preference).mean()),
        "mean_preference": float(preference.mean()),
        **{name: float(value) for name, value in bias.items()},
        "share_tied": sum(row["verdict"] == 0 for row in rows) / len(rows),
        "num_unparsed": sum(row["num_unparsed"] for row in rows),
    }


def _spending(judge: Judge) -> dict[str, float]:
    """What this process has asked, and what all that was asked came to."""
    asker = judge.asker
    return {
        "num_asked": asker.num_asked,
        "num_known": asker.num_known,
        "num_retries": getattr(asker.model, "num_retries", 0),
        "tokens": asker.budget.spent.total,
        "cost": asker.budget.cost(asker.budget.spent),
    }


def _summary(config: JudgePreferencesConfig, rows: list[Row]) -> dict[str, float]:
    """Measures of all pairs; alignment of each split as well, with its bootstrap interval."""
    summary: dict[str, float] = {"num_pairs": len(rows), **_measures(rows)}
    for name in ("prompt_tokens", "completion_tokens", "cost"):
        summary[name] = sum(row[name] for row in rows)
    for split in config.splits:
        agrees = alignment(_column([row["preference"] for row in rows if row["split"] == split]))
        low, high = bootstrap_interval(agrees, num_resamples=config.num_resamples, seed=config.seed)
        summary[f"{split}_alignment"] = float(agrees.mean())
        summary[f"{split}_alignment_low"], summary[f"{split}_alignment_high"] = low, high
    return summary


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _usage(row: Row) -> Usage:
    return Usage(row["prompt_tokens"], row["completion_tokens"])
