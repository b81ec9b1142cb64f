"""Reading figures 9 to 13 of Part II: policies of reward models, and contrastive features."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import torch

from models.reporting.kit.artifacts import Artifacts
from models.statistics.calibration import auroc
from models.studies.policies import (
    LOSE,
    NET,
    TIE,
    WIN,
    curve_of,
    curve_plots,
    curves_table,
    outcome,
    outcome_plot,
    unevenness,
)
from models.studies.reading import Plot, Reading
from models.studies.scorers import DENOISED, METHODS

CONTRASTIVE = {
    "simcse_pairs": "SimCSE, pairs",
    "simcse_differences": "SimCSE, differences",
    "swav_pairs": "SwAV, pairs",
    "swav_differences": "SwAV, differences",
}
WITH_BASELINE = {"baseline": "baseline"} | CONTRASTIVE
FREE = ("score", "gold", "kl", "perplexity")


def figure_9(artifacts: Artifacts) -> Reading:
    """PPO without KL penalty on the five reward models."""
    curves = {words: curve_of(artifacts, f"free_{name}") for name, words in METHODS.items()}
    table = curves_table(curves)
    noisy = [table["baseline"], table["margin"]]
    clean = [table[METHODS[name]] for name in DENOISED]

    def is_less(column: str) -> bool:
        return fmean(row[column] for row in clean) < fmean(row[column] for row in noisy)

    return Reading(
        table,
        checks={
            f"on denoised reward models {column} is less": is_less(column)
            for column in ("unevenness of KL", "spread of perplexity", "KL, nats")
        },
        plots=curve_plots(curves, FREE),
    )


def figure_10(artifacts: Artifacts) -> Reading:
    """The five policies against SFT and against the baseline's."""
    return _policies_of(artifacts, METHODS, "all four methods' policies beat the baseline's")


def figure_12(artifacts: Artifacts) -> Reading:
    """PPO without KL penalty on contrastive reward models."""
    curves = {words: curve_of(artifacts, f"free_{name}") for name, words in WITH_BASELINE.items()}
    table = curves_table(curves)
    for name, curve in curves.items():
        table[name]["unevenness of the score"] = unevenness(curve.score)
    ours = fmean(table[words]["unevenness of the score"] for words in CONTRASTIVE.values())
    return Reading(
        table,
        checks={
            "the score grows more evenly than the baseline's": ours
            < table["baseline"]["unevenness of the score"]
        },
        plots=curve_plots(curves, FREE),
    )


def figure_13(artifacts: Artifacts) -> Reading:
    """The contrastive policies against SFT and against the baseline's."""
    reading = _policies_of(
        artifacts, WITH_BASELINE, "most contrastive policies beat the baseline's"
    )
    nets = {w: reading.table[w]["net, against the baseline"] for w in CONTRASTIVE.values()}
    checks = {
        "most contrastive policies beat the baseline's": sum(n > 0 for n in nets.values()) > 2,
        "SimCSE on pairs is the best": max(nets, key=lambda name: nets[name]) == "SimCSE, pairs",
    }
    return Reading(reading.table, checks, reading.plots)


def _policies_of(artifacts: Artifacts, names: Mapping[str, str], claim: str) -> Reading:
    """The policies `free_<name>` against SFT and against `free_baseline`."""
    sft = {words: outcome(artifacts, f"judge_free_{name}") for name, words in names.items()}
    rivals = {n: words for n, words in names.items() if n != "baseline"}
    base = {words: outcome(artifacts, f"versus_free_{name}") for name, words in rivals.items()}
    nobody = {WIN: 0.0, TIE: 1.0, LOSE: 0.0, NET: 0.0}
    table = {
        words: {
            **{f"{key}, against SFT": value for key, value in found.items()},
            **{f"{k}, against the baseline": v for k, v in base.get(words, nobody).items()},
        }
        for words, found in sft.items()
    }
    return Reading(
        table,
        checks={claim: all(found[NET] > 0 for found in base.values())},
        plots=[
            outcome_plot("Policies against SFT", sft, "SFT"),
            outcome_plot("Policies against the baseline's", base, "the baseline's policy"),
        ],
    )


def figure_11(artifacts: Artifacts) -> Reading:
    """Features of chosen and rejected test answers, with and without SimCSE.

    Overlap is how well neighbours mix: of each answer's 15 nearest in feature space, the share of
    the other label over what chance gives; 1 is complete overlap.
    """
    table, plots = {}, []
    for role, words in (("scorer_baseline", "baseline"), ("scorer_simcse_pairs", "with SimCSE")):
        rows = artifacts.rows(f"features_{role}", "features.jsonl")
        is_chosen = torch.tensor([bool(row["is_chosen"]) for row in rows])
        scores = torch.tensor([row["score"] for row in rows], dtype=torch.float64)
        table[words] = {
            "overlap of neighbours": fmean(row["mixed"] for row in rows),
            "AUROC of the score": float(auroc(scores, is_chosen)),
        }
        plots.append(
            Plot(
                f"Features of test answers, {words}",
                "t-SNE, first axis (no unit)",
                "t-SNE, second axis (no unit)",
                {
                    name: (
                        [row["x"] for row in rows if row["is_chosen"] is flag],
                        [row["y"] for row in rows if row["is_chosen"] is flag],
                    )
                    for name, flag in (("chosen", True), ("rejected", False))
                },
                kind="points",
            )
        )
    mixed = [row["overlap of neighbours"] for row in table.values()]
    return Reading(table, {"with SimCSE the features overlap less": mixed[1] < mixed[0]}, plots)
