"""What exhibits measure of reward models and of policies: accuracy, outcomes, answers, curves.

Accuracy is on the test pairs: against the annotators' labels and, where right labels are known,
against those (pairs that gold holds nearly equal left out). Policies are judged by gold where it
exists, else by held-out reward models. A comparison's role is `judge_<policy>` against SFT and
`versus_<policy>` against the study's baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError, Row
from trimtab.models.reporting.kit.names import capitalised
from trimtab.models.reporting.run.policies import Curve, training_curve
from trimtab.models.studies.results import Line, Plot, Rows, Table, bar_plot, line_of
from trimtab.models.studies.variants import Variant

KL, LOST, GAINED = "KL, nats", "forget, lose", "score gained, spreads"
MONITORS = {
    "gained": "score of the sampled answers\n(gain over the start, in its spread)",
    "gold": "gold score\nof the sampled answers",
    "kl": "KL to the start\n(nats an answer)",
    "perplexity": "perplexity of the answers",
    "response_length": "length of the answers (tokens)",
}
STABILITY = ("gained", "gold", "kl", "perplexity")
RIGHT, GIVEN = "accuracy, right labels", "accuracy, given labels"
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class GainCurve(Curve):
    """A training curve, and the score gained by step.

    gained: over the mean score of the answers that SFT, or of a round the policy before it, gives
    to the main test prompts, by the same scorer and in their spread.
    """

    gained: list[float]


class SeedRun(Artifacts):
    """The artifacts of one seed's run of an exhibit's arms, and the measures of exhibits."""

    def accuracies(self, role: str) -> dict[str, float]:
        """Accuracy of a scorer on the test pairs, by whose labels."""
        right = {RIGHT: share_right(self.clean_gaps(role).gap)} if self.truth else {}
        return right | {GIVEN: share_right(self.labelled_gaps(role).gap)}

    def validation_gap(self, role: str) -> Tensor:
        """A scorer's gaps (N,) float64 on the validation pairs, by the given labels."""
        rows = self.scores(role, "validation").values()
        gaps = [row["chosen_score"] - row["rejected_score"] for row in rows]
        return torch.tensor(gaps, dtype=torch.float64)

    def outcome(self, role: str, eval_set: str = "main") -> dict[str, float]:
        """Shares of wins, ties and losses on a set of prompts, and wins minus losses."""
        document = self.document(role, "judgement.json")
        verdict = document.get(f"{eval_set}_gold") or document.get(f"{eval_set}_judge_score")
        if verdict is None:
            raise ReportInputError(
                f"{role} judged no prompts of the set {eval_set!r}, which the synthetic world has"
            )
        return {name: float(verdict[name]) for name in ("win", "tie", "lose", "net")}

    def validated(self, role: str) -> float:
        """Wins minus losses on the validation prompts, by annotators or held-out reward models."""
        document = self.document(role, "judgement.json")
        verdict = document.get("validation_annotators") or document.get("validation_judge_score")
        if verdict is None:
            raise ReportInputError(f"{role} judged no validation prompts")
        return float(verdict["net"])

    def responses(self, name: str, eval_set: str = "main") -> list[Row]:
        """A policy's answers to a set of prompts."""
        rows = self.rows(f"eval_{name}", "responses.jsonl")
        return [row for row in rows if row["set"] == eval_set]

    def answers(self, name: str, eval_set: str = "main") -> dict[str, float]:
        """Means over a policy's answers to a set: gold (where known), KL and length."""
        rows = self.responses(name, eval_set)
        measures = {"gold": "gold", KL: "kl", "length, tokens": "length"}
        known = {label: key for label, key in measures.items() if rows and key in rows[0]}
        return {label: fmean(row[key] for row in rows) for label, key in known.items()}

    def policy(self, name: str) -> dict[str, float]:
        """A policy's answers to the main prompts, and how these do against SFT's."""
        return self.answers(name) | self.outcome(f"judge_{name}")

    def forgetting(self, name: str) -> dict[str, float]:
        """What a policy loses of the forget set against SFT, and wins less losses on both sets."""
        forget = self.outcome(f"judge_{name}", "forget")
        main = self.outcome(f"judge_{name}")
        return {LOST: forget["lose"], "forget, net": forget["net"], "main, net": main["net"]}

    def curve(self, name: str) -> GainCurve:
        """A policy's training curve; ReportInputError where it has none."""
        rows = self.rows(f"eval_{name}", "responses.jsonl")
        curve = training_curve(self, f"policy_{name}", bool(rows) and "gold" in rows[0])
        if curve is None:
            raise ReportInputError(f"policy_{name} has no training curve; found {self.inputs}")
        start = [float(row["score"]) for row in self.responses(f"start_{name}")]
        mean, spread = fmean(start), pstdev(start) or 1.0
        return GainCurve(**vars(curve), gained=[(score - mean) / spread for score in curve.score])

    def curves(self, variants: Mapping[str, Variant], prefix: str = "") -> dict[str, GainCurve]:
        """Training curves by label of the policies named `<prefix><variant>`."""
        return read_variants(variants, lambda name: self.curve(prefix + name))

    def swept(self, prefix: str) -> dict[float, str]:
        """The roles of a prefix by the value behind it, in order of the values."""
        roles = [role for role in self.inputs if role.startswith(prefix)]
        values = {float(role.removeprefix(prefix).removesuffix("_recipe")): role for role in roles}
        return dict(sorted(values.items()))


def read_variants(
    variants: Mapping[str, Variant], read: Callable[[str], ValueT]
) -> dict[str, ValueT]:
    """The value that `read` returns for each variant's name, by its label."""
    return {variant.label: read(name) for name, variant in variants.items()}


def accuracy_of(row: Mapping[str, float]) -> float:
    """The accuracy on right labels, or on given ones where right ones are not known."""
    return row.get(RIGHT, row[GIVEN])


def share_right(gap: Tensor) -> float:
    """The share of score gaps (N,) that are on the better answer's side."""
    return float((gap > 0).double().mean())


def read_by_kl(
    variants: Mapping[str, Variant],
    coefs: Sequence[float],
    read: Callable[[str, str], dict[str, float]],
    gain: str,
) -> tuple[Rows, dict[str, Line]]:
    """A row for each variant at each KL coefficient, and by its label the line of the column
    `gain` by KL.

    read: the row of a variant's name and that of its policy, `<name>_<coefficient>`.
    """
    table: Rows = {}
    lines = {}
    for name, variant in variants.items():
        rows = [read(name, f"{name}_{coef:g}") for coef in coefs]
        labels = [f"{variant.label}, KL coefficient {coef:g}" for coef in coefs]
        table |= dict(zip(labels, rows, strict=True))
        lines[variant.label] = line_of(rows, KL, gain)
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


def last_tenth(values: Sequence[float]) -> float:
    """The mean of the last tenth of the steps."""
    return fmean(values[-max(1, len(values) // 10) :])


def percent_in_bins(values: Sequence[float], edges: Sequence[float]) -> Line:
    """The middles of bins, and the percentage of values in each; those beyond the ends are in the
    outermost bins."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    return middles, [100 * count / len(values) for count in counts.tolist()]


def unevenness(values: Sequence[float]) -> float:
    """The spread of the residuals about the straight line of least squares, over the range of the
    values; 0 where they grow evenly."""
    count = len(values)
    middle, mean = (count - 1) / 2, fmean(values)
    slope = sum((i - middle) * (v - mean) for i, v in enumerate(values)) / sum(
        (i - middle) ** 2 for i in range(count)
    )
    residuals = [v - mean - slope * (i - middle) for i, v in enumerate(values)]
    width = max(values) - min(values)
    return pstdev(residuals) / width if width else 0.0


def curves_table(curves: Mapping[str, GainCurve]) -> Rows:
    """The measures of each run, most of them means over the last tenth of its steps."""
    table = {}
    for name, curve in curves.items():
        table[name] = {
            GAINED: last_tenth(curve.gained),
            KL: last_tenth(curve.kl),
            "unevenness of KL": unevenness(curve.kl),
            "perplexity": last_tenth(curve.perplexity),
            "spread of perplexity": pstdev(curve.perplexity[len(curve.perplexity) // 2 :]),
            "length, tokens": last_tenth(curve.response_length),
        }
        if curve.gold:
            table[name]["gold"] = last_tenth(curve.gold)
            # The first answers are sampled before any update.
            table[name]["gold at the start"] = curve.gold[0]
    return table


def curve_plots(
    curves: Mapping[str, GainCurve], monitors: Sequence[str] = tuple(MONITORS)
) -> list[Plot]:
    """A plot a monitor, a curve a policy; none of what a policy has no values of."""
    plots = []
    for monitor in monitors:
        lines = {}
        for name, curve in curves.items():
            values = [*getattr(curve, monitor)]
            lines[name] = [float(step) for step in curve.steps[: len(values)]], values
        if all(values for _, values in lines.values()):
            title = capitalised(MONITORS[monitor].split("\n")[0].split(" (")[0])
            plots.append(Plot(title, "PPO step", MONITORS[monitor], lines))
    return plots


def outcome_plot(title: str, table: Table, against: str) -> Plot:
    """Wins, ties and losses of each row as bars."""
    x, y = f"policy, against {against}", "share of the prompts"
    return bar_plot(title, x, y, table, ("win", "tie", "lose"))
