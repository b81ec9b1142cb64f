"""Figures of [PPO, arXiv 2307.04964]: what PPO's tricks do to training and to the answers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median, pstdev

import numpy as np

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.policies import Curve
from trimtab.models.studies.frontier import lead_at_equal_kl
from trimtab.models.studies.measures import (
    KL,
    LOSE,
    LOST,
    NET,
    RIGHT,
    WIN,
    accuracies,
    answers,
    curve_of,
    curve_plots,
    curves_of,
    curves_table,
    forgetting,
    forgetting_plot,
    outcome,
    read_by_kl,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Plot, SeedResult, bar_plot
from trimtab.models.studies.variants import (
    CONSTRAINTS,
    EARLY,
    JOINT_CLIPS,
    PTX_COEFS,
    PTX_KL_COEFS,
    SCORES,
    STARTS,
    VANILLA,
    Variant,
)

ALL_MONITORS = ("score", "gold", "kl", "perplexity", "response_length")
# By the roles of their answers.
SCORED = {"sft": "SFT", "ppo_max_rm": "PPO-max", "vanilla": "vanilla PPO"}
NUM_BINS = 24


@exhibit(
    "part-1",
    arms="early_reward_models",
    in_world=True,
    claim="A reward model of few steps is nearly as accurate, and PPO on it comes out worse",
    printed="after 200 steps accuracy is good, and PPO on that model fails; no numbers printed",
)
def figure_3(artifacts: Artifacts) -> SeedResult:
    """Reward models of few steps and of all: accuracy, and policies of PPO-max on them.

    One pass over the first pairs in place of the first steps of a pass over all of them.
    """
    table = {
        variant.label: {
            **accuracies(artifacts, f"scorer_{name}"),
            **answers(artifacts, name),
            **outcome(artifacts, f"judge_{name}"),
        }
        for name, variant in EARLY.items()
    }
    *few, all_pairs = table.values()
    return SeedResult(
        table,
        checks={
            "of 800 pairs it is at most three points less accurate": few[-1][RIGHT]
            > all_pairs[RIGHT] - 0.03,
            "PPO on each of few pairs wins less against SFT": all(
                row[NET] < all_pairs[NET] for row in few
            ),
        },
        plots=[
            bar_plot(
                "A reward model's accuracy, and the policy trained on it",
                "pairs the reward model was trained on",
                "share of the test pairs, or of the main prompts",
                table,
                {RIGHT: RIGHT, "wins minus losses against SFT": NET},
            )
        ],
    )


@exhibit(
    "part-1",
    arms="vanilla_ppo",
    varied=VANILLA,
    claim="The score rises while quality does not; collapse shows in KL, perplexity and length",
    printed="no numbers printed; the collapsed model answers longer, at lower perplexity",
)
def figure_4(artifacts: Artifacts) -> SeedResult:
    """Vanilla PPO: score, perplexity, KL and length by step."""
    curves = {"vanilla PPO": curve_of(artifacts, "vanilla")}
    row = curves_table(curves)["vanilla PPO"]
    judged = outcome(artifacts, "judge_vanilla")
    curve = curves["vanilla PPO"]
    return SeedResult(
        table={"vanilla PPO": row | {"wins less losses against SFT": judged[NET]}},
        checks={
            "the score rises": row["score gained, spreads"] > 0,
            "answers win less than a tenth more often than they lose": judged[NET] < 0.1,
            "KL ends beyond 2 nats": row[KL] > 2,
            "perplexity falls": row["perplexity"] < curve.perplexity[0],
        },
        plots=curve_plots(curves, ALL_MONITORS),
    )


@exhibit(
    "part-1",
    arms="vanilla_ppo",
    varied=SCORES,
    claim="Normalised and clipped scores hold the policy nearer to its start than raw ones",
    printed="no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
)
def figure_6(artifacts: Artifacts) -> SeedResult:
    """Score reparameterisation: scaling, normalisation and clipping of rewards and advantages."""
    curves = curves_of(artifacts, SCORES)
    table = _with_outcomes(artifacts, SCORES, curves)
    raw = table["raw scores"]
    clipped = [table[SCORES[n].label] for n in ("normalised_clip_80", "normalised_clip_30")]
    tight = [table[SCORES[n].label] for n in ("advantage_clip_50", "advantage_clip_12")]
    return SeedResult(
        table,
        checks={
            "normalised and clipped rewards end at less KL than raw ones": all(
                row[KL] < raw[KL] for row in clipped
            ),
            "clipped advantages do, too": all(row[KL] < raw[KL] for row in tight),
            "a tighter reward clip keeps the policy nearer": clipped[1][KL] < clipped[0][KL],
        },
        plots=curve_plots(curves, ("score", "gold", "kl", "perplexity")),
    )


@exhibit(
    "part-1",
    arms="vanilla_ppo",
    varied=CONSTRAINTS,
    claim="The token KL penalty is what keeps training stable; an entropy bonus adds nothing to it",
    printed="no numbers printed; KL coefficients .05, .1 and .2",
)
def figure_7(artifacts: Artifacts) -> SeedResult:
    """Policy constraints: KL penalty, importance sampling against the reference, entropy bonus."""
    curves = curves_of(artifacts, CONSTRAINTS)
    table = _with_outcomes(artifacts, CONSTRAINTS, curves)
    free, bound = (
        table["no constraint"],
        [table[CONSTRAINTS[f"kl_{n}"].label] for n in ("05", "10", "20")],
    )
    return SeedResult(
        table,
        checks={
            "the more KL penalty, the less KL": free[KL]
            > bound[0][KL]
            > bound[1][KL]
            > bound[2][KL],
            "with a penalty answers win more often against SFT": min(b[NET] for b in bound)
            > free[NET],
            "a penalty beside the ratio to the reference binds more than the ratio": table[
                "the same, KL penalty .05"
            ][KL]
            < table["ratio to the reference"][KL],
            "an entropy bonus is no better than the best penalty": table["entropy bonus"][NET]
            <= max(b[NET] for b in bound),
        },
        plots=curve_plots(curves, ("score", "gold", "kl", "perplexity")),
    )


@exhibit(
    "part-1",
    arms="starts",
    claim="The critic's start matters early only; a policy without SFT fails",
)
def figure_8(artifacts: Artifacts) -> SeedResult:
    """Initialisation of critic and policy."""
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
    arms="ppo_max",
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


@exhibit(
    "part-1",
    arms="vanilla_and_ppo_max",
    claim="PPO-max moves scores within the range of SFT's answers, vanilla PPO beyond it",
    printed="no numbers printed; long tails in a run that fails",
)
def score_distributions(artifacts: Artifacts) -> SeedResult:
    """Appendix A: how a reward model's scores of answers lie before and after PPO.

    Scores of the answers to the main prompts, by the reward model that PPO is trained on, less
    the mean of SFT's in the prompt's category: categories differ as much as answers do.
    """
    rows = {
        name: [
            row for row in artifacts.rows(f"eval_{name}", "responses.jsonl") if row["set"] == "main"
        ]
        for name in SCORED
    }
    by_category: dict[str, list[float]] = {}
    for row in rows["sft"]:
        by_category.setdefault(str(row.get("category")), []).append(float(row["score"]))
    means = {category: fmean(scores) for category, scores in by_category.items()}
    scores = {
        SCORED[name]: [float(row["score"]) - means[str(row.get("category"))] for row in own]
        for name, own in rows.items()
    }
    start, bound, free = scores.values()
    limit = float(np.quantile(start, 0.99))
    beyond = {name: fmean(s > limit for s in values) for name, values in scores.items()}
    table = {
        name: {
            "median": median(values),
            "standard deviation": pstdev(values),
            "share beyond SFT's 99th percentile": beyond[name],
        }
        for name, values in scores.items()
    }
    edges = np.linspace(min(map(min, scores.values())), max(map(max, scores.values())), NUM_BINS)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    return SeedResult(
        table,
        checks={
            "both raise the median score": min(median(bound), median(free)) > median(start),
            "at most a tenth of PPO-max's answers score beyond SFT's": beyond["PPO-max"] <= 0.1,
            "more than a tenth of vanilla PPO's do": beyond["vanilla PPO"] > 0.1,
        },
        plots=[
            Plot(
                "Scores of the answers",
                "score by the reward model, less SFT's mean in the category",
                "density, answers to the main test prompts",
                {
                    name: (middles, np.histogram(values, edges, density=True)[0].tolist())
                    for name, values in scores.items()
                },
                kind="paths",
            )
        ],
    )


@exhibit(
    "part-1",
    arms="vanilla_ppo",
    varied=JOINT_CLIPS,
    claim="Clipped advantages beside clipped rewards hold the policy nearer, and gain nothing",
    printed="no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
)
def joint_clips(artifacts: Artifacts) -> SeedResult:
    """Appendix B.1: rewards clipped, with advantages clipped beside them and without.

    Normalised rewards at two clips, each with normalised advantages at two clips and none.
    """
    curves = curves_of(artifacts, JOINT_CLIPS)
    table = _with_outcomes(artifacts, JOINT_CLIPS, curves)
    checks: dict[str, bool] = {}
    for score in dict.fromkeys(variant.changes["score_clip"] for variant in JOINT_CLIPS.values()):
        alone, *both = (
            table[variant.label]
            for variant in JOINT_CLIPS.values()
            if variant.changes["score_clip"] == score
        )
        checks |= {
            f"reward clip {score:g}: with either advantage clip KL ends lower": all(
                row[KL] < alone[KL] for row in both
            ),
            f"reward clip {score:g}: on average they win at most five points more": fmean(
                row[NET] for row in both
            )
            <= alone[NET] + 0.05,
        }
    return SeedResult(table, checks, plots=curve_plots(curves, ("score", "gold", "kl")))


@exhibit(
    "part-1",
    arms="pretraining_losses",
    claim="PPO loses abilities, and the pre-training loss keeps them at no cost in alignment",
    printed="on C-Eval PPO is below SFT, and PPO with the pre-training loss near it",
)
def alignment_tax(artifacts: Artifacts) -> SeedResult:
    """Section 6.4: what PPO loses of what SFT could do, with the pre-training loss and without.

    Shares lost of the forget set, eight task families that PPO's prompts have none of.

    In place of pre-training data: the demonstrations, which show those tasks. Families are of one
    size, so that a share is the mean over them. The loss on demonstrations holds a policy near SFT
    as the KL penalty does: what it keeps beyond that is read at equal KL on the main prompts.
    """
    names = {f"ptx_{coef:g}": f"weight {coef:g}" if coef else "without" for coef in PTX_COEFS}

    def read(_: str, policy: str) -> dict[str, float]:
        return forgetting(artifacts, policy) | answers(artifacts, policy)

    table, lines = read_by_kl(names, PTX_KL_COEFS, read, LOST)
    nets = {
        name: [table[f"{label}, KL coefficient {coef:g}"]["main, net"] for coef in PTX_KL_COEFS]
        for name, label in names.items()
    }
    (_, lost), without = lines["ptx_0"], "ptx_0"
    checks = {"without it PPO loses a tenth of the forget set": lost[0] > 0.1}
    for name in list(names)[1:]:
        lead = lead_at_equal_kl(lines[name], lines[without])
        checks |= {
            f"{names[name]}: less is lost at every KL coefficient": all(
                ours < theirs for ours, theirs in zip(lines[name][1], lost, strict=True)
            ),
            f"{names[name]}: less is lost at equal KL": (lead or 0.0) < 0,
            f"{names[name]}: main prompts are won as often, within five points": all(
                ours > theirs - 0.05 for ours, theirs in zip(nets[name], nets[without], strict=True)
            ),
        }
    by_label = {names[name]: line for name, line in lines.items()}
    return SeedResult(table, checks, [forgetting_plot(by_label, "A point a KL coefficient.")])


def _with_outcomes(
    artifacts: Artifacts, variants: Mapping[str, Variant], curves: Mapping[str, Curve]
) -> dict[str, dict[str, float]]:
    """Each run's last steps, its answers to the main prompts, and how these do against SFT's."""
    table = curves_table(curves)
    for name, variant in variants.items():
        found, row = answers(artifacts, name), table[variant.label]
        table[variant.label] = {
            **{key: row[key] for key in ("score gained, spreads", KL, "perplexity")},
            **{key: found[key] for key in found if key != KL},
            **outcome(artifacts, f"judge_{name}"),
        }
    return table
