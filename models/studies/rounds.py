"""Reading tables 2 and 3 and figures 15 to 17 of Part II: MetaRM rounds."""

from __future__ import annotations

from statistics import fmean

from models.reporting.kit.artifacts import Artifacts, ReportInputError
from models.studies.policies import (
    NET,
    curve_of,
    curve_plots,
    curves_table,
    gained,
    last,
    outcome,
    outcome_plot,
)
from models.studies.reading import Plot, Reading

MONITORS = ("score", "gold", "kl", "perplexity")


def table_2(artifacts: Artifacts) -> Reading:
    """Every round against SFT."""
    table = {f"round {n}": outcome(artifacts, role) for n, role in _rounds(artifacts).items()}
    nets = [row[NET] for row in table.values()]
    return Reading(
        table,
        checks={
            "the second round beats SFT by more than the first": nets[1] > nets[0],
            "the last round is not the best": max(nets) > nets[-1],
            "every round beats SFT": min(nets) > 0,
        },
        plots=[outcome_plot("Rounds against SFT", table, "SFT")],
    )


def table_3(artifacts: Artifacts) -> Reading:
    """The best round against SFT and vanilla PPO."""
    return _best_round(artifacts, "main")


def figure_15(artifacts: Artifacts) -> Reading:
    """The same on a task family that nobody labelled pairs of."""
    reading = _best_round(artifacts, "held_out")
    inside = _best_round(artifacts, "main").table["SFT"][NET]
    less = {"by less than in distribution": reading.table["SFT"][NET] < inside}
    return Reading(reading.table, reading.checks | less, reading.plots)


def _best_round(artifacts: Artifacts, place: str) -> Reading:
    """The round that did best against SFT on the main prompts, on the prompts of a set."""
    rounds = _rounds(artifacts)
    best = max(rounds, key=lambda number: outcome(artifacts, rounds[number])[NET])
    name = "full" if best == 1 else f"round_{best}"
    table = {
        "SFT": outcome(artifacts, rounds[best], place),
        "vanilla PPO": outcome(artifacts, f"vanilla_versus_{name}", place),
    }
    return Reading(
        table,
        checks={f"the best round beats {rival}": row[NET] > 0 for rival, row in table.items()},
        plots=[outcome_plot("The best round", table, "the policy named")],
    )


def _rounds(artifacts: Artifacts) -> dict[int, str]:
    """Rounds to their judgement against SFT."""
    found = {1: "judge_full"}
    number = 2
    while artifacts.has(f"judge_round_{number}_sft"):
        found[number] = f"judge_round_{number}_sft"
        number += 1
    return found


def figure_16(artifacts: Artifacts) -> Reading:
    """Score differences between answers to one prompt, before and after round 2's MetaRM."""
    rows = artifacts.rows("meta_rm_2", "spreads.jsonl")
    if not rows:
        raise ReportInputError("meta_rm_2 left no spreads.jsonl: rounds must be at least 2")
    before, after = ([row[name] for row in rows] for name in ("before", "after"))
    widest = max(*before, *after) or 1.0
    return Reading(
        table={
            "mean difference / the largest": {
                "before MetaRM": fmean(before) / widest,
                "after MetaRM": fmean(after) / widest,
            }
        },
        checks={"after MetaRM answers' scores lie further apart": fmean(after) > fmean(before)},
        plots=[
            Plot(
                "Score differences between answers to one prompt",
                "mean difference / the largest of all prompts",
                "prompts in a bin of a tenth (%)",
                {"before": _shares(before, widest), "after": _shares(after, widest)},
            )
        ],
    )


def _shares(values: list[float], widest: float) -> tuple[list[float], list[float]]:
    tenths = [min(int(10 * value / widest), 9) for value in values]
    shares = [100 * tenths.count(index) / len(values) for index in range(10)]
    return [0.05 + 0.1 * index for index in range(10)], shares


def figure_17(artifacts: Artifacts) -> Reading:
    """Training curves of vanilla PPO and of the rounds."""
    names = {"vanilla PPO": "vanilla", "round 1": "full"}
    names |= {f"round {n}": f"round_{n}" for n in _rounds(artifacts) if n > 1}
    curves = {words: curve_of(artifacts, name) for words, name in names.items()}
    table = curves_table(curves)
    ours = [curve for words, curve in curves.items() if words != "vanilla PPO"]
    return Reading(
        table,
        checks={
            "the score rises in every round": all(last(gained(curve)) > 0 for curve in ours),
            "in every round KL ends below vanilla PPO's": max(last(curve.kl) for curve in ours)
            < last(curves["vanilla PPO"].kl),
        },
        plots=curve_plots(curves, MONITORS),
    )
