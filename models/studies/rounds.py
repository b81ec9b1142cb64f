"""Exhibits of MetaRM's rounds [RM, arXiv 2401.06080, section 3.2].

Rounds are held against as many of PPO-max on the reward model as it is (`plain`), and on one that
is trained on with an ascent of 0 (`eta_0`).
"""

from __future__ import annotations

from itertools import count, takewhile
from statistics import fmean

from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.studies.frontier import is_more_at_equal_kl
from trimtab.models.studies.measures import (
    GAINED,
    KL,
    STABILITY,
    SeedRun,
    accuracy_of,
    curve_plots,
    curves_table,
    outcome_plot,
    percent_in_bins,
)
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import (
    Line,
    Plot,
    SeedResult,
    Verdict,
    bar_plot,
    line_at,
    line_of,
)
from trimtab.models.studies.variants import META_UPDATES, ROUND_ARMS, dynamic_kl

exhibit = exhibits_in("part-2")
TENTHS = [index / 10 for index in range(11)]
SPREAD = "difference of answers' scores, after / before"
NO_HELD_OUT = (
    "no score differences outside the meta set: there must be more prompts than "
    "rounds.meta_rm.num_prompts"
)


@exhibit(
    arms="rounds",
    claim="Wins rise over the first rounds, by more than without MetaRM; the last one declines",
    printed="wins 44, 65, 69, 64 (harmless), 39, 62, 73, 67 (helpful)",
)
def table_2(run: SeedRun) -> SeedResult:
    """MetaRM rounds against SFT."""
    judged = {arm: [run.outcome(role) for role in _rounds(run, arm)] for arm in ROUND_ARMS}
    table = {
        f"{ROUND_ARMS[arm].label}, round {number}": row
        for arm, rows in judged.items()
        for number, row in enumerate(rows, start=1)
    }
    ours = [row["net"] for row in judged["meta"]]
    best = {arm: max(row["net"] for row in rows) for arm, rows in judged.items()}
    checks = {
        "the second round beats SFT by more than the first": ours[1] > ours[0],
        "the last round is not the best": best["meta"] > ours[-1],
        "every round beats SFT": min(ours) > 0,
        "the best round is better than the best without MetaRM": best["meta"] > best["plain"],
        "the best round is better than the best with eta 0": best["meta"] > best["eta_0"],
    }
    numbers = range(1, len(ours) + 1)
    lines = {ROUND_ARMS[arm].label: line_at(numbers, rows, "net") for arm, rows in judged.items()}
    plot = Plot("Rounds against SFT", "round", "wins minus losses, main prompts", lines)
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="rounds",
    claim="The best round beats SFT, and PPO on the reward model as it is too",
    printed="69/28/3 against SFT, 54/31/15 against PPO (harmless)",
)
def table_3(run: SeedRun) -> SeedResult:
    """The best MetaRM round against SFT and against PPO-max on the reward model as it is.

    The latter has as many steps. The best is chosen on the validation prompts, by
    annotators or held-out reward models.
    """
    rounds = _rounds(run, "meta")
    best = max(rounds, key=run.validated)
    return _compare_with_rivals(run, best, f"versus_{{}}_{rounds.index(best) + 1}", "main")


@exhibit(
    arms="adaptation",
    in_world=True,
    claim="Out of distribution the method still beats both, by less",
    printed="no numbers in the text",
)
def figure_15(run: SeedRun) -> SeedResult:
    """The same on a task family that the reward model never saw.

    Rounds on unlabelled prompts of a family that no pair is of, MetaRM's answers among them.
    """
    rounds = _rounds(run, "adapted_meta")
    versus = f"versus_adapted_{{}}_{len(rounds)}"
    result = _compare_with_rivals(run, rounds[-1], versus, "held_out")
    inside = run.outcome(f"judge_meta_{len(rounds)}")["net"]
    less = {"SFT by less than in distribution": result.table["SFT"]["net"] < inside}
    return SeedResult(result.table, {**result.checks, **less}, result.plots)


def _compare_with_rivals(run: SeedRun, judged: str, versus: str, eval_set: str) -> SeedResult:
    """A MetaRM policy against SFT and the policies of as many steps of the other arms.

    versus: the role of its comparison with an arm, whose name is filled in.
    """
    table = {"SFT": run.outcome(judged, eval_set)}
    for arm in ("plain", "eta_0"):
        label = f"PPO-max, {ROUND_ARMS[arm].label}"
        table[label] = run.outcome(versus.format(arm), eval_set)
    return SeedResult(
        table,
        {f"it beats {rival}": row["net"] > 0 for rival, row in table.items()},
        [outcome_plot("The MetaRM policy", table, "the policy named")],
    )


def _rounds(run: SeedRun, arm: str) -> list[str]:
    """The judgements of an arm's rounds against SFT."""
    return list(takewhile(run.has, (f"judge_{arm}_{number}" for number in count(1))))


@exhibit(
    arms="rounds",
    claim="MetaRM spreads the scores of different answers to a prompt apart, more than training on",
)
def figure_16(run: SeedRun) -> SeedResult:
    """Score differences between answers to one prompt, before and after MetaRM.

    Of prompts outside the meta set, in the first round: all arms start from one reward model and
    SFT's answers. eta 0 is as much training without the ascent.
    """
    values: dict[str, list[float]] = {"before MetaRM": []}
    for arm in ("eta_0", "meta", "meta_kept"):
        rows = run.rows(f"meta_rm_{arm}_1", "spreads.jsonl")
        rows = [row for row in rows if row["set"] == "held_out"]
        if not rows:
            raise ReportInputError(NO_HELD_OUT)
        if arm == "meta":
            values["before MetaRM"] = [row["before"] for row in rows]
        values[f"after, {ROUND_ARMS[arm].label}"] = [row["after"] for row in rows]
    widest = max(map(max, values.values())) or 1.0
    means = {name: fmean(row) / widest for name, row in values.items()}
    before, without, ours, _ = means.values()
    checks = {
        "after MetaRM answers' scores lie further apart": ours > before,
        "and further than after as much training with eta 0": ours > without,
    }
    plot = Plot(
        "Score differences between answers to one prompt",
        "mean difference / the largest of all prompts",
        "prompts in a bin of a tenth (%)",
        {
            name: percent_in_bins([value / widest for value in row], TENTHS)
            for name, row in values.items()
        },
    )
    table = {name: {"mean difference / the largest": mean} for name, mean in means.items()}
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="rounds_at_dynamic_kl",
    claim="In each round the score rises; with a dynamic KL penalty quality is better at equal KL",
)
def figure_17(run: SeedRun) -> SeedResult:
    """Training curves of the rounds and of PPO-max on the reward model as it is.

    MetaRM's rounds are at a fixed KL coefficient and at one that is steered to a KL; PPO-max has as
    many steps. At equal KL: wins less losses by KL, a point a round; it cannot
    be told where the coefficient is never raised, as the target was not reached then.
    """
    numbers = range(1, len(_rounds(run, "meta")) + 1)
    ours, plain = ROUND_ARMS["meta"].label, ROUND_ARMS["plain"].label
    dynamic = f"{ours}, dynamic KL penalty"
    arms = {ours: "meta", plain: "plain", dynamic: "dynamic_meta"}
    curves = {
        f"{label}, round {n}": run.curve(f"{arm}_{n}")
        for label, arm in arms.items()
        for n in numbers
    }
    table = curves_table(curves)
    rows: dict[str, list[dict[str, float]]] = {}
    lines: dict[str, Line] = {}
    for label, arm in arms.items():
        policies = [run.policy(f"{arm}_{n}") for n in numbers]
        lines[label] = line_of(policies, KL, "net")
        rows[label] = [table[f"{label}, round {n}"] for n in numbers]
        for row, policy in zip(rows[label], policies, strict=True):
            row["net"] = policy["net"]
    coefs = [[row["kl_coef"] for row in run.metrics(f"policy_dynamic_meta_{n}")] for n in numbers]
    for n, row, by_step in zip(numbers, rows[dynamic], coefs, strict=True):
        row |= {"KL target, nats": dynamic_kl(n)["kl_target"], "last KL coefficient": by_step[-1]}
    both = zip(rows[ours], rows[plain], strict=True)
    is_held = any(max(by_step) > by_step[0] for by_step in coefs)
    is_better = is_more_at_equal_kl(lines[dynamic], lines[ours]) if is_held else None
    checks = {
        "the score rises in every round": all(row[GAINED] > 0 for row in rows[ours]),
        "in every round KL ends below that on the reward model as it is": all(
            mine[KL] < theirs[KL] for mine, theirs in both
        ),
        "with a dynamic KL penalty it wins more at equal KL than at a fixed coefficient": is_better,
    }
    by_kl = Plot(
        "Rounds by KL",
        "KL to SFT (nats per answer), main test prompts",
        "wins minus losses against SFT",
        lines,
        kind="paths",
        note="A point a round.",
    )
    return SeedResult(table, checks, [*curve_plots(curves, STABILITY), by_kl])


@exhibit(
    arms="meta_updates",
    claim="Turned round, or as a term of the loss, J spreads answers apart and costs no accuracy",
)
def meta_updates(run: SeedRun) -> SeedResult:
    """What J does to a reward model: the published update, its sign turned, J in the loss.

    All train one reward model on, on the same pairs; eta 0 has no J. Differences are between SFT's
    answers to prompts outside the meta set.
    """
    table = {}
    for name, variant in META_UPDATES.items():
        role = f"meta_rm_{name}"
        rows = [row for row in run.rows(role, "spreads.jsonl") if row["set"] == "held_out"]
        if not rows:
            raise ReportInputError(NO_HELD_OUT)
        spread = fmean(row["after"] for row in rows) / fmean(row["before"] for row in rows)
        table[variant.label] = {SPREAD: spread, **run.accuracies(role)}
    without = table[META_UPDATES["eta_0"].label]
    checks: dict[str, Verdict] = {}
    for name in ("descend", "term", "term_01"):
        label = META_UPDATES[name].label
        row = table[label]
        checks[f"{label}: answers lie further apart than with eta 0"] = (
            row[SPREAD] > without[SPREAD]
        )
        checks[f"{label}: the order is no worse"] = accuracy_of(row) >= accuracy_of(without)
    plot = bar_plot("Spread of answers' scores", "update", SPREAD, table, [SPREAD])
    return SeedResult(table, checks, [plot])
