"""Reading how the policy follows its judge: alignment against wins, distilled and direct.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267. Alignment is that of the judge's comparisons
with right labels by gold, as measured on the training pairs; direct RLAIF asks the same judge for
ratings.
"""

from __future__ import annotations

from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.reporting.kit.names import capitalised
from trimtab.models.reporting.run.labels import ai_labeler
from trimtab.models.studies.measures import SeedRun, outcome_plot
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Plot, Rows, SeedResult, line_of
from trimtab.models.studies.variants import AS_GOOD

exhibit = exhibits_in("rlaif")
KINDS = ("distilled", "direct")
ALIGNMENT, LABELS = "alignment with the truth", "alignment with people's labels"
WINS, MARGIN, HARMLESS = "wins against SFT", "wins minus losses", "harmless rate"
FEEDBACK = {
    "people": "people's labels",
    "people_smoothed": "people's labels, smoothed",
    f"distilled_{AS_GOOD:g}": "distilled",
    f"direct_{AS_GOOD:g}": "direct",
}
VERSUS = {
    "distilled_versus_people": "distilled against people's labels, smoothed",
    "direct_versus_people": "direct against people's labels, smoothed",
    "direct_versus_distilled": "direct against distilled",
}


@exhibit(
    arms="judges",
    claim="The better a judge agrees with the truth, the better the policy, and one that is "
    "right four times in five beats SFT",
    printed="no such curve; distilled, 71 % wins against SFT on summaries and 63 % in helpful "
    "dialogue",
)
def alignment(run: SeedRun) -> SeedResult:
    """Wins against SFT by the judge's alignment, distilled and direct."""
    judges = {right: _aligned(run, role) for right, role in run.swept("judged_").items()}
    table: Rows = {}
    checks: dict[str, bool] = {}
    by_kind: dict[str, list[dict[str, float]]] = {}
    for kind in KINDS:
        rows = {}
        for right, judge in judges.items():
            row = {ALIGNMENT: judge[ALIGNMENT]} | _results(run, f"{kind}_{right:g}")
            rows[right] = row | {LABELS: judge[LABELS]}
        by_kind[kind] = list(rows.values())
        table |= {f"{kind}, right in {right:g}": row for right, row in rows.items()}
        worst, *_, best = (row[WINS] for row in rows.values())
        words = f"{kind}: the policy of the best judge wins more often than the worst's"
        checks[words] = best > worst
        words = f"{kind}: with a judge right in {AS_GOOD:g} it wins more than it loses"
        checks[words] = rows[AS_GOOD][MARGIN] > 0
    plots = [
        Plot(
            f"{capitalised(column)} by alignment",
            "AI labeler alignment with the truth (share of pairs)",
            f"{column}, by gold\n(share of the main prompts)",
            {kind: line_of(rows, ALIGNMENT, column) for kind, rows in by_kind.items()},
            note="Alignment is that of the first seed.",
        )
        for column in (WINS, MARGIN)
    ]
    return SeedResult(table | {"people's labels": _results(run, "people")}, checks, plots)


@exhibit(
    arms="feedback",
    claim="AI feedback whose errors are independent is as good as people's, and direct better than "
    "distilled",
    printed="RLAIF against RLHF 50 % (summaries), 52 % (helpful); direct against distilled 60 %",
)
def feedback(run: SeedRun) -> SeedResult:
    """People's labels, and a judge as often right on clear pairs: distilled and direct, by
    head-to-head wins.

    The judge's errors are independent noise on gold, which measures the policies too: a direct
    judge has no fault that a policy could learn to use. A judge's labels are soft; people's are
    smoothed as far for the comparison.
    """
    table = {label: _results(run, name) for name, label in FEEDBACK.items()}
    for kind in KINDS:
        table[kind] |= _aligned(run, f"judged_{AS_GOOD:g}")
    won = {label: run.outcome(role) for role, label in VERSUS.items()}
    table |= {label: {MARGIN: row["net"], "wins": row["win"]} for label, row in won.items()}
    distilled, direct, each_other = (row["net"] for row in won.values())
    checks = {
        "distilled is at most five points behind people's labels": distilled >= -0.05,
        "direct is at most five points behind people's labels": direct >= -0.05,
        "direct wins more often than it loses against distilled": each_other > 0,
    }
    plot = outcome_plot("Kinds of feedback against each other", won, "each other")
    return SeedResult(table, checks, [plot])


def _aligned(run: SeedRun, role: str) -> dict[str, float]:
    labeler = ai_labeler(run, role)
    if labeler is None or labeler.truth_alignment is None:
        raise ReportInputError(f"{role} holds no verdicts on pairs whose truth is known")
    return {ALIGNMENT: labeler.truth_alignment.value, LABELS: labeler.alignment.value}


def _results(run: SeedRun, name: str) -> dict[str, float]:
    """How a policy does on the main prompts, by gold."""
    judged, summary = run.outcome(f"judge_{name}"), run.document(f"eval_{name}", "summary.json")
    row = {MARGIN: judged["net"], WINS: judged["win"], HARMLESS: float(summary["main_harmless"])}
    return row | run.answers(name)
