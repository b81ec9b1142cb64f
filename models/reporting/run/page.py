"""The page: fills the template with the scorecard, the plots, the audit and sample answers.

Some samples are drawn at random, so that nobody picks them; beside them stand the largest gains and
losses.

Everything that came from data or a model is untrusted: the template escapes it, and the page's
content security policy forbids scripts and requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts, Row
from trimtab.models.reporting.kit.charts import Chart
from trimtab.models.reporting.kit.html import points, render_page
from trimtab.models.reporting.kit.names import PROBE_NAMES
from trimtab.models.reporting.run.charts import (
    SCORER_NAMES,
    cost_chart,
    curve_charts,
    frontier_chart,
    label_charts,
    outcome_charts,
    scorer_charts,
    vote_charts,
)
from trimtab.models.reporting.run.labels import flip_word, most_doubted, strength_rows
from trimtab.models.reporting.run.policies import Curve, final_policy
from trimtab.models.reporting.run.revisions import revision_examples
from trimtab.models.reporting.run.scorecard import Scorecard

MAX_CHARACTERS = 1500
NUM_RANDOM, NUM_EXTREME = 5, 3
# Answers of SFT and of the final policy to the same prompts, as rows of responses.jsonl.
Samples = list[tuple[Row, Row]]


def charts_of(
    artifacts: Artifacts, card: Scorecard, curves: Mapping[str, Curve]
) -> dict[str, list[Chart]]:
    """Every plot of the report, by the section it stands in."""
    rounds = {n: c for n, c in curves.items() if n == "full" or is_round(n)}
    cost, frontier = cost_chart(card.stages), frontier_chart(artifacts, card)
    return {
        "labels": label_charts(strength_rows(artifacts, "strength"), card.vote_used),
        "votes": vote_charts({m: v for m, v in card.human_votes.items() if m in card.label_noise}),
        "scorers": scorer_charts(artifacts, card),
        "policies": curve_charts({n: c for n, c in curves.items() if not is_round(n)}),
        "rounds": curve_charts(rounds) if any(map(is_round, curves)) else [],
        "outcomes": outcome_charts(card),
        "frontier": [frontier] if frontier else [],
        "cost": [cost] if cost else [],
    }


def render(
    artifacts: Artifacts, config: ReportConfig, card: Scorecard, charts: Mapping[str, list[Chart]]
) -> str:
    """The whole page as HTML."""
    filters = {
        "bare_points": lambda estimate: points(estimate).replace(" points", ""),
        "clip": clip,
    }
    final = final_policy(card.policies, config.champion)
    measure = card.verdict.judged_by or "judge_score"
    role = f"eval_{final.name}" if final else ""
    budgets = [policy.budget for policy in card.policies if policy.budget]
    return render_page(
        "report.html.j2",
        filters,
        card=card,
        flip=flip_word(artifacts),
        config_text=json.dumps(config.config, indent=1, ensure_ascii=False, default=str),
        scorer_names=SCORER_NAMES,
        probe_names=PROBE_NAMES,
        claim_units=CLAIM_UNITS,
        final=final,
        measure=measure,
        has_harmless=any(s.harmless for p in card.policies for s in p.sets.values()),
        has_judge=any(budget.judge_tokens for budget in budgets),
        has_samples=any(budget.samples_per_answer > 1 for budget in budgets),
        promotes_always=config.config.get("rounds", {}).get("promote") == "always",
        drawn=charts,
        audited=most_doubted(artifacts),
        revised=revision_examples(artifacts, config.seed),
        has_audit=artifacts.has("audit"),
        samples=sample_groups(artifacts, role, measure, config.seed) if final else {},
    )


def is_round(name: str) -> bool:
    """Whether a policy's name is that of a MetaRM round after the first."""
    return name.startswith("round_")


# How to print what a claim measured: name to words and filter.
CLAIM_UNITS = {
    "in_sample": ("AUROC, in-sample vote", "number"),
    "without_near_ties": ("the same, near-ties left out", "number"),
    "cross_fitted": ("AUROC, cross-fitted vote", "number"),
    "accuracy_gain": ("difference of accuracy", "points"),
    "accuracy_change": ("difference of accuracy", "points"),
    "ece_change": ("difference of calibration error, annotators' labels", "points"),
    "ece_change_clean": ("the same, right labels", "points"),
    "overconfidence": (
        "the reward model's confidence less its accuracy, which the bound takes back if above 0",
        "points",
    ),
    "spread_change": ("difference of the spread", "change"),
    "spread_ratio_change": ("of its ratio to the spread within", "change"),
    "net_win": ("wins minus losses", "points"),
    "kl": ("KL in nats", "number"),
    "score_change": ("change of the score, in spreads", "change"),
    "gold_change": ("change of gold", "change"),
    "forget_gain": ("difference", "change"),
}


def clip(text: str) -> str:
    """A text that fits the page; says how much was left out."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out:,} characters left out …]\n{text[-half:]}"


def sample_groups(artifacts: Artifacts, role: str, measure: str, seed: int) -> dict[str, Samples]:
    """Random samples and extremes of the main and forget sets, by title rows of SFT and `role`."""
    before, after = (artifacts.rows(name, "responses.jsonl") for name in ("eval_sft", role))
    if not before or [row["prompt"] for row in before] != [row["prompt"] for row in after]:
        return {}
    rng = random.Random(f"samples/{seed}")
    groups: dict[str, Samples] = {}
    for place, title in (("main", "main test prompts"), ("forget", "forget set")):
        pairs = [(a, b) for a, b in zip(before, after, strict=True) if a["set"] == place]
        gains = [(b[measure] - a[measure], a, b) for a, b in pairs]
        groups[f"Drawn at random from the {title}"] = rng.sample(pairs, min(NUM_RANDOM, len(pairs)))
        ordered = sorted(gains, key=lambda gain: gain[0])
        for word, chosen in (
            ("gains", [(a, b) for gain, a, b in ordered[::-1] if gain > 0]),
            ("losses", [(a, b) for gain, a, b in ordered if gain < 0]),
        ):
            groups[f"Largest {word} on the {title}"] = chosen[:NUM_EXTREME]
    return {title: pairs for title, pairs in groups.items() if pairs}
