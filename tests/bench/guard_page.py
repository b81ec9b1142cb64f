"""The tables and the figure of docs/explanation/guard.md. Part of `tests.bench.guard`.

A run has collapsed where mean gold over a window falls by FALL below its highest so far. An alarm
is a step at which a monitor lies beyond its limit; a run's level is the highest of its steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_curve

from tests.bench.cleaning_page import table
from trimtab.flows.config.recipes import recipe_named
from trimtab.models.config.policy import CollapseConfig
from trimtab.models.reporting.kit.charts import style
from trimtab.models.stages.ppo_max.guard import collapse_reason, readings

Row = dict[str, Any]
WINDOW = 6  # of runs that are shorter than a recipe's
FALL = 0.1
FALLS = (0.05, 0.1, 0.15)
FALSE_ALARMS = 0.05
RESAMPLES = 2000
DEFAULT = CollapseConfig(window=WINDOW)
RECIPE = recipe_named("default").ppo.guard
# By name, the monitor in the orientation in which more is worse.
MONITORS: dict[str, Callable[[Mapping[str, float]], float]] = {
    "KL": lambda read: read["kl"],
    "longer responses": lambda read: read["length"],
    "shorter responses": lambda read: -read["length"],
    "perplexity falls": lambda read: -read["perplexity"],
    "entropy falls": lambda read: -read["entropy"],
    "score gained": lambda read: read["score_gain"],
    "held-out score falls": lambda read: read["held_out_fall"],
    "held-out score falls, worst category": lambda read: read["category_fall"],
    "gain beyond the held-out score's": lambda read: read["unconfirmed_gain"],
    "gain beyond the held-out score's, worst category": lambda read: read["category_gap"],
    "agreement with held-out scorers falls": lambda read: -read["agreement"],
    "held-out scorers disagree": lambda read: read["disagreement"],
}
SETTINGS = {
    "kl_coef": "KL coefficient",
    "learning_rate": "learning rate",
    "treatment": "scores",
    "num_pairs": "pairs the scorers learned from",
}


class Measured:
    """A run: when it collapsed, and its monitors at every step from two windows on.

    levels: (monitors, steps). first: the step of the first of them.
    """

    def __init__(self, row: Row) -> None:
        self.row, self.first = row, 2 * WINDOW
        names = [name for name, values in row.items() if isinstance(values, list)]
        steps = len(row["gold"])
        per_step = [n for n in names if len(row[n]) == steps]
        self.history = [{name: row[name][step] for name in per_step} for step in range(steps)]
        read = [self._readings(end) for end in range(self.first, steps + 1)]
        self.levels = np.array([[level(one) for one in read] for level in MONITORS.values()])

    def _readings(self, end: int) -> dict[str, float]:
        """Those of the guard, and what it does not look at."""
        row, read = self.row, readings(self.history[:end], WINDOW)

        def mean(name: str, start: int = end - WINDOW) -> float:
            return float(np.mean(row[name][start : start + WINDOW]))

        gain = mean("held_out_score") - mean("held_out_score", 0)
        return {
            **read,
            **{name: row[name][end - WINDOW] for name in ("category_fall", "category_gap")},
            "entropy": mean("entropy") / mean("entropy", 0),
            "unconfirmed_gain": read["score_gain"] - gain / mean("held_out_std", 0),
            "agreement": mean("held_out_agreement"),
            "disagreement": mean("held_out_disagreement") / mean("held_out_disagreement", 0),
        }

    def fallen_at(self, fall: float = FALL) -> int | None:
        """The first step at which mean gold over a window lies `fall` below its highest so far."""
        means = np.convolve(self.row["gold"], np.full(WINDOW, 1 / WINDOW), "valid")
        lower = np.maximum.accumulate(means) - means >= fall
        return WINDOW + int(lower.argmax()) if lower.any() else None

    def alarm_at(self, monitor: int, limit: float) -> int | None:
        """The first step beyond the limit."""
        beyond = self.levels[monitor] > limit
        return self.first + int(beyond.argmax()) if beyond.any() else None

    def stopped_at(self, config: CollapseConfig) -> int | None:
        """The first step at which the guard speaks up."""
        ends = range(self.first, len(self.history) + 1)
        return next((end for end in ends if collapse_reason(self.history[:end], config)), None)


def write_page(rows: Sequence[Row], folder: Path) -> None:
    """Write each table behind its mark `<!-- name -->`, in place of the one there, and the figure.

    Raises ValueError for a page that lacks a mark.
    """
    runs = [Measured(row) for row in rows]
    worlds = sorted({row["world"] for row in rows})
    chosen_on = set(worlds[: len(worlds) // 2])
    tuned = [run for run in runs if run.row["world"] in chosen_on]
    tested = [run for run in runs if run.row["world"] not in chosen_on]
    page = folder / "guard.md"
    text = page.read_text(encoding="utf-8")
    tables = {
        "runs": runs_table(runs),
        "monitors": monitors_table(tuned, tested),
        "rules": rules_table(tuned, tested),
        "definitions": definitions_table(tuned, tested),
    }
    for name, content in tables.items():
        mark = f"<!-- {name} -->"
        if mark not in text:
            raise ValueError(f"{page}: found no {mark}")
        behind = re.compile(re.escape(mark) + r"\n(?:\n(?:\|[^\n]*\n)+)?")
        text = behind.sub(f"{mark}\n\n{content}\n", text)
    page.write_text(text, encoding="utf-8")
    draw(tuned, tested, folder / "guard.svg")


def runs_table(runs: Sequence[Measured]) -> str:
    """How many runs collapsed, by what they differ in."""
    lines = []
    for setting, words in SETTINGS.items():
        for value in sorted({run.row[setting] for run in runs}):
            part = [run for run in runs if run.row[setting] == value]
            kl = np.median([np.mean(run.row["kl"][-WINDOW:]) for run in part])
            lines.append(
                [f"{words} {value}", str(len(part)), _share(_collapsed(part)), f"{kl:.1f}"]
            )
    lines.append(["all", str(len(runs)), _share(_collapsed(runs)), ""])
    return table(["", "runs", "collapsed", "KL at the end, median (nats)"], lines)


def _collapsed(runs: Sequence[Measured], fall: float = FALL) -> np.ndarray[Any, Any]:
    return np.array([run.fallen_at(fall) is not None for run in runs])


def area(runs: Sequence[Measured], levels: np.ndarray[Any, Any], fall: float = FALL) -> list[float]:
    """The area under the ROC curve of runs' levels, and its bootstrap interval over runs."""
    collapsed, generator = _collapsed(runs, fall), np.random.default_rng(0)
    gap = levels[collapsed][:, None] - levels[~collapsed]
    is_higher = (gap > 0) + 0.5 * (gap == 0)
    counts = generator.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=RESAMPLES)
    pairs = np.einsum("bi,ij,bj->b", counts[:, collapsed], is_higher, counts[:, ~collapsed])
    numbers = counts[:, collapsed].sum(1) * counts[:, ~collapsed].sum(1)
    low, high = np.quantile(pairs[numbers > 0] / numbers[numbers > 0], [0.025, 0.975])
    return [float(is_higher.mean()), float(low), float(high)]


def alarms(
    runs: Sequence[Measured], steps: Sequence[int | None], fall: float = FALL
) -> dict[str, str]:
    """Hits, false alarms and lead of alarms at those steps, None for a run without one.

    A lead is how many steps before the fall is complete the alarm comes.
    """
    ends = [run.fallen_at(fall) for run in runs]
    pairs = list(zip(ends, steps, strict=True))
    leads = [end - at for end, at in pairs if end is not None and at is not None]
    late = [at is not None for end, at in pairs if end is None]
    hit = [at is not None for end, at in pairs if end is not None]
    in_time = [at is not None and at <= end for end, at in pairs if end is not None]
    ends_of_leads = np.quantile(leads, [0.5, 0.25, 0.75]) if leads else [np.nan] * 3
    return {
        "hits": _share(hit),
        "before the collapse": _share(in_time),
        "false alarms": _share(late),
        "lead in steps, median (quartiles)": "{:.0f} ({:.0f} to {:.0f})".format(*ends_of_leads),
    }


def limit_of(runs: Sequence[Measured], monitor: int) -> float:
    """The lowest limit at which the share of false alarms is at most FALSE_ALARMS."""
    levels = [run.levels[monitor].max() for run in runs if run.fallen_at() is None]
    return float(np.quantile(levels, 1 - FALSE_ALARMS, method="higher"))


def monitors_table(tuned: Sequence[Measured], tested: Sequence[Measured]) -> str:
    """Each monitor alone: area on both halves; at the limit of the first, alarms on the other."""
    lines = []
    for index, name in enumerate(MONITORS):
        cells = []
        for half in (tuned, tested):
            value, low, high = area(half, np.array([run.levels[index].max() for run in half]))
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]")
        limit = limit_of(tuned, index)
        told = alarms(tested, [run.alarm_at(index, limit) for run in tested])
        lines.append([name, *cells, f"{abs(limit):.2g}", *told.values()])
    heads = ["monitor", "area, worlds 91, 92", "area, worlds 93, 94", "limit", *told]
    return table(heads, lines)


def rules_of(tuned: Sequence[Measured]) -> dict[str, CollapseConfig]:
    """The class's default, the recipe's, and what worlds 91 and 92 would have chosen, by name."""
    names = list(MONITORS)
    kl = limit_of(tuned, names.index("KL"))
    fall = max(limit_of(tuned, names.index("held-out score falls")), 1e-3)
    kl_alone = {"max_kl": kl, "max_held_out_fall": None}
    both = {"max_kl": kl, "max_held_out_fall": fall}
    return {
        f"KL {DEFAULT.max_kl:g}, the pattern": DEFAULT,
        f"KL {RECIPE.max_kl:g}, the pattern": DEFAULT.model_copy(update={"max_kl": RECIPE.max_kl}),
        f"the recipe `default`: the same, a window of {RECIPE.window} steps": RECIPE,
        f"KL {kl:.2g}, the pattern": DEFAULT.model_copy(update=kl_alone),
        f"KL {kl:.2g}, held-out fall {fall:.2g}, the pattern": DEFAULT.model_copy(update=both),
    }


def rules_table(tuned: Sequence[Measured], tested: Sequence[Measured]) -> str:
    """The guard itself, by its configuration."""
    lines = []
    for name, config in rules_of(tuned).items():
        for words, half in (("worlds 91, 92", tuned), ("worlds 93, 94", tested)):
            told = alarms(half, [run.stopped_at(config) for run in half])
            lines.append([f"{name}, {words}", *told.values()])
    return table(["rule", *told], lines)


def definitions_table(tuned: Sequence[Measured], tested: Sequence[Measured]) -> str:
    """What another fall changes, on worlds 93 and 94."""
    lines = []
    for fall in FALLS:
        steps = [run.stopped_at(RECIPE) for run in tested]
        areas = [
            area(tested, np.array([run.levels[index].max() for run in tested]), fall)[0]
            for index in map(list(MONITORS).index, DRAWN)
        ]
        told = alarms(tested, steps, fall)
        shares = [_share(_collapsed(half, fall)) for half in (tuned, tested)]
        cells = [f"{value:.2f}" for value in areas]
        lines.append([f"{fall:g}", *shares, *cells, *told.values()])
    areas_of = [f"area, {name}" for name in DRAWN]
    heads = ["fall of gold", "collapsed, worlds 91, 92", "worlds 93, 94", *areas_of, *told]
    return table(heads, lines)


DRAWN = ("KL", "held-out score falls", "gain beyond the held-out score's", "perplexity falls")


def draw(tuned: Sequence[Measured], tested: Sequence[Measured], path: Path) -> None:
    """ROC curves of monitors on worlds 93 and 94, with the rules as points."""
    figure, axes = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
    collapsed = _collapsed(tested)
    for number, name in enumerate(DRAWN):
        index = list(MONITORS).index(name)
        levels = np.array([run.levels[index].max() for run in tested])
        false, hits, _ = roc_curve(collapsed, levels)
        value, low, high = area(tested, levels)
        colour, line, _ = style(number)
        label = f"{name}: {value:.2f} [{low:.2f}, {high:.2f}]"
        axes.plot(100 * false, 100 * hits, line, color=colour, label=label)
    for number, (name, config) in enumerate(rules_of(tuned).items(), start=len(DRAWN)):
        spoke = np.array([run.stopped_at(config) is not None for run in tested])
        place = 100 * spoke[~collapsed].mean(), 100 * spoke[collapsed].mean()
        colour, _, marker = style(number)
        axes.plot(*place, marker, color=colour, markersize=9, label=name)
    axes.plot([0, 100], [0, 100], ":", color="#888888", linewidth=1)
    axes.set_xlabel("false alarms, % of the runs that did not collapse")
    axes.set_ylabel("hits, % of the runs that collapsed")
    axes.legend(loc="lower right", fontsize=8)
    with plt.rc_context({"svg.hashsalt": "trimtab"}):  # the same numbers make the same file
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _share(hits: Sequence[bool] | np.ndarray[Any, Any]) -> str:
    return f"{sum(hits)} of {len(hits)}"
