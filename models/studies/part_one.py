"""Figures of [PPO, arXiv 2307.04964]: what PPO's tricks do to training and to the answers."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.curves import Curve
from trimtab.models.studies.measures import (
    LOSE,
    NET,
    WIN,
    answers,
    curve_of,
    curve_plots,
    curves_of,
    curves_table,
    outcome,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import SeedResult
from trimtab.models.studies.variants import CONSTRAINTS, SCORES, STARTS, Variant

ALL_MONITORS = ("score", "gold", "kl", "perplexity", "response_length")


@exhibit(
    "part-1",
    "figure-4",
    shows="Vanilla PPO: score, perplexity, KL and length by step",
    claim="The score rises while quality does not; collapse shows in KL, perplexity and length",
    printed="no numbers printed; the collapsed model answers longer, at lower perplexity",
)
def figure_4(artifacts: Artifacts) -> SeedResult:
    """Vanilla PPO by step."""
    curves = {"vanilla PPO": curve_of(artifacts, "vanilla")}
    row = curves_table(curves)["vanilla PPO"]
    judged = outcome(artifacts, "judge_vanilla")
    curve = curves["vanilla PPO"]
    return SeedResult(
        table={"vanilla PPO": row | {"wins less losses against SFT": judged[NET]}},
        checks={
            "the score rises": row["score gained, spreads"] > 0,
            "answers win less than a tenth more often than they lose": judged[NET] < 0.1,
            "KL ends beyond 2 nats": row["KL, nats"] > 2,
            "perplexity falls": row["perplexity"] < curve.perplexity[0],
        },
        plots=curve_plots(curves, ALL_MONITORS),
    )


@exhibit(
    "part-1",
    "figure-6",
    shows="Score reparameterisation: scaling, normalisation and clipping of rewards and advantages",
    claim="Normalised and clipped scores hold the policy nearer to its start than raw ones",
    printed="no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
)
def figure_6(artifacts: Artifacts) -> SeedResult:
    """Score reparameterisation."""
    curves = curves_of(artifacts, SCORES)
    table = _with_outcomes(artifacts, SCORES, curves)
    raw = table["raw scores"]
    clipped = [table[SCORES[n].label] for n in ("normalised_clip_80", "normalised_clip_30")]
    tight = [table[SCORES[n].label] for n in ("advantage_clip_50", "advantage_clip_12")]
    return SeedResult(
        table,
        checks={
            "normalised and clipped rewards end at less KL than raw ones": all(
                row["KL, nats"] < raw["KL, nats"] for row in clipped
            ),
            "clipped advantages do, too": all(row["KL, nats"] < raw["KL, nats"] for row in tight),
            "a tighter reward clip keeps the policy nearer": clipped[1]["KL, nats"]
            < clipped[0]["KL, nats"],
        },
        plots=curve_plots(curves, ("score", "gold", "kl", "perplexity")),
    )


@exhibit(
    "part-1",
    "figure-7",
    shows="Policy constraints: KL penalty, importance sampling against the reference, entropy "
    "bonus",
    claim="The token KL penalty is what keeps training stable; an entropy bonus adds nothing to it",
    printed="no numbers printed; KL coefficients .05, .1 and .2",
)
def figure_7(artifacts: Artifacts) -> SeedResult:
    """Policy constraints."""
    curves = curves_of(artifacts, CONSTRAINTS)
    table = _with_outcomes(artifacts, CONSTRAINTS, curves)
    free, bound = (
        table["no constraint"],
        [table[CONSTRAINTS[f"kl_{n}"].label] for n in ("05", "10", "20")],
    )
    return SeedResult(
        table,
        checks={
            "the more KL penalty, the less KL": free["KL, nats"]
            > bound[0]["KL, nats"]
            > bound[1]["KL, nats"]
            > bound[2]["KL, nats"],
            "with a penalty answers win more often against SFT": min(b[NET] for b in bound)
            > free[NET],
            "a penalty beside the ratio to the reference binds more than the ratio": table[
                "the same, KL penalty .05"
            ]["KL, nats"]
            < table["ratio to the reference"]["KL, nats"],
            "an entropy bonus is no better than the best penalty": table["entropy bonus"][NET]
            <= max(b[NET] for b in bound),
        },
        plots=curve_plots(curves, ("score", "gold", "kl", "perplexity")),
    )


@exhibit(
    "part-1",
    "figure-8",
    shows="Initialisation of critic and policy",
    claim="The critic's start matters early only; a policy without SFT fails",
)
def figure_8(artifacts: Artifacts) -> SeedResult:
    """Where critic and policy start from."""
    curves = curves_of(artifacts, STARTS)
    table = _with_outcomes(artifacts, STARTS, curves)
    *critics, without_sft = (table[each.label][NET] for each in STARTS.values())
    return SeedResult(
        table,
        checks={
            "critics of three starts end within ten points of each other": max(critics)
            - min(critics)
            < 0.1,
            "without SFT the policy loses against SFT": without_sft < 0,
        },
        plots=curve_plots(curves, ("score", "gold", "kl", "response_length")),
    )


@exhibit(
    "part-1",
    "figure-9",
    shows="PPO-max by step",
    claim="PPO-max stays stable: the score rises at a bounded KL, and quality with it",
)
def figure_9(artifacts: Artifacts) -> SeedResult:
    """PPO-max by step."""
    curves = {"PPO-max": curve_of(artifacts, "ppo_max_rm")}
    row = curves_table(curves)["PPO-max"]
    judged = outcome(artifacts, "judge_ppo_max_rm")
    return SeedResult(
        table={"PPO-max": row | {name: judged[name] for name in (WIN, LOSE, NET)}},
        checks={
            "the score rises": row["score gained, spreads"] > 0,
            "KL stays below 2 nats": max(curves["PPO-max"].kl) < 2,
            "answers win more often than they lose against SFT": judged[NET] > 0,
        },
        plots=curve_plots(curves, ALL_MONITORS),
    )


def _with_outcomes(
    artifacts: Artifacts, variants: Mapping[str, Variant], curves: Mapping[str, Curve]
) -> dict[str, dict[str, float]]:
    """Each run's last steps, its answers to the main prompts, and how these do against SFT's."""
    table = curves_table(curves)
    for name, variant in variants.items():
        found, row = answers(artifacts, name), table[variant.label]
        table[variant.label] = {
            **{key: row[key] for key in ("score gained, spreads", "KL, nats", "perplexity")},
            **{key: found[key] for key in found if key != "KL, nats"},
            **outcome(artifacts, f"judge_{name}"),
        }
    return table
