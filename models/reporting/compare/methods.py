"""What is said of each method: how it stands against SFT, what it took, how it got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from trimtab.models.config.reporting import CompareConfig
from trimtab.models.reporting.compare.answers import START
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

    means: gold (where known), judge_score, kl, length. against_sft, forget: by who decides, on the
    main prompts and on what SFT was expert at; None for SFT, and where there is no such set.
    budget: means over seeds of what it took beyond SFT; None for SFT.
    path: where it went, mean over seeds: PPO while training, by its samples, the best of 1 ... n.
    """

    name: str
    means: dict[str, Spread]
    rated: Rated
    against_sft: Duel | None
    forget: Duel | None
    budget: Budget | None
    path: Way | None

    @property
    def words(self) -> str:
        """Its name for people."""
        return policy_name(self.name).removesuffix(" (round 1)")


def methods_of(
    matrix: WinMatrix, config: CompareConfig, inputs: Mapping[str, Path]
) -> list[Method]:
    """SFT and all methods, the highest rated first.

    inputs: by `<seed>.<role>`, the policies, and what they went on from and learned from. One
    seed's artifacts are read and forgotten before the next.
    """
    judge = matrix.judges[0]
    duels = {(d.place, d.ours): d for d in matrix.duels if d.theirs == START and d.judge == judge}
    means = {row.policy: row.means for row in matrix.measured if row.place == MAIN}
    rated = {row.policy: row for row in matrix.rated if row.judge == judge}
    budgets: dict[str, list[Budget]] = {}
    paths: dict[str, list[Way]] = {}
    for seed in config.seeds:
        prefix = f"{seed}."
        folders = {k.removeprefix(prefix): v for k, v in inputs.items() if k.startswith(prefix)}
        lineage = [
            entry.model_copy(update={"role": entry.role.removeprefix(prefix)})
            for entry in config.lineage
            if entry.role.startswith(prefix)
        ]
        for name in matrix.policies:
            found = Artifacts(folders)  # of one policy at a time: it remembers what it reads
            budget = budget_of(found, lineage, f"policy_{name}", f"eval_{name}")
            path = _path(found, name, judge)
            if budget is not None:
                budgets.setdefault(name, []).append(budget)
            if path is not None:
                paths.setdefault(name, []).append(path)
    found_methods = [
        Method(
            name,
            means[name],
            rated[name],
            duels.get((MAIN, name)),
            duels.get((FORGET, name)),
            _mean_budget(budgets.get(name, [])),
            _mean_path(paths.get(name, [])),
        )
        for name in matrix.policies
    ]
    return sorted(found_methods, key=lambda method: -method.rated.rating.value)


def _path(artifacts: Artifacts, name: str, judge: str) -> Way | None:
    """KL and what the judge says on the way to one seed's policy; None where it is not known."""
    best = artifacts.document(f"eval_{name}", "best_of_k.json").get(MAIN, {})
    if judge in best:
        return best["kl_bound"], best[judge]
    curve = training_curve(artifacts, f"policy_{name}", judge == "gold")
    if curve is None or not curve.gold:
        return None
    return smooth(curve.kl), smooth(curve.gold)


def _mean_budget(found: Sequence[Budget]) -> Budget | None:
    if not found:
        return None
    first, *_ = values = [asdict(budget) for budget in found]
    means: dict[str, Any] = {name: fmean(value[name] for value in values) for name in first}
    counts = {name: round(means[name]) for name, value in first.items() if isinstance(value, int)}
    return Budget(**means | counts)


def _mean_path(found: Sequence[Way]) -> Way | None:
    """Mean over seeds, up to where the shortest ends."""
    if not found:
        return None
    count = min(len(kl) for kl, _ in found)
    kl, score = (
        [fmean(path[side][place] for path in found) for place in range(count)] for side in (0, 1)
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
    trained = [method for method in methods if method.against_sft is not None]
    standing: dict[str, list[str]] = {"better": [], "not clear": [], "worse": []}
    for method in trained:
        assert method.against_sft is not None
        standing[method.against_sft.net.standing].append(method.words)
    better = standing["better"]
    sentence = (
        f"{len(better)} of {len(trained)} methods {'is' if len(better) == 1 else 'are'} clearly "
        f"better than SFT by {MEASURE_NAMES[judge]}"
        f"{': ' if better else ''}{'; '.join(better)}."
    )
    details = []
    if standing["not clear"]:
        details.append(f"Not clearly better or worse: {'; '.join(standing['not clear'])}.")
    if standing["worse"]:
        details.append(f"Clearly worse: {'; '.join(standing['worse'])}.")
    details.append(_top(methods, matrix, judge))
    details += [
        _describe_judge(name, methods, matrix)
        for name in matrix.judges
        if name not in MEASURE_NAMES
    ]
    all_worse = len(standing["worse"]) == len(trained)
    return Answer(sentence, details, "better" if better else "worse" if all_worse else "unclear")


def _top(methods: Sequence[Method], matrix: WinMatrix, judge: str) -> str:
    """Who is highest rated, and whom it does not clearly beat head to head."""
    first = methods[0]
    duels = {
        duel.theirs: duel.net.standing
        for duel in matrix.duels
        if (duel.place, duel.judge, duel.ours) == (MAIN, judge, first.name)
    }
    level = [m.words for m in methods[1:] if duels[m.name] != "better"]
    rest = (
        f"it does not clearly beat {'; '.join(level)}" if level else "it clearly beats all others"
    )
    return f"Highest rated is {first.words}; {rest}."


def _describe_judge(judge: str, methods: Sequence[Method], matrix: WinMatrix) -> str:
    """What a judge model says of the methods, and how far it is from who decides."""
    standing = {
        duel.ours: duel.net.standing
        for duel in matrix.duels
        if (duel.place, duel.judge, duel.theirs) == (MAIN, judge, START)
    }
    better = [method.words for method in methods if standing.get(method.name) == "better"]
    decides = matrix.judges[0]
    (found,) = (row for row in matrix.agreements if (row.first, row.second) == (decides, judge))
    kappa = "" if found.kappa is None else tidy(f" (kappa {found.kappa.value:.2f})")
    return (
        f"By the judge {judge} {len(better)} of {len(standing)} "
        f"{'is' if len(better) == 1 else 'are'} clearly better than SFT"
        f"{': ' if better else ''}{'; '.join(better)}. It gives the same verdict as "
        f"{MEASURE_NAMES[decides]} in {100 * found.share.value:.0f} % of games{kappa}."
    )
