"""Rows made of a chat model's answers, part by part: a stage that is killed asks nothing twice.

Every answer is kept on disk as it comes. Finished rows, and answers to unfinished ones, also go
into a checkpoint, from which a stage that was stopped continues on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from trimtab.models.config.judge import JudgeAnswersConfig, JudgedPairsConfig
from trimtab.models.functional.verdicts import (
    clamped_preference,
    debiased_preference,
    order_verdicts,
)
from trimtab.models.judge.batch import CachedChatModel, OnAnswer, StoppedError
from trimtab.models.judge.build import build_judge
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.judge import Comparison, Judge
from trimtab.models.training import signals
from trimtab.models.training.checkpoint import newest_checkpoint, save_checkpoint
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Row, Stage

Item = TypeVar("Item")
USAGE_COLUMNS = ("prompt_tokens", "completion_tokens", "cost")

# A checkpoint holds all rows so far, so parts that finish quickly share one.
SECONDS_BETWEEN_CHECKPOINTS = 30.0


@dataclass
class ResumableBatch:
    """The rows of finished items, and the answers to unfinished ones by cache key."""

    workdir: Path
    rows: list[Row] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    num_checkpoints: int = 0
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def resume(cls, workdir: Path) -> ResumableBatch:
        """From the newest checkpoint, if any. From now on SIGTERM waits for a checkpoint."""
        state = newest_checkpoint(workdir) or {}
        return cls(workdir, state.get("rows", []), state.get("answers", {}), state.get("step", 0))

    def save(self) -> None:
        """Write a checkpoint."""
        self.num_checkpoints += 1
        save_checkpoint(
            self.workdir, self.num_checkpoints, {"rows": self.rows, "answers": self.answers}
        )
        self.saved_at = time.monotonic()

    def stop(self, chat: CachedChatModel) -> NoReturn:
        """Write a checkpoint that has the answers to unfinished items, and end the process."""
        self.answers = chat.state_dict()
        self.save()
        signals.stop()

    def run(
        self,
        items: Sequence[Item],
        chat: CachedChatModel,
        make_rows: Callable[[Sequence[Item], OnAnswer], list[Row]],
        *,
        measures: Callable[[list[Row]], dict[str, float]],
        items_at_once: int,
        answers_per_item: int,
    ) -> list[Row]:
        """The rows of all items, in order. Asked to stop, it calls `stop`.

        chat: the model that is asked. make_rows: the rows of a part of the items, in order, with
        the columns of `usage_columns`; it calls its second argument for every answer. measures:
        metrics of all rows so far. items_at_once: size of a part. answers_per_item: for the
        progress.
        """
        chat.load_state_dict(self.answers)
        progress = Progress(self.workdir)
        while len(self.rows) < len(items):
            part = items[len(self.rows) :][:items_at_once]
            on_answer = _report_percents(progress, len(self.rows), len(items), answers_per_item)
            try:
                self.rows += make_rows(part, on_answer)
            except StoppedError:
                self.stop(chat)
            chat.clear_memory()
            self.answers = {}
            progress.log(len(self.rows), {**measures(self.rows), **_spending(chat)})
            if time.monotonic() - self.saved_at >= SECONDS_BETWEEN_CHECKPOINTS:
                self.save()
        return self.rows


def usage_columns(chat: CachedChatModel, usage: Usage) -> dict[str, float]:
    """The tokens and the cost of a row's answers, as USAGE_COLUMNS."""
    return dict(zip(USAGE_COLUMNS, (*astuple(usage), chat.budget.cost(usage)), strict=True))


def usage_totals(rows: Sequence[Row]) -> dict[str, float]:
    """Sums of USAGE_COLUMNS over rows."""
    return {name: sum(row[name] for row in rows) for name in USAGE_COLUMNS}


def _report_percents(
    progress: Progress, num_finished: int, num_items: int, answers_per_item: int
) -> OnAnswer:
    """A function to call for every answer, which reports progress once per percent of all items."""
    answers = 0

    def on_answer() -> None:
        nonlocal answers
        answers += 1
        items, rest = divmod(answers, answers_per_item)
        finished = num_finished + items
        if rest == 0 and 100 * finished // num_items > 100 * (finished - 1) // num_items:
            progress.advance(finished, num_items)

    return on_answer


def _spending(chat: CachedChatModel) -> dict[str, float]:
    """Requests of this process; tokens and cost of this stage, in all its processes."""
    return {
        "num_asked": chat.num_asked,
        "num_known": chat.num_known,
        "num_retries": getattr(chat.model, "num_retries", 0),
        "tokens": chat.budget.spent.total,
        "cost": chat.budget.cost(chat.budget.spent),
    }


def judge_pairs(
    config: JudgedPairsConfig | JudgeAnswersConfig,
    stage: Stage,
    pairs: Sequence[Comparison],
    measures: Callable[[list[Row]], dict[str, float]],
) -> list[Row]:
    """A row per pair, in order. Asked to stop, it writes a checkpoint and ends the process.

    Input: `constitution`, the user's own, if the judge has one.

    preference: the probability that the first response is better, the mean of shown_first and
    shown_second (shown as A, as B), within the judge's `clamp`; verdict 1, 0 or -1; num_unparsed,
    of both orders' answers; USAGE_COLUMNS. `measures` of all rows so far are logged.
    """
    batch = ResumableBatch.resume(stage.workdir)
    constitution = stage.inputs.get("constitution")
    judge = build_judge(
        config.judge, stage.workdir, config.seed, signals.stop_requested, constitution
    )
    return batch.run(
        pairs,
        judge.chat,
        partial(_pair_rows, judge),
        measures=measures,
        items_at_once=config.pairs_at_once,
        answers_per_item=judge.answers_per_pair,
    )


def pair_measures(rows: Sequence[Row]) -> dict[str, float]:
    """Position bias, share of ties and number of unparsed answers; zeros without rows."""
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
    """A value per row as a float64 tensor (N,)."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _pair_rows(judge: Judge, pairs: Sequence[Comparison], on_answer: OnAnswer) -> list[Row]:
    verdicts = judge.compare(pairs, on_answer)
    first = column([verdict.shown_first for verdict in verdicts])
    second = column([verdict.shown_second for verdict in verdicts])
    preference, _ = debiased_preference(first, second)
    if judge.config.clamp is not None:
        preference = clamped_preference(preference, *judge.config.clamp)
    outcomes = order_verdicts(first, second)
    return [
        {
            "preference": value,
            "shown_first": verdict.shown_first,
            "shown_second": verdict.shown_second,
            "verdict": int(outcome),
            "num_unparsed": verdict.num_unparsed,
            **usage_columns(judge.chat, verdict.usage),
        }
        for verdict, value, outcome in zip(
            verdicts, preference.tolist(), outcomes.tolist(), strict=True
        )
    ]
