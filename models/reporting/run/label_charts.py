"""Plots about the labels: their strength, and people's votes by strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from trimtab.models.reporting.kit.artifacts import Row
from trimtab.models.reporting.kit.charts import BLUE, GREY, LIGHT, ORANGE, RED, SKY, Chart, Panel
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.reporting.run.human_votes import VoteAgreement
from trimtab.models.reporting.run.labels import strength_groups

KINDS = (
    ("clear", "not tampered with", SKY, ""),
    ("ambiguous", "near-ties", LIGHT, "..."),
    ("flipped", "flips", RED, "///"),
)
SCORE_DIFFERENCE = "mean score difference over the ensemble"
# What strength is, by way of voting, where that is no mean.
UNITS = {"calibrated": "log-odds that the label is as given"}

# Of people's votes.
FOR = "votes for the text labelled better"
SPLIT_NAMES = {"train": "Training", "test": "Test"}


def label_charts(rows: Sequence[Row], mode: str | None) -> list[Chart]:
    """Charts of the training pairs' strength; rows as `labels.strength_rows` gives them, mode: the
    way of voting."""
    if not rows:
        return []
    axis = f"strength of the label\n({UNITS.get(mode or '', SCORE_DIFFERENCE)})"
    charts = [_histogram(rows, axis), _deviation(rows, axis)]
    if all(row["truth"] for row in rows):
        charts.append(_wrong_share(rows))
    return charts


def _histogram(rows: Sequence[Row], axis: str) -> Chart:
    means = [float(row["strength_mean"]) for row in rows]
    below = sum(mean < 0 for mean in means)
    has_truth = all(row["truth"] for row in rows)
    # The outermost half percent would squeeze the rest into the middle.
    low, high = (
        float(torch.tensor(means, dtype=torch.float64).quantile(q)) for q in (0.005, 0.995)
    )
    edges = [low + (high - low) * index / 40 for index in range(41)]
    with Panel() as panel:
        if has_truth:
            parts = {
                kind: [
                    min(max(mean, low), high)
                    for mean, row in zip(means, rows, strict=True)
                    if row["truth"]["kind"] == kind
                ]
                for kind, *_ in KINDS
            }
            bars: Any = panel.axes.hist(
                list(parts.values()),
                bins=edges,
                stacked=True,
                color=[colour for _, _, colour, _ in KINDS],
                label=[name for _, name, _, _ in KINDS],
            )[2]
            for container, (_, _, _, hatch) in zip(bars, KINDS, strict=True):
                for patch in container:
                    patch.set(hatch=hatch, edgecolor="white", linewidth=0.3)
            panel.axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), ncols=3, fontsize=8)
            middle = {kind: median(part) for kind, part in parts.items() if part}
            found = [f"{name} at {middle[k]:+.2f}" for k, name, *_ in KINDS if k in middle]
            title = f"Median strength: {', '.join(found)}."
        else:
            panel.axes.hist([min(max(m, low), high) for m in means], bins=edges, color=BLUE)
            title = f"The ensemble contradicts {100 * below / len(rows):.1f} % of the labels."
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        note = (
            f"Left of the dashed line the ensemble prefers the answer labelled worse: {below:,} of "
            f"{len(rows):,} training pairs. The outermost 0.5 % are drawn in the end bars."
        )
        return panel.chart(title, note, axis, "training pairs per bin")


def _deviation(rows: Sequence[Row], axis: str) -> Chart:
    groups = strength_groups(rows)
    with Panel() as panel:
        mean = [group["mean"] for group in groups]
        std = [group["std"] for group in groups]
        panel.axes.plot(mean, std, color=BLUE, marker="o", markersize=4)
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        panel.axes.set_ylim(0, max(std) * 1.1 or 1)
        lowest = min(groups, key=lambda group: float(group["std"]))
        ends = f"{std[0]:.2f} at the weakest end, {std[-1]:.2f} at the strongest"
        title = (
            f"The members agree most where strength is {lowest['mean']:+.2f} "
            f"(deviation {lowest['std']:.2f}; {ends})."
        )
        note = (
            f"Training pairs sorted by strength, cut into {len(groups)} groups of equal size; the "
            "paper finds a U shape."
        )
        return panel.chart(title, note, axis, "deviation between members\n(units of score)")


def _wrong_share(rows: Sequence[Row]) -> Chart:
    groups = strength_groups(rows)
    shares = [100 * float(group["share_wrong"]) for group in groups]
    with Panel() as panel:
        places = list(range(1, len(groups) + 1))
        colours = [ORANGE if group["mean"] < 0 else SKY for group in groups]
        bars = panel.axes.bar(places, shares, color=colours)
        for bar, group in zip(bars, groups, strict=True):
            bar.set(hatch="///" if group["mean"] < 0 else "", edgecolor="white", linewidth=0.3)
        panel.axes.axhline(50, color=GREY, linestyle="--", linewidth=1)
        panel.axes.set_ylim(0, 100)
        panel.axes.set_xticks([1, *range(5, len(groups) + 1, 5)])
        title = (
            f"{shares[0]:.0f} % of the weakest twentieth of labels are wrong by gold, "
            f"{shares[-1]:.0f} % of the strongest."
        )
        note = (
            "Above the dashed line flipping a whole group mends more labels than it breaks; "
            "hatched groups have negative strength."
        )
        return panel.chart(
            title, note, "group, from weakest to strongest", "labels wrong by gold (%)"
        )


def vote_charts(found: Mapping[str, Mapping[str, VoteAgreement]]) -> list[Chart]:
    """One chart a way of voting and split; `found` as `human_votes.human_votes` gives it."""
    return [
        _agreement(votes, f"{SPLIT_NAMES[split]} pairs, {STRENGTH_NAMES[mode]}")
        for mode, by_split in found.items()
        for split, votes in by_split.items()
    ]


def _agreement(votes: VoteAgreement, name: str) -> Chart:
    """Votes for the text labelled better, by group of rising strength [RM figure 3]."""
    groups = votes.groups
    first, last = groups[0].share_for, groups[-1].share_for
    with Panel() as panel:
        for shares, colour, line, marker, label, shift in (
            ([g.share_for for g in groups], BLUE, "-", "o", FOR, -0.08),
            ([g.share_unanimous for g in groups], ORANGE, "--", "s", "unanimous pairs", 0.08),
        ):
            panel.errorbars(
                [place + shift for place in range(1, len(groups) + 1)], shares, 100,
                color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.2,
                elinewidth=0.8, label=label,
            )  # fmt: skip
        num_negative = sum(group.strength < 0 for group in groups)
        panel.axes.axvline(num_negative + 0.5, color=GREY, linestyle="--", linewidth=1)
        panel.axes.set_ylim(0, 102)
        panel.axes.set_xticks([1, *range(5, len(groups) + 1, 5)])
        panel.axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), ncols=2)
        title = (
            f"{name}: {100 * first.value:.0f} % of people's votes are for the text labelled better "
            f"where strength is lowest, {100 * last.value:.0f} % where it is highest."
        )
        note = (
            f"{votes.num_pairs:,} pairs sorted by strength, cut into {len(groups)} groups of equal "
            "size, with 95 % intervals; a unanimous pair has all its votes for the text labelled "
            "better. Left of the dashed line a group's mean strength is below 0."
        )
        return panel.chart(
            title, note, "group, from weakest to strongest label", "votes, or pairs (%)"
        )
