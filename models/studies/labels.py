"""Reading figures 1 to 3 of Part II: what the strength of the pairs says about their labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.reporting.kit.artifacts import Artifacts, ReportInputError, Row
from models.reporting.run.labels import equal_groups, strength_groups, strength_rows
from models.statistics.calibration import spearman
from models.studies.reading import Plot, Reading

NUM_GROUPS = 10
BINS = [-4 + 0.25 * index for index in range(33)]  # of strength over its spread between pairs


def figure_1(artifacts: Artifacts) -> Reading:
    """How strength and its deviation are distributed over the training pairs."""
    rows = strength_rows(artifacts, "strength")
    mean, std = (
        torch.tensor([row[name] for row in rows], dtype=torch.float64)
        for name in ("strength_mean", "strength_std")
    )
    below = float((mean < 0).double().mean())
    skewness = float((((std - std.mean()) / std.std(correction=0)) ** 3).mean())
    unit = mean.std(correction=0)
    near = float((mean.abs() < unit / 2).double().mean())
    return Reading(
        table={
            "training pairs": {
                "share below 0": below,
                "share within half a spread of 0": near,
                "skewness of the deviations": skewness,
            }
        },
        checks={
            "between a tenth and four tenths of the strengths are below 0": 0.1 < below < 0.4,
            "the deviations have a long right tail (skewness above .5)": skewness > 0.5,
        },
        plots=[
            _histogram("Strength of the labels", "mean over the members", mean / unit, "strength"),
            _histogram("Deviation between the members", "deviation", std / unit, "deviation"),
        ],
    )


def _histogram(title: str, name: str, values: torch.Tensor, what: str) -> Plot:
    edges = torch.tensor(BINS, dtype=torch.float64)
    counts = torch.histogram(values.clamp(BINS[0], BINS[-1]), edges).hist
    used = counts.nonzero().flatten()
    first = 0 if values.min() < 0 else BINS.index(0.0)
    shares = (100 * counts / counts.sum()).tolist()
    middles = [(a + b) / 2 for a, b in zip(BINS, BINS[1:], strict=False)]
    assert len(used), "no pairs"
    return Plot(
        title,
        f"{what} / standard deviation of strength over pairs",
        "pairs in a bin of a quarter (%)",
        {name: (middles[first:], shares[first:])},
        note="Beyond the ends: in the outermost bins.",
    )


def figure_2(artifacts: Artifacts) -> Reading:
    """Deviation between members in twenty groups of rising strength."""
    groups = strength_groups(strength_rows(artifacts, "strength"))
    std = [float(group["std"]) for group in groups]
    lowest = min(std)
    return Reading(
        table={
            "deviation between members": {
                "weakest group": std[0],
                "the group where it is least": lowest,
                "strongest group": std[-1],
            }
        },
        checks={
            "the weakest group deviates a tenth more than the least": std[0] > 1.1 * lowest,
            "the strongest group deviates a tenth more than the least": std[-1] > 1.1 * lowest,
            "the least lies between": 0 < std.index(lowest) < len(std) - 1,
        },
        plots=[
            Plot(
                "Where the members disagree",
                "group of pairs, from weakest to strongest",
                "mean deviation between members\n(units of score)",
                {"deviation": ([float(n) for n in range(1, len(std) + 1)], std)},
            )
        ],
    )


def figure_3(artifacts: Artifacts) -> Reading:
    """How often gold, in place of the paper's GPT-4, agrees with labels of rising strength.

    On pairs that no member was trained on. Raises ReportInputError without gold.
    """
    rows = [row for row in artifacts.rows("strength", "strength.jsonl") if row["split"] != "train"]
    shares = [_agreement(artifacts, part) for part in equal_groups(rows, NUM_GROUPS)]
    means = [
        sum(row["strength_mean"] for row in part) / len(part)
        for part in equal_groups(rows, NUM_GROUPS)
    ]
    near = min(range(len(means)), key=lambda index: abs(means[index]))
    places = [float(index) for index in range(1, len(shares) + 1)]
    rising = float(spearman(*(torch.tensor(v, dtype=torch.float64) for v in (places, shares))))
    return Reading(
        table={
            "agreement with gold": {
                "weakest tenth": shares[0],
                "the tenth nearest to 0": shares[near],
                "strongest tenth": shares[-1],
                "rank correlation over tenths": rising,
            }
        },
        checks={
            "agreement rises with strength (rank correlation above .8)": rising > 0.8,
            "gold disagrees with most of the weakest tenth": shares[0] < 0.5,
            "gold agrees with nine in ten of the strongest": shares[-1] > 0.9,
        },
        plots=[
            Plot(
                "The stronger the preference, the likelier the label is right",
                "tenth of held-out pairs, from weakest to strongest",
                "labels that gold agrees with (share)",
                {"agreement": (places, shares)},
            )
        ],
    )


def _agreement(artifacts: Artifacts, rows: Sequence[Row]) -> float:
    """The share of labels that gold agrees with, pairs left out that it holds equal."""
    truths = [artifacts.truth.get(row["id"]) for row in rows]
    known = [t for t in truths if t is not None and t["gold_chosen"] != t["gold_rejected"]]
    if not known:
        raise ReportInputError(
            "agreement with a judge needs right labels, of which these pairs have none: run the "
            "study in the synthetic world (scale smoke or default)"
        )
    return sum(not truth["is_wrong"] for truth in known) / len(known)
