"""Reading how the policy follows its judge: alignment against wins, distilled and direct.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267. Alignment is that of the judge's comparisons
with right labels by gold, as measured on the training pairs; direct RLAIF asks the same judge for
ratings.
"""

from __future__ import annotations

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.run.labels import ai_labeler
from trimtab.models.studies.measures import NET, WIN, answers, outcome, outcome_plot
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Plot, SeedResult, titled
from trimtab.models.studies.variants import AS_GOOD

KINDS = ("distilled", "direct")
ALIGNMENT, LABELS = "alignment with the truth", "alignment with people's labels"
WINS, MARGIN, HARMLESS = "wins against SFT", "wins minus losses", "harmless rate"


@exhibit(
    "rlaif",
    arms="judges",
    claim="The better a judge agrees with the truth, the better the policy, and one that is "
    "right four times in five beats SFT",
    printed="no such curve; distilled, 71 % wins against SFT on summaries and 63 % in helpful "
    "dialogue",
)
def alignment(artifacts: Artifacts) -> SeedResult:
    """Wins against SFT by the judge's alignment, distilled and direct.

    A row a judge and way of using it, and one of people's labels.
    """
    accuracies = sorted(
        float(role.removeprefix("judged_"))
        for role in artifacts.inputs
        if role.startswith("judged_")
    )
    judges = {accuracy: _aligned(artifacts, f"{accuracy:g}") for accuracy in accuracies}
    found = {
        kind: {
            a: {
                ALIGNMENT: judges[a][ALIGNMENT],
                **_results(artifacts, f"{kind}_{a:g}"),
                LABELS: judges[a][LABELS],
            }
            for a in accuracies
        }
        for kind in KINDS
    }
    table = {
        f"{kind}, right in {accuracy:g}": row
        for kind, rows in found.items()
        for accuracy, row in rows.items()
    }
    checks = {}
    for kind, rows in found.items():
        worst, best = rows[accuracies[0]], rows[accuracies[-1]]
        checks[f"{kind}: the policy of the best judge wins more often than the worst's"] = (
            best[WINS] > worst[WINS]
        )
        checks[f"{kind}: with a judge right in {AS_GOOD:g} it wins more than it loses"] = (
            rows[AS_GOOD][MARGIN] > 0
        )
    return SeedResult(
        table | {"people's labels": _results(artifacts, "people")},
        checks,
        plots=[_plot_by_alignment(found, column) for column in (WINS, MARGIN)],
    )


@exhibit(
    "rlaif",
    arms="feedback",
    claim="AI feedback whose errors are independent is as good as people's, and direct better than "
    "distilled",
    printed="RLAIF against RLHF 50 % (summaries), 52 % (helpful); direct against distilled 60 %",
)
def feedback(artifacts: Artifacts) -> SeedResult:
    """People's labels, and a judge as often right on clear pairs: distilled and direct, by
    head-to-head wins.

    Policies of three kinds of feedback, each against SFT and against each other.

    The judge's errors are independent noise on gold, which measures the policies too: a direct
    judge has no fault that a policy could learn to use. A judge's labels are soft; people's are
    smoothed as far for the comparison.
    """
    names = {
        "people": "people's labels",
        "people_smoothed": "people's labels, smoothed",
        f"distilled_{AS_GOOD}": "distilled",
        f"direct_{AS_GOOD}": "direct",
    }
    table = {label: _results(artifacts, name) for name, label in names.items()}
    for label in ("distilled", "direct"):
        table[label] |= _aligned(artifacts, f"{AS_GOOD}")
    versus = {
        "distilled against people's labels, smoothed": "distilled_versus_people",
        "direct against people's labels, smoothed": "direct_versus_people",
        "direct against distilled": "direct_versus_distilled",
    }
    won = {words: outcome(artifacts, role) for words, role in versus.items()}
    table |= {words: {MARGIN: judged[NET], "wins": judged[WIN]} for words, judged in won.items()}
    nets = [judged[NET] for judged in won.values()]
    return SeedResult(
        table,
        checks={
            "distilled is at most five points behind people's labels": nets[0] >= -0.05,
            "direct is at most five points behind people's labels": nets[1] >= -0.05,
            "direct wins more often than it loses against distilled": nets[2] > 0,
        },
        plots=[outcome_plot("Kinds of feedback against each other", won, "each other")],
    )


def _aligned(artifacts: Artifacts, name: str) -> dict[str, float]:
    labeler = ai_labeler(artifacts, f"judged_{name}")
    if labeler is None or labeler.truth_alignment is None:
        raise ReportInputError(f"judged_{name} holds no verdicts on pairs whose truth is known")
    return {ALIGNMENT: labeler.truth_alignment.value, LABELS: labeler.alignment.value}


def _results(artifacts: Artifacts, name: str) -> dict[str, float]:
    """How a policy does on the main prompts, by gold."""
    judged, measured = outcome(artifacts, f"judge_{name}"), answers(artifacts, name)
    summary = artifacts.document(f"eval_{name}", "summary.json")
    return {
        MARGIN: judged[NET],
        WINS: judged[WIN],
        HARMLESS: float(summary["main_harmless"]),
        **measured,
    }


def _plot_by_alignment(found: dict[str, dict[float, dict[str, float]]], column: str) -> Plot:
    return Plot(
        f"{titled(column)} by alignment",
        "AI labeler alignment with the truth (share of pairs)",
        f"{column}, by gold\n(share of the main prompts)",
        {
            kind: (
                [row[ALIGNMENT] for row in rows.values()],
                [row[column] for row in rows.values()],
            )
            for kind, rows in found.items()
        },
        note="Alignment is that of the first seed.",
    )
