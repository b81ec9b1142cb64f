"""Reading what methods gain for their distance from SFT, each at several strengths.

As figure 2 of [DPO, arXiv 2305.18290]. A setting is a point: on the main prompts the mean KL to SFT
and the mean gold score over SFT's (of people's data that of the held-out reward models). Every KL
is measured alike, on answers that the policy itself has sampled, but that of best of n: what it
chooses has no likelihood, and the KL is an upper bound, so that it is drawn and not compared.

Lines of gain by KL are compared where both have points on either side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from trimtab.models.reporting.kit.names import policy_name
from trimtab.models.studies.measures import KL, SeedRun
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Line, Plot, Rows, SeedResult, Verdict, line_of
from trimtab.models.studies.variants import LEAST_SHARED_KL, STRENGTHS, TEMPERATURES

exhibit = exhibits_in("methods")
NAMES = {arm: policy_name(arm).removesuffix(" (round 1)") for arm in STRENGTHS}
NAMES["best_of_n"] += " (KL: upper bound)"
START, DPO, BOUND = policy_name("sft"), NAMES["dpo"], NAMES["best_of_n"]
MEASURES = {"gold": "gold", "judge_score": "held-out score"}
UNITS = {"gold": "0 to 1", "judge_score": "no unit"}


def gains_most(results: Sequence[SeedResult]) -> str:
    """The sentence of `highest` for the plots of all seeds, and how far PPO-max, or else DPO, is
    ahead of every other method."""
    gain = next(iter(next(iter(results[0].table.values()))))
    seeds = [_measured(result.plots[0].series) for result in results]
    name = next(method for method in (NAMES["ppo_max_am"], DPO) if method in seeds[0])
    leads = ", ".join(map(str, _leads(seeds, name)))
    return highest(seeds, gain) + (f" The lead of {name} over others: {leads}." if leads else "")


@exhibit(
    arms="frontier",
    claim="At equal KL DPO gains more than every other method",
    printed="[DPO] figure 2, on sentiment: DPO has the highest reward at every KL; no numbers "
    "printed",
    remark=gains_most,
)
def frontier(run: SeedRun) -> SeedResult:
    """Gold score over SFT's by KL to SFT, each method at several strengths."""
    table: Rows = {}
    lines: dict[str, Line] = {START: ([0.0], [0.0])}
    for arm, strength in STRENGTHS.items():
        rows = {}
        for value, role in run.swept(f"eval_{arm}_").items():
            recipe = " (recipe)" if role.endswith("_recipe") else ""
            label = f"{NAMES[arm]}, {strength.words} {value:g}{recipe}"
            rows[label] = gained(run, role.removeprefix("eval_"))
        table |= rows
        lines[NAMES[arm]] = line_of(rows.values(), KL, gain_of(run))
    checks = {
        f"DPO gains more than {name} at equal KL": is_more_at_equal_kl(lines[DPO], line)
        for name, line in _measured(lines).items()
        if name != DPO
    }
    return SeedResult(table, checks, [frontier_plot(run, lines)])


def _measure(run: SeedRun) -> str:
    """What SFT's answers are measured by: gold, or else held-out reward models."""
    return next(key for key in MEASURES if key in run.responses("sft")[0])


def gain_of(run: SeedRun) -> str:
    """The column of what is gained over SFT."""
    return f"{MEASURES[_measure(run)]} over SFT"


def gained(run: SeedRun, name: str) -> dict[str, float]:
    """What a policy's answers gain over SFT's, there and on the forget set, and their KL and
    length."""
    measure, gain = _measure(run), gain_of(run)

    def mean(policy: str, place: str) -> float:
        return fmean(row[measure] for row in run.responses(policy, place))

    row = {gain: mean(name, "main") - mean("sft", "main")}
    row[KL] = fmean(row["kl"] for row in run.responses(name))
    if run.responses("sft", "forget"):
        row[f"{gain}, forget set"] = mean(name, "forget") - mean("sft", "forget")
    return row | {"length, tokens": fmean(row["length"] for row in run.responses(name))}


def frontier_plot(run: SeedRun, lines: Mapping[str, Line]) -> Plot:
    """Lines of gain by KL, from SFT."""
    return Plot(
        "What is gained for the distance from SFT",
        "KL to SFT (nats per answer), main test prompts",
        f"mean {gain_of(run)} ({UNITS[_measure(run)]}), main test prompts",
        lines,
        kind="paths",
        note="Higher and further to the left is better. A point a setting, in their order.",
    )


@exhibit(
    arms="temperatures",
    claim="DPO's best temperature is no worse than PPO's or best of n's, and DPO suffers less from "
    "other temperatures than PPO",
    printed="[DPO] figure 2, on summaries: DPO 61 % at temperature 0, PPO 57 % at best",
)
def temperature(run: SeedRun) -> SeedResult:
    """Wins against SFT by the temperature at which a policy answers.

    SFT's answers are at the recipe's temperature. A policy's fall with temperature is that of its
    lead over SFT's answers at the same one.
    """
    table: Rows = {}
    nets: dict[str, list[float]] = {}
    for arm in ("sft", "ppo_max_am", "dpo", "best_of_n"):
        judged = {t: run.outcome(f"judge_{arm}_{t:g}") for t in TEMPERATURES}
        nets[arm] = [row["net"] for row in judged.values()]
        table |= {f"{policy_name(arm)}, temperature {t:g}": row for t, row in judged.items()}
    best = {arm: max(values) for arm, values in nets.items()}

    def fallen(arm: str) -> float:
        """What is lost from the best temperature to the highest, beyond what SFT's answers lose."""
        over = [ours - sft for ours, sft in zip(nets[arm], nets["sft"], strict=True)]
        return max(over) - over[-1]

    dpo, ppo = best["dpo"], best["ppo_max_am"]
    checks = {
        "at its best temperature DPO wins as much as PPO at its own": dpo >= ppo,
        "and as best of n at its own": dpo >= best["best_of_n"],
        "at its best temperature DPO wins more than it loses": dpo > 0,
        "from its best temperature to the highest DPO falls by less than PPO": (
            fallen("dpo") < fallen("ppo_max_am")
        ),
    }
    plot = Plot(
        "Wins by temperature",
        "sampling temperature",
        "wins minus losses against SFT\n(share of the main prompts)",
        {policy_name(arm): ([*TEMPERATURES], values) for arm, values in nets.items()},
    )
    return SeedResult(table, checks, [plot])


def _measured(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The methods whose KL is measured, and no bound."""
    return {name: line for name, line in lines.items() if name not in (START, BOUND)}


def shared_kl(ours: Line, theirs: Line) -> tuple[float, float] | None:
    """The KL from which and to which both lines reach; None where that is no distance."""
    low, high = max(min(ours[0]), min(theirs[0])), min(max(ours[0]), max(theirs[0]))
    return (low, high) if low < high else None


def lead_of(ours: Line, theirs: Line) -> float | None:
    """How much more the one line gains than the other, on average over the KL that they share.

    Lines are straight from one KL to the next. None where they share none.
    """
    span = shared_kl(ours, theirs)
    if span is None:
        return None
    grid = sorted({*span, *(kl for kl in (*ours[0], *theirs[0]) if span[0] < kl < span[1])})
    leads = [_height(ours, kl) - _height(theirs, kl) for kl in grid]
    return float(np.trapezoid(leads, grid)) / (span[1] - span[0])


def _height(line: Line, kl: float) -> float:
    """The gain of a line at a KL that it reaches."""
    points = sorted(zip(*line, strict=True))
    right = min(max(bisect_right(points, kl, key=lambda point: point[0]), 1), len(points) - 1)
    (begin, first), (end, last) = points[right - 1], points[right]
    return first + (last - first) * (kl - begin) / (end - begin) if end > begin else first


def is_more_at_equal_kl(ours: Line, theirs: Line) -> Verdict:
    """Whether the one line gains more; None where the lines share less than LEAST_SHARED_KL, too
    little to tell."""
    span, lead = shared_kl(ours, theirs), lead_of(ours, theirs)
    if span is None or lead is None or span[1] - span[0] < LEAST_SHARED_KL:
        return None
    return lead > 0


def loses_less(words: str, ours: Line, theirs: Line) -> dict[str, Verdict]:
    """Whether less is lost on our line than on theirs: at every KL coefficient, and at equal KL."""
    lost = zip(ours[1], theirs[1], strict=True)
    return {
        f"{words} at every KL coefficient": all(mine < other for mine, other in lost),
        f"{words} at equal KL": is_more_at_equal_kl(theirs, ours),
    }


@dataclass(frozen=True)
class Lead:
    """How far a method is ahead of another in each seed, and the KL they share, mean over seeds."""

    over: str
    by_seed: list[float]
    span: tuple[float, float]

    @property
    def standing(self) -> str:
        """A lead is clear that is above 0 in every seed, and above twice its standard deviation."""
        values, mean = self.by_seed, fmean(self.by_seed)
        if mean <= 0:
            return "behind"
        is_clear = len(values) > 1 and min(values) > 0 and mean > 2 * stdev(values)
        return "clearly over" if is_clear else "not clearly over"

    def __str__(self) -> str:
        spread = f" ± {stdev(self.by_seed):.3f}" if len(self.by_seed) > 1 else ""
        low, high = self.span
        return f"{self.over} ({fmean(self.by_seed):+.3f}{spread}, {low:.2f} to {high:.2f} nats)"


def highest(seeds: Sequence[Mapping[str, Line]], gained: str) -> str:
    """A sentence: the method that is ahead of most others, less those it is behind, and how clearly
    it is ahead of each.

    seeds: each seed's line by the method's name.
    """
    names = list(seeds[0])
    leads = {name: _leads(seeds, name) for name in names}

    def rank(name: str) -> tuple[int, float]:
        means = [fmean(lead.by_seed) for lead in leads[name]]
        return sum(1 if mean > 0 else -1 for mean in means), sum(means)

    top = max(names, key=rank)
    parts = []
    for standing in ("clearly over", "not clearly over", "behind"):
        others = [str(lead) for lead in leads[top] if lead.standing == standing]
        parts += [f"{standing} {', '.join(others)}"] if others else []
    apart = set(names) - {top} - {lead.over for lead in leads[top]}
    parts += [f"not compared with {', '.join(sorted(apart))}, at other KL"] if apart else []
    return f"At equal KL {top} has the highest {gained}: {'; '.join(parts)}."


def _leads(seeds: Sequence[Mapping[str, Line]], name: str) -> list[Lead]:
    """A method's leads over all others with which it shares some KL in every seed."""
    shared = []
    for other in seeds[0]:
        leads = [lead_of(lines[name], lines[other]) for lines in seeds]
        spans = [shared_kl(lines[name], lines[other]) for lines in seeds]
        if other != name and None not in leads:
            low, high = (fmean(span[end] for span in spans if span) for end in (0, 1))
            shared.append(Lead(other, [lead for lead in leads if lead is not None], (low, high)))
    return shared
