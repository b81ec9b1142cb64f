"""The report's plots: of the labels, the reward models, the policies, and the cost of it all.

[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.
[RM] Secrets of RLHF Part II: Reward Modeling, arXiv 2401.06080.
[DPO] Rafailov et al., Direct Preference Optimization, arXiv 2305.18290.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts, Row
from trimtab.models.reporting.kit.charts import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Chart,
    Panel,
    policy_style,
    smooth,
)
from trimtab.models.reporting.kit.names import (
    MEASURE_NAMES,
    SCORE_LABELS,
    SETS,
    STRENGTH_NAMES,
    capitalised,
    policy_name,
)
from trimtab.models.reporting.run.claims import answer_of
from trimtab.models.reporting.run.human_votes import VoteAgreement
from trimtab.models.reporting.run.labels import strength_groups
from trimtab.models.reporting.run.policies import Curve, Policy
from trimtab.models.reporting.run.scorecard import Scorecard, StageCost
from trimtab.models.reporting.run.scorers import LABEL_NAMES, NAMES, NUM_BINS, Labels, gaps
from trimtab.models.statistics.calibration import calibration_curve
from trimtab.models.statistics.intervals import wilson_interval
from trimtab.models.statistics.measured import Interval

MAIN = "main"
MONITORS = {  # of a curve's fields: what is shown, axis, note
    "score": (
        "The score that is optimised",
        "change of mean score\n(in spreads at the start)",
        "The proxy: each run's own scorer, so only its course compares between runs.",
    ),
    "gold": (
        "Gold score of the sampled answers",
        "mean gold score (0 to 1)",
        "What the same answers are truly worth; no policy sees it in training.",
    ),
    "kl": ("KL to the reference", "KL (nats per answer)", ""),
    "perplexity": ("Perplexity under the policy", "perplexity (per token)", ""),
    "response_length": ("Length of the answers", "length (tokens)", ""),
}


def curve_charts(curves: Mapping[str, Curve]) -> list[Chart]:
    """One panel a monitor, a line a run."""
    charts = []
    for monitor, (title, y_label, note) in MONITORS.items():
        lines = {name: getattr(curve, monitor) for name, curve in curves.items()}
        if monitor == "score":
            for name, curve in curves.items():
                start, unit = _start(curve.score), curve.score_std or 1.0
                lines[name] = [(value - start) / unit for value in curve.score]
        if any(lines.values()):
            charts.append(_lines(title, y_label, note, curves, lines))
    return charts


def _lines(
    title: str,
    y_label: str,
    note: str,
    curves: Mapping[str, Curve],
    lines: Mapping[str, Sequence[float]],
) -> Chart:
    ends = []
    with Panel() as panel:
        for name, values in lines.items():
            if not values:
                continue
            colour, line, _ = policy_style(name)
            label, steps = policy_name(name), curves[name].steps[: len(values)]
            panel.axes.plot(steps, values, color=colour, alpha=0.2, linewidth=0.8)
            panel.axes.plot(steps, smooth(values), color=colour, linestyle=line, label=label)
            end = values[-max(1, len(values) // 10) :]
            ends.append(f"{label} {_plain(_start(values))} → {_plain(sum(end) / len(end))}")
        panel.axes.legend(fontsize=8)
        # The title names the two ends of the list; the note has every run.
        rest = f"Between them: {'; '.join(ends[1:-1])}." if ends[2:] else ""
        shown = "; ".join([*ends[:1], *ends[1:][-1:]])
        return panel.chart(f"{title}: {shown}.", f"{note} {rest}", "step", y_label)


def _plain(value: float) -> str:
    """Two decimals, never a negative zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _start(values: Sequence[float]) -> float:
    part = values[: max(1, len(values) // 10)]
    return sum(part) / len(part)


def outcome_charts(card: Scorecard) -> list[Chart]:
    """Wins, ties and losses against SFT, a panel a prompt set; by gold or held-out models."""
    judged = [policy for policy in card.policies if policy.against_sft]
    charts = []
    for place in dict.fromkeys(name for policy in judged for name in policy.against_sft):
        if place == "validation":  # promotion is decided on it; the tables hold its numbers
            continue
        for measure in ("gold", "judge_score"):
            shown = [p for p in judged if measure in p.against_sft.get(place, {})]
            if shown:
                charts.append(_outcomes(shown, place, measure))
    return charts


def _outcomes(shown: Sequence[Policy], place: str, measure: str) -> Chart:
    outcomes = {policy.label: policy.against_sft[place][measure] for policy in shown}
    rows = list(range(len(shown)))[::-1]
    with Panel(height=1.35 + 0.42 * len(shown)) as panel:
        parts = [
            ([100 * getattr(outcome, key).value for outcome in outcomes.values()], *look, key)
            for key, look in (("win", (GREEN, "")), ("tie", (LIGHT, "")), ("lose", (RED, "///")))
        ]
        starts = panel.stacked_bars(rows, parts, height=0.7, linewidth=0.5)
        for left, (widths, *_) in zip(starts, parts, strict=True):
            for y, start, width in zip(rows, left, widths, strict=True):
                if width >= 8:
                    panel.axes.text(
                        start + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=9,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
                    )  # fmt: skip
        panel.axes.set_yticks(rows, list(outcomes))
        panel.axes.set_xlim(0, 100)
        panel.axes.grid(False)
        panel.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
        nets = [f"{name} {outcome.net.text('+.0f', 100)}" for name, outcome in outcomes.items()]
        # Which policies are better or worse than SFT by their whole interval.
        answers = {name: answer_of(outcome.net) for name, outcome in outcomes.items()}
        standings = []
        for word in ("better", "worse"):
            names = [name for name, answer in answers.items() if answer == word]
            if names:
                is_all = len(names) == len(answers) > 1
                standings.append(f"{word} than SFT: {'all' if is_all else ', '.join(names)}")
        return panel.chart(
            f"{capitalised(SETS.get(place, place))}, by {MEASURE_NAMES[measure]}: "
            f"{'; '.join(standings) or 'none can be told from SFT'}.",
            f"Wins minus losses in points: {'; '.join(nets)}.",
            "share of prompts (%)",
        )


def frontier_chart(artifacts: Artifacts, card: Scorecard) -> Chart | None:
    """What a policy's answers are worth for how far it has gone from SFT [DPO figure 2].

    Every policy by its KL to SFT, and the best of 1 ... n answers of SFT as a line.
    None where fewer than two policies answered the main prompts.
    """
    shown = [policy for policy in card.policies if MAIN in policy.sets]
    if len(shown) < 2:
        return None
    measure = "gold" if card.has_gold else "judge_score"
    with Panel(height=4.6) as panel:
        best = artifacts.document("eval_best_of_n", "best_of_k.json").get(MAIN, {})
        if measure in best:
            panel.axes.plot(best["kl_bound"], best[measure], color=GREY, label="best of 1 … n")
        for policy in shown:
            answers = policy.sets[MAIN]
            colour, _, marker = policy_style(policy.name)
            panel.errorbars(
                [answers.kl.value], [getattr(answers, measure)],
                color=colour, marker=marker, markersize=5, linewidth=0.8, linestyle="none",
                label=policy.label,
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        top = max(shown, key=lambda policy: getattr(policy.sets[MAIN], measure).value)
        return panel.chart(
            f"{capitalised(SETS[MAIN])}, by {MEASURE_NAMES[measure]}: highest is "
            f"{top.label} with {getattr(top.sets[MAIN], measure).value:.2f}, "
            f"{top.sets[MAIN].kl.value:.2f} nats from SFT.",
            "Higher and further to the left is better; bars are 95 % intervals. The KL of a best "
            "of k is at most log k − (k − 1) / k beyond that of what is sampled.",
            "KL to SFT (nats per answer)",
            SCORE_LABELS[measure],
        )


def cost_chart(stages: Sequence[StageCost]) -> Chart | None:
    """Seconds by stage, those of artifacts taken from the store apart."""
    if not stages:
        return None
    counts = Counter(stage.stage for stage in stages)
    by_name = {name: sum(s.seconds for s in stages if s.stage == name) for name in counts}
    fresh, taken = ([s for s in stages if s.is_cached == is_cached] for is_cached in (False, True))
    total, of_run = (sum(stage.seconds for stage in part) for part in (stages, fresh))
    dearest = max(by_name, key=by_name.__getitem__)
    with Panel(height=1.2 + 0.26 * len(counts)) as panel:
        rows = list(range(len(counts)))[::-1]
        parts = [
            ([sum(s.seconds for s in part if s.stage == name) for name in counts], *look)
            for part, look in (
                (fresh, (BLUE, "", "made in this run")),
                (taken, (SKY, "///", "taken from the store (seconds when made)")),
            )
        ]
        panel.stacked_bars(rows, [part for part in parts if any(part[0])], linewidth=0.3)
        labels = [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
        panel.axes.set_yticks(rows, labels, fontsize=9)
        panel.axes.grid(False, axis="y")
        if taken:
            panel.axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), labelcolor=GREY)
        # Without word of what came from the store, nothing is said about this run's share.
        share = f", {of_run:,.0f} s of it in this run" if of_run < total else ""
        return panel.chart(
            f"{total:,.0f} s of work{share}; the dearest stage is {dearest} with "
            f"{by_name[dearest]:,.0f} s.",
            "Seconds each artifact took when it was made.",
            "seconds",
        )


KINDS = {
    "clear": ("not tampered with", SKY, ""),
    "ambiguous": ("near-ties", LIGHT, "..."),
    "flipped": ("flips", RED, "///"),
}
SCORE_DIFFERENCE = "mean score difference over the ensemble"
# What strength is, by way of voting, where that is no mean.
UNITS = {"calibrated": "log-odds that the label is as given"}
SPLIT_NAMES = {"train": "Training", "test": "Test"}


def label_charts(rows: Sequence[Row], mode: str | None) -> list[Chart]:
    """Charts of the training pairs' strength; rows as `labels.strength_rows` gives them, mode: the
    way of voting."""
    if not rows:
        return []
    axis = f"strength of the label\n({UNITS.get(mode or '', SCORE_DIFFERENCE)})"
    groups, has_truth = strength_groups(rows), all(row["truth"] for row in rows)
    charts = [_histogram(rows, axis, has_truth=has_truth), _deviation(groups, axis)]
    return [*charts, _wrong_share(groups)] if has_truth else charts


def _histogram(rows: Sequence[Row], axis: str, *, has_truth: bool) -> Chart:
    means = [float(row["strength_mean"]) for row in rows]
    below = sum(mean < 0 for mean in means)
    # The outermost half percent would squeeze the rest into the middle.
    low, high = (
        float(torch.tensor(means, dtype=torch.float64).quantile(q)) for q in (0.005, 0.995)
    )
    edges = [low + (high - low) * index / 40 for index in range(41)]
    means = [min(max(mean, low), high) for mean in means]
    with Panel() as panel:
        if has_truth:
            kinds = [row["truth"]["kind"] for row in rows]
            parts = [
                [mean for mean, other in zip(means, kinds, strict=True) if other == kind]
                for kind in KINDS
            ]
            names, colours, hatches = zip(*KINDS.values(), strict=True)
            bars: Any = panel.axes.hist(
                parts, bins=edges, stacked=True, color=colours, label=names
            )[2]
            for container, hatch in zip(bars, hatches, strict=True):
                for patch in container:
                    patch.set(hatch=hatch, edgecolor="white", linewidth=0.3)
            panel.axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), ncols=3, fontsize=8)
            medians = [
                f"{name} at {median(part):+.2f}"
                for name, part in zip(names, parts, strict=True)
                if part
            ]
            title = f"Median strength: {', '.join(medians)}."
        else:
            panel.axes.hist(means, bins=edges, color=BLUE)
            title = f"The ensemble contradicts {100 * below / len(rows):.1f} % of the labels."
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        return panel.chart(
            title,
            f"Left of the dashed line the ensemble prefers the answer labelled worse: {below:,} of "
            f"{len(rows):,} training pairs. The outermost 0.5 % are drawn in the end bars.",
            axis,
            "training pairs per bin",
        )


def _deviation(groups: Sequence[Row], axis: str) -> Chart:
    mean, std = ([group[key] for group in groups] for key in ("mean", "std"))
    with Panel() as panel:
        panel.axes.plot(mean, std, color=BLUE, marker="o", markersize=4)
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        panel.axes.set_ylim(0, max(std) * 1.1 or 1)
        lowest = min(groups, key=lambda group: float(group["std"]))
        return panel.chart(
            f"The members agree most where strength is {lowest['mean']:+.2f} (deviation "
            f"{lowest['std']:.2f}; {std[0]:.2f} at the weakest end, {std[-1]:.2f} at the "
            "strongest).",
            f"Training pairs sorted by strength, cut into {len(groups)} groups of equal size; the "
            "paper finds a U shape.",
            axis,
            "deviation between members\n(units of score)",
        )


def _wrong_share(groups: Sequence[Row]) -> Chart:
    shares = [100 * float(group["share_wrong"]) for group in groups]
    with Panel() as panel:
        colours = [ORANGE if group["mean"] < 0 else SKY for group in groups]
        bars = panel.axes.bar(range(1, len(groups) + 1), shares, color=colours)
        for bar, group in zip(bars, groups, strict=True):
            bar.set(hatch="///" if group["mean"] < 0 else "", edgecolor="white", linewidth=0.3)
        panel.axes.axhline(50, color=GREY, linestyle="--", linewidth=1)
        panel.axes.set_ylim(0, 100)
        panel.axes.set_xticks([1, *range(5, len(groups) + 1, 5)])
        return panel.chart(
            f"{shares[0]:.0f} % of the weakest twentieth of labels are wrong by gold, "
            f"{shares[-1]:.0f} % of the strongest.",
            "Above the dashed line flipping a whole group mends more labels than it breaks; "
            "hatched groups have negative strength.",
            "group, from weakest to strongest",
            "labels wrong by gold (%)",
        )


def vote_charts(agreements: Mapping[str, Mapping[str, VoteAgreement]]) -> list[Chart]:
    """One chart a way of voting and split, as `human_votes.human_votes` has them."""
    return [
        _agreement(votes, f"{SPLIT_NAMES[split]} pairs, {STRENGTH_NAMES[mode]}")
        for mode, by_split in agreements.items()
        for split, votes in by_split.items()
    ]


def _agreement(votes: VoteAgreement, name: str) -> Chart:
    """Votes for the text labelled better, by group of rising strength [RM figure 3]."""
    groups = votes.groups
    shares_for = [group.share_for for group in groups]
    with Panel() as panel:
        for shares, colour, line, marker, label, shift in (
            (shares_for, BLUE, "-", "o", "votes for the text labelled better", -0.08),
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
        return panel.chart(
            f"{name}: {100 * shares_for[0].value:.0f} % of people's votes are for the text "
            f"labelled better where strength is lowest, {100 * shares_for[-1].value:.0f} % where "
            "it is highest.",
            f"{votes.num_pairs:,} pairs sorted by strength, cut into {len(groups)} groups of equal "
            "size, with 95 % intervals; a unanimous pair has all its votes for the text labelled "
            "better. Left of the dashed line a group's mean strength is below 0.",
            "group, from weakest to strongest label",
            "votes, or pairs (%)",
        )


# Reward models in the scorecard: name, colour, marker.
REWARD_MODELS = {
    "baseline": ("reward model, raw labels", PURPLE, "^"),
    "relabelled": ("reward model, relabelled", ORANGE, "s"),
    "advantage_model": ("Advantage Model", BLUE, "o"),
}
SCORER_NAMES = {**STRENGTH_NAMES, **{role: style[0] for role, style in REWARD_MODELS.items()}}
SCORER_NAMES["external_reward"] = "reward from outside"


def scorer_charts(artifacts: Artifacts, card: Scorecard) -> list[Chart]:
    """Calibration on each kind of label, and one panel of category scores a scorer."""
    charts = [chart for kind in LABEL_NAMES if (chart := _calibration(artifacts, card, kind))]
    # Categories by the mean score of the relabelled reward model, or of the first scorer.
    first = card.scorers.get("relabelled") or next(iter(card.scorers.values()), None)
    order = sorted(first.categories, key=lambda name: first.categories[name].mean) if first else []
    if len(order) > 1:
        roles = [role for role in ("relabelled", "advantage_model") if role in card.scorers]
        charts += [_categories(card, role, order) for role in roles]
    return charts


def _calibration(artifacts: Artifacts, card: Scorecard, labels: Labels) -> Chart | None:
    """Accuracy against score difference in bins of equal mass [AM figure 2]; None where no test
    pair has a score and such a label."""
    errors, furthest = [], 1.0
    with Panel() as panel:
        for role, scorer in card.scorers.items():
            ece = scorer.clean_ece_width if labels == "clean" else scorer.label_ece_width
            if role not in REWARD_MODELS or ece is None:
                continue
            gap = gaps(artifacts, NAMES[role], labels).gap
            size, correct = gap.abs(), gap > 0
            # Bins of equal mass over sigmoid(size); the curve is drawn over the size itself.
            confidence, accuracy, count = calibration_curve(
                torch.sigmoid(size), correct, NUM_BINS, "mass"
            )
            filled = count > 0
            x = torch.logit(confidence[filled].clamp(max=1 - 1e-6))
            bins = zip(accuracy[filled].tolist(), count[filled].tolist(), strict=True)
            shares = [Interval(share, *wilson_interval(share, number)) for share, number in bins]
            label, colour, marker = REWARD_MODELS[role]
            panel.errorbars(
                x.tolist(), shares, 100, color=colour, marker=marker, markersize=4, label=label
            )
            furthest = max(furthest, float(x.max()))
            errors.append(f"{label} {100 * ece.value:.1f} %")
        if not errors:
            return None
        line = torch.linspace(0, furthest, 200)
        panel.axes.plot(
            line, 100 * torch.sigmoid(line), color=BLACK, linestyle="--", linewidth=1,
            label="perfect: 1/(1+exp(−x))",
        )  # fmt: skip
        panel.axes.set_ylim(None, 102)
        panel.axes.legend(loc="lower right")
        return panel.chart(
            f"Calibration error on {LABEL_NAMES[labels]}: {', '.join(errors)}.",
            "Each point is a tenth of the test pairs, with its 95 % interval. Below the dashed "
            "line the scorer is surer than it should be, above it less sure.",
            "difference of the two answers' scores (logits)",
            f"order right by {LABEL_NAMES[labels]} (%)",
        )


def _categories(card: Scorecard, role: str, order: list[str]) -> Chart:
    scorer, (label, colour, marker) = card.scorers[role], REWARD_MODELS[role]
    scores = [scorer.categories[category] for category in order]
    places = range(len(order))
    with Panel(height=0.9 + 0.28 * len(order)) as panel:
        panel.axes.errorbar(
            [score.mean for score in scores], places, xerr=[score.std for score in scores],
            color=colour, marker=marker, linestyle="none", capsize=3,
        )  # fmt: skip
        panel.axes.set_yticks(places, [c if len(c) <= 18 else f"{c[:17]}…" for c in order])
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        title = f"{capitalised(label)}: categories' mean scores"
        if scorer.category_mean_spread is not None and scorer.spread_ratio is not None:
            title += (
                f" spread by {scorer.category_mean_spread.value:.2f}, "
                f"{scorer.spread_ratio.value:.2f} times the spread within categories."
            )
        note = "Mean and standard deviation of the scores of all test answers in a category."
        return panel.chart(title, note, "score (the scorer's own unit)", "task category")
