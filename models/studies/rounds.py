"""Exhibits of MetaRM's rounds [RM, arXiv 2401.06080, section 3.2].

Rounds are held against as many of PPO-max on the reward model as it is (`plain`), and on one that
is trained on with an ascent of 0 (`eta_0`).
"""

from __future__ import annotations

from itertools import count, takewhile
from statistics import fmean

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.studies.frontier import lead_at_equal_kl
from trimtab.models.studies.measures import (
    KL,
    NET,
    answers,
    curve_of,
    curve_plots,
    curves_table,
    gained,
    last,
    outcome,
    outcome_plot,
    percent_in_bins,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Line, Plot, SeedResult, line_of
from trimtab.models.studies.variants import ROUND_ARMS

TENTHS = [index / 10 for index in range(11)]
MONITORS = ("score", "gold", "kl", "perplexity")


@exhibit(
    "part-2",
    arms="rounds",
    claim="Wins rise over the first rounds, by more than without MetaRM; the last one declines",
    printed="wins 44, 65, 69, 64 (harmless), 39, 62, 73, 67 (helpful)",
)
def table_2(artifacts: Artifacts) -> SeedResult:
    """MetaRM rounds against SFT.

    Every round against SFT: with MetaRM, with eta 0, and on the reward model as it is.
    """
    rounds = {name: _rounds(artifacts, name) for name in ROUND_ARMS}
    nets = {name: [outcome(artifacts, role)[NET] for role in rounds[name]] for name in rounds}
    table = {
        f"{ROUND_ARMS[name].label}, round {number}": outcome(artifacts, role)
        for name, roles in rounds.items()
        for number, role in enumerate(roles, start=1)
    }
    ours = nets["meta"]
    numbers = [float(number) for number in range(1, len(ours) + 1)]
    return SeedResult(
        table,
        checks={
            "the second round beats SFT by more than the first": ours[1] > ours[0],
            "the last round is not the best": max(ours) > ours[-1],
            "every round beats SFT": min(ours) > 0,
            "the best round is better than the best without MetaRM": max(ours) > max(nets["plain"]),
            "the best round is better than the best with eta 0": max(ours) > max(nets["eta_0"]),
        },
        plots=[
            Plot(
                "Rounds against SFT",
                "round",
                "wins minus losses, main prompts",
                {ROUND_ARMS[name].label: (numbers, values) for name, values in nets.items()},
            )
        ],
    )


@exhibit(
    "part-2",
    arms="rounds",
    claim="The best round beats SFT, and vanilla PPO too",
    printed="69/28/3 against SFT, 54/31/15 against PPO (harmless)",
)
def table_3(artifacts: Artifacts) -> SeedResult:
    """The best MetaRM round against SFT and against vanilla PPO.

    PPO-max on the reward model has as many steps. The best is chosen on the validation prompts, by
    annotators or held-out reward models.
    """
    rounds = _rounds(artifacts, "meta")
    nets = [_validated(artifacts, role) for role in rounds]
    best = nets.index(max(nets)) + 1
    return _compare_with_rivals(artifacts, rounds[best - 1], f"versus_{{}}_{best}", "main")


@exhibit(
    "part-2",
    arms="adaptation",
    in_world=True,
    claim="Out of distribution the method still beats both, by less",
    printed="no numbers in the text",
)
def figure_15(artifacts: Artifacts) -> SeedResult:
    """The same on a task family that the reward model never saw.

    Rounds on unlabelled prompts of a family that no pair is of, MetaRM's answers among them.
    """
    rounds = _rounds(artifacts, "adapted_meta")
    role = f"versus_adapted_{{}}_{len(rounds)}"
    result = _compare_with_rivals(artifacts, rounds[-1], role, "held_out")
    inside = outcome(artifacts, f"judge_meta_{len(rounds)}")[NET]
    less = {"SFT by less than in distribution": result.table["SFT"][NET] < inside}
    return SeedResult(result.table, result.checks | less, result.plots)


def _validated(artifacts: Artifacts, role: str) -> float:
    """Wins less losses on the validation prompts, by what promotes policies."""
    document = artifacts.document(role, "judgement.json")
    verdict = document.get("validation_annotators") or document["validation_judge_score"]
    return float(verdict[NET])


def _compare_with_rivals(
    artifacts: Artifacts, judged: str, versus: str, eval_set: str
) -> SeedResult:
    """A MetaRM policy against SFT and the policies of as many steps of the other arms.

    versus: the role of its comparison with an arm, whose name is filled in.
    """
    table = {"SFT": outcome(artifacts, judged, eval_set)} | {
        f"PPO-max, {ROUND_ARMS[name].label}": outcome(artifacts, versus.format(name), eval_set)
        for name in ("plain", "eta_0")
    }
    return SeedResult(
        table,
        checks={f"it beats {rival}": row[NET] > 0 for rival, row in table.items()},
        plots=[outcome_plot("The MetaRM policy", table, "the policy named")],
    )


def _rounds(artifacts: Artifacts, arm: str) -> list[str]:
    """The judgements of an arm's rounds against SFT."""
    roles = takewhile(artifacts.has, (f"judge_{arm}_{number}" for number in count(1)))
    return list(roles)


@exhibit(
    "part-2",
    arms="rounds",
    claim="MetaRM spreads the scores of different answers to a prompt apart, more than training on",
)
def figure_16(artifacts: Artifacts) -> SeedResult:
    """Score differences between answers to one prompt, before and after MetaRM.

    Score differences between answers to one prompt outside the meta set, in the first round.

    All arms start from one reward model and SFT's answers. eta 0 is as much training without the
    ascent.
    """
    spreads = {
        name: [
            row
            for row in artifacts.rows(f"meta_rm_{name}_1", "spreads.jsonl")
            if row["set"] == "held_out"
        ]
        for name in ("eta_0", "meta", "meta_kept")
    }
    if not all(spreads.values()):
        raise ReportInputError(
            "no score differences outside the meta set: there must be more prompts than "
            "rounds.meta_rm.num_prompts"
        )
    values = {"before MetaRM": [row["before"] for row in spreads["meta"]]} | {
        f"after, {ROUND_ARMS[name].label}": [row["after"] for row in rows]
        for name, rows in spreads.items()
    }
    widest = max(map(max, values.values())) or 1.0
    means = {name: fmean(row) / widest for name, row in values.items()}
    before, without, ours, _ = means.values()
    return SeedResult(
        table={name: {"mean difference / the largest": mean} for name, mean in means.items()},
        checks={
            "after MetaRM answers' scores lie further apart": ours > before,
            "and further than after as much training with eta 0": ours > without,
        },
        plots=[
            Plot(
                "Score differences between answers to one prompt",
                "mean difference / the largest of all prompts",
                "prompts in a bin of a tenth (%)",
                {
                    name: percent_in_bins([value / widest for value in row], TENTHS)
                    for name, row in values.items()
                },
            )
        ],
    )


@exhibit(
    "part-2",
    arms="rounds_at_dynamic_kl",
    claim="In each round the score rises; with a dynamic KL penalty quality is better at equal KL",
)
def figure_17(artifacts: Artifacts) -> SeedResult:
    """Training curves of the rounds and of vanilla PPO.

    MetaRM's rounds are at a fixed KL coefficient and at one that is steered to a KL; PPO-max on the
    reward model has as many steps. At equal KL: wins less losses by KL, a point a round.
    """
    numbers = range(1, len(_rounds(artifacts, "meta")) + 1)
    labels = {
        "meta": ROUND_ARMS["meta"].label,
        "plain": ROUND_ARMS["plain"].label,
        "dynamic_meta": f"{ROUND_ARMS['meta'].label}, dynamic KL penalty",
    }
    by_arm = {
        arm: {f"{label}, round {n}": curve_of(artifacts, f"{arm}_{n}") for n in numbers}
        for arm, label in labels.items()
    }
    ours, plain, _ = by_arm.values()
    curves = {name: curve for rounds in by_arm.values() for name, curve in rounds.items()}
    table = curves_table(curves)
    lines: dict[str, Line] = {}
    for arm, label in labels.items():
        rows = [
            {
                KL: answers(artifacts, f"{arm}_{n}")[KL],
                NET: outcome(artifacts, f"judge_{arm}_{n}")[NET],
            }
            for n in numbers
        ]
        for n, row in zip(numbers, rows, strict=True):
            table[f"{label}, round {n}"][NET] = row[NET]
        lines[arm] = line_of(rows, KL, NET)
    lead = lead_at_equal_kl(lines["dynamic_meta"], lines["meta"])
    return SeedResult(
        table,
        checks={
            "the score rises in every round": all(
                last(gained(curve)) > 0 for curve in ours.values()
            ),
            "in every round KL ends below that on the reward model as it is": all(
                last(mine.kl) < last(theirs.kl)
                for mine, theirs in zip(ours.values(), plain.values(), strict=True)
            ),
            "with a dynamic KL penalty it wins more at equal KL than at a fixed coefficient": (
                lead or 0.0
            )
            > 0,
        },
        plots=[
            *curve_plots(curves, MONITORS),
            Plot(
                "Rounds by KL",
                "KL to SFT (nats per answer), main test prompts",
                "wins minus losses against SFT",
                {labels[arm]: line for arm, line in lines.items()},
                kind="paths",
                note="A point a round.",
            ),
        ],
    )
