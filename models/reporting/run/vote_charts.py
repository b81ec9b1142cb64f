"""Plots of people's votes by strength of the label."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.models.reporting.kit.charts import BLUE, GREY, ORANGE, Chart, Panel
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.reporting.run.human_votes import VoteAgreement
from trimtab.models.statistics.measured import Estimate

FOR = "votes for the text labelled better"
SPLIT_NAMES = {"train": "Training", "test": "Test"}


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
            panel.axes.errorbar(
                [place + shift for place in range(1, len(groups) + 1)],
                [100 * share.value for share in shares],
                yerr=[[100 * arm for arm in arms] for arms in _arms(shares)],
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


def _arms(shares: list[Estimate]) -> list[list[float]]:
    """Lengths of the error bars below and above."""
    return [[s.value - s.low for s in shares], [s.high - s.value for s in shares]]
