"""Plots about the reward models: calibration, and scores by category."""

from __future__ import annotations

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.charts import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    RED,
    Chart,
    Panel,
)
from trimtab.models.reporting.run.scorecard import Scorecard
from trimtab.models.reporting.run.scorers import NAMES, NUM_BINS, Labels, gaps
from trimtab.models.statistics.calibration import calibration_curve
from trimtab.models.statistics.intervals import wilson_interval
from trimtab.models.statistics.measured import Estimate, Interval

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
