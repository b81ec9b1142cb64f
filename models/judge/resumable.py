"""What stages that ask a chat model have in common: rows made part by part, nothing asked twice.

Every answer is kept on disk as it comes, so that a run that was killed asks nothing twice; what is
finished is a checkpoint besides, from which a run that was stopped goes on elsewhere.

What a judge says of pairs of answers, in both orders, as rows; resumed and stopped safely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from models.config.judge import JudgeConfig
from models.functional.verdicts import clamped_preference, debiased_preference, order_verdicts
from models.judge.asking import Asker, StoppedError
from models.judge.build import open_judge
from models.judge.chat import Usage
from models.judge.judge import Comparison, Judge
from models.training import signals
from models.training.checkpoint import newest_checkpoint, save_checkpoint
from models.training.progress import Progress

Row = dict[str, Any]
# What rows are made of.
Item = TypeVar("Item")
# Rows of a part of the items; its second argument is called for every answer.
MakeRows = Callable[[Sequence[Item], Callable[[], None]], list[Row]]
SPENT = ("prompt_tokens", "completion_tokens", "cost")

# A checkpoint holds all rows so far: parts that are done quickly share one.
SECONDS_BETWEEN_CHECKPOINTS = 30.0


@dataclass
class AskedRows:
    """Rows of the items that are finished so far, and answers on the way to further ones."""

    workdir: Path
    rows: list[Row] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    step: int = 0
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def resumed(cls, workdir: Path) -> AskedRows:
        """From the newest checkpoint; from now on a request to stop waits for the answers."""
        state = newest_checkpoint(workdir) or {}
        found = (state.get("rows", []), state.get("answers", {}), state.get("step", 0))
        return cls(workdir, *found)

    def save(self) -> None:
        """A checkpoint of what is finished, and of what is on the way."""
        self.step += 1
        save_checkpoint(self.workdir, self.step, {"rows": self.rows, "answers": self.answers})
        self.saved_at = time.monotonic()

    def leave(self, asker: Asker) -> NoReturn:
        """Told to stop: keep what is on the way, and leave."""
        self.answers = asker.known()
        self.save()
        signals.stop()

    def complete(
        self,
        asker: Asker,
        items: Sequence[Item],
        make_rows: MakeRows[Item],
        measures: Callable[[list[Row]], dict[str, float]],
        *,
        at_once: int,
        answers_per_item: int,
    ) -> list[Row]:
        """Rows of all items, in order, each with what `spent` says; told to stop, it leaves."""
        asker.remember(self.answers)
        progress = Progress(self.workdir)
        while len(self.rows) < len(items):
            part = items[len(self.rows) :][:at_once]
            tick = _ticks(progress, len(self.rows), len(items), answers_per_item)
            try:
                self.rows += make_rows(part, tick)
            except StoppedError:
                self.leave(asker)
            asker.forget()
            self.answers = {}
            progress.log(len(self.rows), {**measures(self.rows), **_spending(asker)})
            if time.monotonic() - self.saved_at >= SECONDS_BETWEEN_CHECKPOINTS:
                self.save()
        return self.rows


def spent(asker: Asker, usage: Usage) -> dict[str, float]:
    """What a row's answers came to, by the names of SPENT."""
    cost = asker.budget.cost(usage)
    return dict(zip(SPENT, (usage.prompt_tokens, usage.completion_tokens, cost), strict=True))


def _ticks(
    progress: Progress, num_before: int, num_items: int, answers_per_item: int
) -> Callable[[], None]:
    """What is called for every answer: progress is told in whole percent of all items."""
    answers = 0

    def on_answer() -> None:
        nonlocal answers
        before, now = (
            100 * (num_before + count // answers_per_item) // num_items
            for count in (answers, answers + 1)
        )
        answers += 1
        if now > before:
            progress.advance(num_before + answers // answers_per_item, num_items)

    return on_answer


def _spending(asker: Asker) -> dict[str, float]:
    """What this process has asked, and what this stage has spent, in whatever process."""
    return {
        "num_asked": asker.num_asked,
        "num_known": asker.num_known,
        "num_retries": getattr(asker.model, "num_retries", 0),
        "tokens": asker.budget.spent.total,
        "cost": asker.budget.cost(asker.budget.spent),
    }


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
