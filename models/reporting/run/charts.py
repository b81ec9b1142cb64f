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
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SETS, STRENGTH_NAMES, policy_name
from trimtab.models.reporting.run.claims import answer_of
from trimtab.models.reporting.run.human_votes import VoteAgreement
from trimtab.models.reporting.run.labels import strength_groups
from trimtab.models.reporting.run.policies import Curve, Policy
from trimtab.models.reporting.run.scorecard import Scorecard, StageCost
from trimtab.models.reporting.run.scorers import NAMES, NUM_BINS, Labels, gaps
from trimtab.models.statistics.calibration import calibration_curve
from trimtab.models.statistics.intervals import wilson_interval
from trimtab.models.statistics.measured import Estimate, Interval

MAIN = "main"


def curve_charts(curves: Mapping[str, Curve]) -> list[Chart]:
    """One panel a monitor, a line a run."""
    if not curves:
        return []
    proxies = {
        name: [(value - _start(curve.score)) / (curve.score_std or 1.0) for value in curve.score]
        for name, curve in curves.items()
    }
    charts = [
        _lines(
            "The score PPO is trained on",
            "change of mean score\n(in spreads at the start)",
            curves,
            proxies,
            "The proxy: each run's own scorer, so only its course compares between runs.",
        )
    ]
    gold = {name: curve.gold for name, curve in curves.items() if curve.gold}
    if gold:
        note = "What the same answers are truly worth; PPO never sees it."
        charts.append(
            _lines(
                "Gold score of the sampled answers", "mean gold score (0 to 1)", curves, gold, note
            )
        )
    for title, unit, field in (
        ("KL to the reference", "KL (nats per answer)", "kl"),
        ("Perplexity under the policy", "perplexity (per token)", "perplexity"),
        ("Length of the answers", "length (tokens)", "response_length"),
    ):
        values = {name: getattr(curve, field) for name, curve in curves.items()}
        charts.append(_lines(title, unit, curves, values, ""))
    return charts


def _lines(
    title: str,
    y_label: str,
    curves: Mapping[str, Curve],
    values: Mapping[str, Sequence[float]],
    note: str,
) -> Chart:
    ends = {}
    with Panel() as panel:
        for name, curve in curves.items():
            if name not in values:
                continue
            colour, line, _ = policy_style(name)
            steps = curve.steps[: len(values[name])]
            panel.axes.plot(steps, values[name], color=colour, alpha=0.2, linewidth=0.8)
            panel.axes.plot(
                steps, smooth(values[name]), color=colour, linestyle=line, label=policy_name(name)
            )
            end = values[name][-max(1, len(values[name]) // 10) :]
            start, last = _start(values[name]), sum(end) / len(end)
            ends[name] = f"{policy_name(name)} {_plain(start)} → {_plain(last)}"
        panel.axes.legend(fontsize=8)
        # The title names the two ends of the list; the note has every run.
        names = list(dict.fromkeys((next(iter(ends)), list(ends)[-1])))
        others = [text for name, text in ends.items() if name not in names]
        rest = f"Between them: {'; '.join(others)}." if others else ""
        return panel.chart(
            f"{title}: {'; '.join(ends[name] for name in names)}.",
            f"{note} {rest}",
            "PPO step",
            y_label,
        )


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
    with Panel(height=1.35 + 0.42 * len(shown)) as panel:
        places = list(range(len(shown)))[::-1]
        shares = {
            key: [100 * getattr(policy.against_sft[place][measure], key).value for policy in shown]
            for key in ("win", "tie", "lose")
        }
        looks = ((GREEN, ""), (LIGHT, ""), (RED, "///"))
        parts = [(shares[key], *look, key) for key, look in zip(shares, looks, strict=True)]
        starts = panel.stacked_bars(places, parts, height=0.7, linewidth=0.5)
        for left, widths in zip(starts, shares.values(), strict=True):
            for y, start, width in zip(places, left, widths, strict=True):
                if width >= 8:
                    panel.axes.text(
                        start + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=9,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
                    )  # fmt: skip
        panel.axes.set_yticks(places, [policy_name(policy.name) for policy in shown])
        panel.axes.set_xlim(0, 100)
        panel.axes.grid(False)
        panel.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
        nets = [
            f"{policy_name(p.name)} {p.against_sft[place][measure].net.text('+.0f', 100)}"
            for p in shown
        ]
        title = _seen(shown, place, measure)
        note = f"Wins minus losses in points: {'; '.join(nets)}."
        return panel.chart(title, note, "share of prompts (%)", "")


def _seen(shown: Sequence[Policy], place: str, measure: str) -> str:
    """Which policies are better or worse than SFT by their whole interval."""
    answers = {
        policy_name(policy.name): answer_of(policy.against_sft[place][measure].net)
        for policy in shown
    }
    parts = []
    for word in ("better", "worse"):
        names = [name for name, answer in answers.items() if answer == word]
        told = "all" if len(names) == len(answers) > 1 else ", ".join(names)
        if names:
            parts.append(f"{word} than SFT: {told}")
    seen = "; ".join(parts) or "none can be told from SFT"
    where = SETS.get(place, place)
    return f"{where[0].upper()}{where[1:]}, by {MEASURE_NAMES[measure]}: {seen}."


def frontier_chart(artifacts: Artifacts, card: Scorecard) -> Chart | None:
    """What a policy's answers are worth for how far it has gone from SFT [DPO figure 2].

    Every policy by its KL to SFT, and the best of 1 ... n answers of SFT as a line.
    None where fewer than two policies answered the main prompts.
    """
    shown = [policy for policy in card.policies if MAIN in policy.sets]
    if len(shown) < 2:
        return None
    measure = "gold" if card.has_gold else "judge_score"
    values = {}
    with Panel(height=4.6) as panel:
        best = artifacts.document("eval_best_of_n", "best_of_k.json").get(MAIN, {})
        if measure in best:
            panel.axes.plot(best["kl_bound"], best[measure], color=GREY, label="best of 1 … n")
        for policy in shown:
            colour, _, marker = policy_style(policy.name)
            answers = policy.sets[MAIN]
            value = getattr(answers, measure)
            values[policy.name] = (answers.kl.value, value.value)
            panel.errorbars(
                [answers.kl.value], [value],
                color=colour, marker=marker, markersize=5, linewidth=0.8, linestyle="none",
                label=policy_name(policy.name),
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        top = max(values, key=lambda name: values[name][1])
        kl, value_of_top = values[top]
        note = (
            "Higher and further to the left is better; bars are 95 % intervals. The KL of a best "
            "of k is at most log k − (k − 1) / k beyond that of what is sampled."
        )
        return panel.chart(
            f"{SETS[MAIN][0].upper()}{SETS[MAIN][1:]}, by {MEASURE_NAMES[measure]}: highest is "
            f"{policy_name(top)} with {value_of_top:.2f}, {kl:.2f} nats from SFT.",
            note,
            "KL to SFT (nats per answer)",
            "mean gold score (0 to 1)" if measure == "gold" else "mean held-out score",
        )


def cost_chart(stages: Sequence[StageCost]) -> Chart | None:
    """Seconds by stage, those of artifacts taken from the store apart."""
    if not stages:
        return None
    names = list(dict.fromkeys(stage.stage for stage in stages))
    counts = Counter(stage.stage for stage in stages)
    made, taken = ([s for s in stages if s.is_cached == is_cached] for is_cached in (False, True))
    total, fresh = (sum(stage.seconds for stage in part) for part in (stages, made))
    by_name = {name: sum(s.seconds for s in stages if s.stage == name) for name in names}
    dearest = max(names, key=by_name.__getitem__)
    with Panel(height=1.2 + 0.26 * len(names)) as panel:
        places = list(range(len(names)))[::-1]
        parts = [
            ([sum(s.seconds for s in part if s.stage == name) for name in names], *look)
            for part, look in (
                (made, (BLUE, "", "made in this run")),
                (taken, (SKY, "///", "taken from the store (seconds when made)")),
            )
        ]
        panel.stacked_bars(places, [part for part in parts if any(part[0])], linewidth=0.3)
        labels = [name if counts[name] == 1 else f"{name} ×{counts[name]}" for name in names]
        panel.axes.set_yticks(places, labels, fontsize=9)
        panel.axes.grid(False, axis="y")
        if taken:
            panel.axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), labelcolor=GREY)
        # Without word of what came from the store, nothing is said about this run's share.
        share = f", {fresh:,.0f} s of it in this run" if fresh < total else ""
        title = (
            f"{total:,.0f} s of work{share}; the dearest stage is {dearest} with "
            f"{by_name[dearest]:,.0f} s."
        )
        note = "Seconds each artifact took when it was made."
        return panel.chart(title, note, "seconds", "")


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


# Role in the scorecard: name, colour, marker.
SHOWN = {
    "baseline": ("reward model, raw labels", PURPLE, "^"),
    "relabelled": ("reward model, relabelled", ORANGE, "s"),
    "advantage_model": ("Advantage Model", BLUE, "o"),
    "states_linear": ("linear on hidden states", BLACK, "P"),
    "embedding_linear": ("linear on sentence embeddings", GREEN, "v"),
    "embedding_nearest": ("nearest sentence embeddings", GREY, "D"),
    "style": ("how an answer is written", RED, "X"),
    "ratings": ("the same answers in other pairs", LIGHT, "p"),
}
# Whose calibration has a curve, and whose scores by category a plot.
REWARD_MODELS = ("baseline", "relabelled", "advantage_model")
BY_CATEGORY = REWARD_MODELS[1:]


def scorer_charts(artifacts: Artifacts, card: Scorecard) -> list[Chart]:
    """Calibration on each kind of label, and one panel of category scores a scorer."""
    if not card.scorers:
        return []
    kinds: tuple[Labels, ...] = ("annotators", "clean")
    charts = [_calibration(artifacts, card, labels) for labels in kinds if _measured(card, labels)]
    order = _category_order(card)
    if len(order) > 1:
        charts += [_categories(card, name, order) for name in card.scorers if name in BY_CATEGORY]
    return charts


def _measured(card: Scorecard, labels: Labels) -> dict[str, Estimate]:
    """Calibration errors of reward models; none where no test pair has a score and such a label."""
    errors = {
        name: scorer.clean_ece_width if labels == "clean" else scorer.label_ece_width
        for name, scorer in card.scorers.items()
        if name in REWARD_MODELS
    }
    return {name: error for name, error in errors.items() if error is not None}


def _calibration(artifacts: Artifacts, card: Scorecard, labels: Labels) -> Chart:
    """Accuracy against score difference in bins of equal mass [AM figure 2]."""
    errors = []
    with Panel() as panel:
        furthest = 1.0
        for name, ece in _measured(card, labels).items():
            gap = gaps(artifacts, NAMES[name], labels).gap
            size, correct = gap.abs(), gap > 0
            # Bins of equal mass over sigmoid(size); the curve is drawn over the size itself.
            confidence, accuracy, count = calibration_curve(
                torch.sigmoid(size), correct, NUM_BINS, "mass"
            )
            kept = count > 0
            x = torch.logit(confidence[kept].clamp(max=1 - 1e-6))
            shares = [
                Interval(share, *wilson_interval(share, number))
                for share, number in zip(accuracy[kept].tolist(), count[kept].tolist(), strict=True)
            ]
            label, colour, marker = SHOWN[name]
            panel.errorbars(
                x.tolist(), shares, 100, color=colour, marker=marker, markersize=4, label=label
            )
            furthest = max(furthest, float(x.max()))
            errors.append(f"{label} {100 * ece.value:.1f} %")
        line = torch.linspace(0, furthest, 200)
        panel.axes.plot(
            line, 100 * torch.sigmoid(line), color=BLACK, linestyle="--", linewidth=1,
            label="perfect: 1/(1+exp(−x))",
        )  # fmt: skip
        panel.axes.set_ylim(None, 102)
        panel.axes.legend(loc="lower right")
        told = {"clean": "right labels", "annotators": "annotators' labels"}[labels]
        title = f"Calibration error on {told}: {', '.join(errors)}."
        note = (
            "Each point is a tenth of the test pairs, with its 95 % interval. Below the dashed "
            "line the scorer is surer than it should be, above it less sure."
        )
        x_label = "difference of the two answers' scores (logits)"
        return panel.chart(title, note, x_label, f"order right by {told} (%)")


def _category_order(card: Scorecard) -> list[str]:
    """Categories by the mean score of the relabelled reward model, or of the first scorer."""
    scorer = card.scorers.get("relabelled") or next(iter(card.scorers.values()))
    return sorted(scorer.categories, key=lambda name: scorer.categories[name].mean)


def _categories(card: Scorecard, name: str, order: list[str]) -> Chart:
    scorer = card.scorers[name]
    label, colour, marker = SHOWN[name]
    with Panel(height=0.9 + 0.28 * len(order)) as panel:
        stats = [scorer.categories[category] for category in order]
        panel.axes.errorbar(
            [stat.mean for stat in stats],
            range(len(order)),
            xerr=[stat.std for stat in stats],
            color=colour, marker=marker, linestyle="none", capsize=3,
        )  # fmt: skip
        panel.axes.set_yticks(range(len(order)), [_shorten(category) for category in order])
        panel.axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        title = f"{label[0].upper()}{label[1:]}: categories' mean scores"
        if scorer.category_mean_spread is not None and scorer.spread_ratio is not None:
            title += (
                f" spread by {scorer.category_mean_spread.value:.2f}, "
                f"{scorer.spread_ratio.value:.2f} times the spread within categories."
            )
        note = "Mean and standard deviation of the scores of all test answers in a category."
        return panel.chart(title, note, "score (the scorer's own unit)", "task category")


def _shorten(text: str, limit: int = 18) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
