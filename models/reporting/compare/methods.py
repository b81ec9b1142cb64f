"""What is said of each method: how it stands against SFT, what it took, how it got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from trimtab.models.config.reporting import CompareConfig
from trimtab.models.reporting.compare.answers import SFT
from trimtab.models.reporting.compare.win_matrix import MAIN, Duel, Rated, WinMatrix
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.charts import smooth
from trimtab.models.reporting.kit.html import tidy
from trimtab.models.reporting.kit.names import MEASURE_NAMES, policy_name
from trimtab.models.reporting.run.policies import Budget, budget_of, training_curve
from trimtab.models.statistics.measured import Spread

FORGET = "forget"
# KL to SFT and the judge's mean score, point by point.
Way = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Method:
    """A method, or SFT, on the main prompts.

    words: its name for people.
    means: gold (where known), judge_score, kl, length. against_sft, forget: by who decides, on the
    main prompts and on what SFT was expert at; None for SFT, and where there is no such set.
    budget: means over seeds of what it took beyond SFT; None for SFT.
    path: where it went, mean over seeds: in training by what it sampled, or the best of 1 ... n.
    """

    name: str
    words: str
    means: dict[str, Spread]
    rated: Rated
    against_sft: Duel | None
    forget: Duel | None
    budget: Budget | None
    path: Way | None


def methods_of(
    matrix: WinMatrix, config: CompareConfig, inputs: Mapping[str, Path]
) -> list[Method]:
    """SFT and all methods, the highest rated first.

    inputs: by `<seed>.<role>`, the policies, and what they went on from and learned from. One
    seed's artifacts are read and forgotten before the next.
    """
    judge = matrix.judges[0]
    on_main, on_forget = (matrix.duels_on(place, judge) for place in (MAIN, FORGET))
    means = {row.policy: row.means for row in matrix.measured if row.place == MAIN}
    rated = {row.policy: row for row in matrix.rated if row.judge == judge}
    budgets: dict[str, list[Budget]] = {name: [] for name in matrix.policies}
    paths: dict[str, list[Way]] = {name: [] for name in matrix.policies}
    for seed in config.seeds:
        prefix = f"{seed}."
        folders = {k.removeprefix(prefix): v for k, v in inputs.items() if k.startswith(prefix)}
        lineage = [
            entry.model_copy(update={"role": entry.role.removeprefix(prefix)})
            for entry in config.lineage
            if entry.role.startswith(prefix)
        ]
        for name in matrix.policies:
            artifacts = Artifacts(folders)  # of one policy at a time: it remembers what it reads
            budget = budget_of(artifacts, lineage, f"policy_{name}", f"eval_{name}")
            path = _path(artifacts, name, judge)
            budgets[name] += [] if budget is None else [budget]
            paths[name] += [] if path is None else [path]
    methods = [
        Method(
            name,
            policy_name(name, config.dpo_loss).removesuffix(" (round 1)"),
            means[name],
            rated[name],
            on_main.get((name, SFT)),
            on_forget.get((name, SFT)),
            _mean_budget(budgets[name]),
            _mean_path(paths[name]),
        )
        for name in matrix.policies
    ]
    return sorted(methods, key=lambda method: -method.rated.rating.value)


def _path(artifacts: Artifacts, name: str, judge: str) -> Way | None:
    """KL and what the judge says on the way to one seed's policy; None where it is not known."""
    best = artifacts.document(f"eval_{name}", "best_of_k.json").get(MAIN, {})
    if judge in best:
        return best["kl_bound"], best[judge]
    curve = training_curve(artifacts, f"policy_{name}", judge == "gold")
    return (smooth(curve.kl), smooth(curve.gold)) if curve and curve.gold else None


def _mean_budget(budgets: Sequence[Budget]) -> Budget | None:
    means: dict[str, Any] = {}
    for field in fields(Budget) if budgets else ():
        amounts = [getattr(budget, field.name) for budget in budgets]
        mean = fmean(amounts)
        means[field.name] = round(mean) if isinstance(amounts[0], int) else mean
    return Budget(**means) if means else None


def _mean_path(paths: Sequence[Way]) -> Way | None:
    """Mean over seeds, up to where the shortest ends."""
    if not paths:
        return None
    kl, score = (
        [fmean(at) for at in zip(*sides, strict=False)] for sides in zip(*paths, strict=True)
    )
    return kl, score


@dataclass(frozen=True)
class Answer:
    """The first lines of the page. status: of the box, better, unclear or worse."""

    sentence: str
    details: list[str]
    status: str


def answer_of(methods: Sequence[Method], matrix: WinMatrix) -> Answer:
    """Which methods are clearly better than SFT, which are not, and which is highest rated."""
    judge = matrix.judges[0]
    trained = {method.words: method.against_sft for method in methods if method.against_sft}
    standing: dict[str, list[str]] = {"better": [], "not clear": [], "worse": []}
    for words, duel in trained.items():
        standing[duel.net.standing].append(words)
    better, worse = standing["better"], standing["worse"]
    details = [
        f"{words}: {'; '.join(names)}."
        for words, names in (
            ("Not clearly better or worse", standing["not clear"]),
            ("Clearly worse", worse),
        )
        if names
    ]
    # Head to head, which the highest rated does not clearly beat.
    first, duels = methods[0], matrix.duels_on(MAIN, judge)
    level = [m.words for m in methods[1:] if duels[first.name, m.name].net.standing != "better"]
    rest = f"does not clearly beat {'; '.join(level)}" if level else "clearly beats all others"
    details.append(f"Highest rated is {first.words}; it {rest}.")
    details += [
        _describe_judge(name, methods, matrix)
        for name in matrix.judges
        if name not in MEASURE_NAMES
    ]
    return Answer(
        f"{len(better)} of {len(trained)} methods {'is' if len(better) == 1 else 'are'} clearly "
        f"better than SFT by {MEASURE_NAMES[judge]}"
        f"{': ' if better else ''}{'; '.join(better)}.",
        details,
        "better" if better else "worse" if len(worse) == len(trained) else "unclear",
    )


def _describe_judge(judge: str, methods: Sequence[Method], matrix: WinMatrix) -> str:
    """What a judge model says of the methods, and how far it is from who decides."""
    duels = matrix.duels_on(MAIN, judge)
    judged = [method for method in methods if (method.name, SFT) in duels]
    better = [m.words for m in judged if duels[m.name, SFT].net.standing == "better"]
    decides = matrix.judges[0]
    (row,) = (row for row in matrix.agreements if (row.first, row.second) == (decides, judge))
    kappa = "" if row.kappa is None else tidy(f" (kappa {row.kappa.value:.2f})")
    return (
        f"By the judge {judge} {len(better)} of {len(judged)} "
        f"{'is' if len(better) == 1 else 'are'} clearly better than SFT"
        f"{': ' if better else ''}{'; '.join(better)}. It gives the same verdict as "
        f"{MEASURE_NAMES[decides]} in {100 * row.share.value:.0f} % of games{kappa}."
    )
