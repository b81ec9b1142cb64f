"""What exhibits measure of reward models and of policies: accuracy, outcomes, answers, curves.

Accuracy is on the test pairs: against the annotators' labels and, where right labels are known,
against those (pairs that gold holds nearly equal left out). Policies are judged by gold where it
exists, else by held-out reward models. A comparison's role is `judge_<policy>` against SFT and
`versus_<policy>` against the study's baseline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

import torch
from torch import Tensor

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.run.policies import Curve, training_curve
from trimtab.models.studies.results import Line, Plot, Table, bar_plot, line_of, titled
from trimtab.models.studies.variants import Variant

WIN, TIE, LOSE, NET = "win", "tie", "lose", "net"
KL, LOST = "KL, nats", "forget, lose"
MONITORS = {
    "score": "score of the sampled answers\n(gain since the start, in its spread)",
    "gold": "gold score\nof the sampled answers",
    "kl": "KL to the start\n(nats an answer)",
    "perplexity": "perplexity of the answers",
    "response_length": "length of the answers (tokens)",
}
RIGHT, GIVEN = "accuracy, right labels", "accuracy, given labels"


def accuracies(artifacts: Artifacts, role: str) -> dict[str, float]:
    """Accuracy of a scorer on the test pairs, by whose labels."""
    shares = {GIVEN: share_right(artifacts.labelled_gaps(role).gap)}
    if artifacts.truth:
        shares = {RIGHT: share_right(artifacts.clean_gaps(role).gap)} | shares
    return shares


def accuracy_table(
    artifacts: Artifacts, variants: Mapping[str, Variant]
) -> dict[str, dict[str, float]]:
    """`accuracies` of the scorers `scorer_<variant>`, by label."""
    return {
        variant.label: accuracies(artifacts, f"scorer_{name}") for name, variant in variants.items()
    }


def accuracy_of(row: Mapping[str, float]) -> float:
    """Of `accuracies` that on right labels, on given ones where right ones are not known."""
    return row.get(RIGHT, row[GIVEN])


def share_right(gap: Tensor) -> float:
    """How many of the score gaps (N,) are on the better answer's side."""
    return float((gap > 0).double().mean())


def validation_gap(artifacts: Artifacts, role: str) -> Tensor:
    """A scorer's gaps (N,) float64 on the validation pairs, by the given labels."""
    rows = artifacts.scores(role, "validation").values()
    gaps = [row["chosen_score"] - row["rejected_score"] for row in rows]
    return torch.tensor(gaps, dtype=torch.float64)


def outcome(artifacts: Artifacts, role: str, eval_set: str = "main") -> dict[str, float]:
    """Shares of wins, ties and losses on a set of prompts, and wins minus losses."""
    document = artifacts.document(role, "judgement.json")
    verdict = document.get(f"{eval_set}_gold") or document.get(f"{eval_set}_judge_score")
    if verdict is None:
        raise ReportInputError(f"{role} judged no prompts of the set {eval_set!r}")
    return {name: float(verdict[name]) for name in (WIN, TIE, LOSE, NET)}


def answers(artifacts: Artifacts, name: str, eval_set: str = "main") -> dict[str, float]:
    """Means over a policy's answers to a set of prompts: gold (where known), KL and length."""
    rows = [r for r in artifacts.rows(f"eval_{name}", "responses.jsonl") if r["set"] == eval_set]
    measures = {"gold": "gold", "kl": KL, "length": "length, tokens"}
    known = {label: key for key, label in measures.items() if rows and key in rows[0]}
    return {label: fmean(row[key] for row in rows) for label, key in known.items()}


def forgetting(artifacts: Artifacts, name: str) -> dict[str, float]:
    """What a policy loses of the forget set against SFT, and wins less losses on both sets."""
    forget = outcome(artifacts, f"judge_{name}", "forget")
    main = outcome(artifacts, f"judge_{name}")
    return {LOST: forget[LOSE], "forget, net": forget[NET], "main, net": main[NET]}


def read_by_kl(
    labels: Mapping[str, str],
    coefs: Sequence[float],
    read: Callable[[str, str], dict[str, float]],
    gain: str,
) -> tuple[dict[str, dict[str, float]], dict[str, Line]]:
    """A row for each kind of policy, by its label, at each KL coefficient; and by kind the line of
    the column `gain` by KL.

    read: the row of a kind, and of its policy `<kind>_<coefficient>`.
    """
    table: dict[str, dict[str, float]] = {}
    lines = {}
    for kind, label in labels.items():
        rows = {
            f"{label}, KL coefficient {coef:g}": read(kind, f"{kind}_{coef:g}") for coef in coefs
        }
        table |= rows
        lines[kind] = line_of(rows.values(), KL, gain)
    return table, lines


def forgetting_plot(lines: Mapping[str, Line], note: str) -> Plot:
    """What is lost of the forget set by KL."""
    return Plot(
        "What is lost of the forget set",
        "KL to SFT on the main prompts (nats)",
        "share of the forget set that is worse than SFT's",
        lines,
        kind="paths",
        note=note,
    )


def curve_of(artifacts: Artifacts, name: str) -> Curve:
    """A policy's training curve; ReportInputError where it has none."""
    rows = artifacts.rows(f"eval_{name}", "responses.jsonl")
    curve = training_curve(artifacts, f"policy_{name}", bool(rows) and "gold" in rows[0])
    if curve is None:
        raise ReportInputError(f"policy_{name} has no training curve; found {artifacts.inputs}")
    return curve


def curves_of(
    artifacts: Artifacts, variants: Mapping[str, Variant], prefix: str = ""
) -> dict[str, Curve]:
    """Training curves by label of the policies named `<prefix><variant>`."""
    return {each.label: curve_of(artifacts, prefix + name) for name, each in variants.items()}


def gained(curve: Curve) -> list[float]:
    """The score by step, less that of the first tenth, in units of its spread there."""
    start = fmean(curve.score[: max(1, len(curve.score) // 10)])
    return [(value - start) / (curve.score_std or 1.0) for value in curve.score]


def percent_in_bins(values: Sequence[float], edges: Sequence[float]) -> Line:
    """The middles of bins, and the percentage of values in each; those beyond the ends are in the
    outermost bins."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(max(bisect_right(edges, value) - 1, 0), len(counts) - 1)] += 1
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    return middles, [100 * count / len(values) for count in counts]


def unevenness(values: Sequence[float]) -> float:
    """How far values are from growing evenly: the spread of their residuals about the straight
    line of least squares, over their range; 0 for a line."""
    count = len(values)
    middle, mean = (count - 1) / 2, fmean(values)
    slope = sum((i - middle) * (v - mean) for i, v in enumerate(values)) / sum(
        (i - middle) ** 2 for i in range(count)
    )
    residuals = [v - mean - slope * (i - middle) for i, v in enumerate(values)]
    width = max(values) - min(values)
    return pstdev(residuals) / width if width else 0.0


def last(values: Sequence[float]) -> float:
    """The mean of the last tenth of the steps."""
    return fmean(values[-max(1, len(values) // 10) :])


def curves_table(curves: Mapping[str, Curve]) -> dict[str, dict[str, float]]:
    """What each run came to: means over the last tenth of its steps."""
    table = {}
    for name, curve in curves.items():
        table[name] = {
            "score gained, spreads": last(gained(curve)),
            KL: last(curve.kl),
            "unevenness of KL": unevenness(curve.kl),
            "perplexity": last(curve.perplexity),
            "spread of perplexity": pstdev(curve.perplexity[len(curve.perplexity) // 2 :]),
            "length, tokens": last(curve.response_length),
        }
        if curve.gold:
            table[name]["gold"] = last(curve.gold)
            table[name]["gold at the start"] = fmean(curve.gold[: max(1, len(curve.gold) // 10)])
    return table


def curve_plots(curves: Mapping[str, Curve], monitors: Sequence[str]) -> list[Plot]:
    """A plot a monitor, a curve a policy."""
    return [
        Plot(
            titled(words.split("\n")[0].split(" (")[0]),
            "PPO step",
            words,
            {name: _values_by_step(curve, monitor) for name, curve in curves.items()},
        )
        for monitor, words in MONITORS.items()
        if monitor in monitors
        and all(_values_by_step(curve, monitor)[1] for curve in curves.values())
    ]


def _values_by_step(curve: Curve, monitor: str) -> tuple[list[float], list[float]]:
    values: list[float] = gained(curve) if monitor == "score" else getattr(curve, monitor)
    return [float(step) for step in curve.steps[: len(values)]], list(values)


def outcome_plot(title: str, table: Table, against: str) -> Plot:
    """Wins, ties and losses of each row as bars."""
    x, y = f"policy, against {against}", "share of the prompts"
    return bar_plot(title, x, y, table, (WIN, TIE, LOSE))
