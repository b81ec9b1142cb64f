"""Figures of [PPO, arXiv 2307.04964]: what PPO's tricks do to training and to the answers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median, pstdev

import numpy as np

from trimtab.models.studies import variants
from trimtab.models.studies.frontier import loses_less
from trimtab.models.studies.measures import (
    GAINED,
    GIVEN,
    KL,
    LOST,
    RIGHT,
    STABILITY,
    GainCurve,
    SeedRun,
    curve_plots,
    curves_table,
    forgetting_plot,
    read_by_kl,
    read_variants,
)
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Effect, Plot, Rows, SeedResult, Verdict, bar_plot
from trimtab.models.studies.variants import Variant

exhibit = exhibits_in("part-1")
# By the roles of their answers.
SCORED = {"sft": "SFT", "ppo_max_rm": "PPO-max", "vanilla": "vanilla PPO"}
NUM_BINS = 24
LEAST_PAIRS = 30
MEAN, SPREAD = "mean difference", "standard deviation"
EARLY, LATE = f"{GAINED}, early", f"{GAINED}, late"


@exhibit(
    arms="early_reward_models",
    in_world=True,
    claim="A reward model of few steps is nearly as accurate, and PPO on it comes out worse",
    printed="after 200 steps accuracy is good, and PPO on that model fails; no numbers printed",
)
def figure_3(run: SeedRun) -> SeedResult:
    """Reward models of few steps and of all: accuracy, and policies of PPO-max on them.

    One pass over the first pairs in place of the first steps of a pass over all of them.
    """

    def read(name: str) -> dict[str, float]:
        return run.accuracies(f"scorer_{name}") | run.policy(name)

    table = read_variants(variants.EARLY, read)
    *few, all_pairs = table.values()
    least, best = all_pairs[RIGHT] - 0.03, max(row["net"] for row in few)
    checks = {
        "of 800 pairs it is at most three points less accurate": few[-1][RIGHT] > least,
        "PPO on each of few pairs wins less against SFT": best < all_pairs["net"],
    }
    plot = bar_plot(
        "A reward model's accuracy, and the policy trained on it",
        "pairs the reward model was trained on",
        "share of the test pairs, or of the main prompts",
        table,
        {RIGHT: RIGHT, "wins minus losses against SFT": "net"},
    )
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="vanilla_ppo",
    varied=variants.VANILLA,
    claim="The score rises while quality does not; collapse shows in KL, perplexity and length",
    printed="no numbers printed; the collapsed model answers longer, at lower perplexity",
)
def figure_4(run: SeedRun) -> SeedResult:
    """Vanilla PPO: score, perplexity, KL and length by step."""
    curves = {"vanilla PPO": run.curve("vanilla")}
    net = run.outcome("judge_vanilla")["net"]
    ((label, row),) = curves_table(curves).items()
    checks = {
        "the score rises": row[GAINED] > 0,
        "answers win less than a tenth more often than they lose": net < 0.1,
        "KL ends beyond 2 nats": row[KL] > 2,
        "perplexity falls": row["perplexity"] < curves[label].perplexity[0],
    }
    table = {label: row | {"wins less losses against SFT": net}}
    return SeedResult(table, checks, curve_plots(curves))


@exhibit(
    arms="vanilla_ppo",
    varied=variants.SCORES,
    claim="Normalised and clipped scores hold the policy nearer to its start than raw ones",
    printed="no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
)
def figure_6(run: SeedRun) -> SeedResult:
    """Score reparameterisation: scaling, normalisation and clipping of rewards and advantages."""
    curves, table = _curves_and_outcomes(run, variants.SCORES)
    raw, _, _, *clips, wide, tight = (row[KL] for row in table.values())
    nearer = {
        "normalised and clipped rewards end at less KL than raw ones": _nearer(max(clips), raw),
        "clipped advantages do, too": _nearer(max(wide, tight), raw),
        "a tighter reward clip keeps the policy nearer": _nearer(clips[1], clips[0]),
    }
    checks = {words: effect.measured > 0 for words, effect in nearer.items()}
    return SeedResult(table, checks, curve_plots(curves, STABILITY), nearer)


def _nearer(kl: float, other: float) -> Effect:
    """How much less the one KL is than the other, nats; looked for is half of the other's."""
    return Effect(other - kl, other / 2)


@exhibit(
    arms="vanilla_ppo",
    varied=variants.CONSTRAINTS,
    claim="The token KL penalty is what keeps training stable; an entropy bonus adds nothing to it",
    printed="no numbers printed; KL coefficients .05, .1 and .2",
)
def figure_7(run: SeedRun) -> SeedResult:
    """Policy constraints: KL penalty, importance sampling against the reference, entropy bonus."""
    curves, table = _curves_and_outcomes(run, variants.CONSTRAINTS)
    free, low, middle, high, ratio, both, _ = (row[KL] for row in table.values())
    without, *penalised, _, _, bonus = (row["net"] for row in table.values())
    checks = {
        "the more KL penalty, the less KL": free > low > middle > high,
        "with a penalty answers win more often against SFT": min(penalised) > without,
        "a penalty beside the ratio to the reference binds more than the ratio": both < ratio,
        "an entropy bonus is no better than the best penalty": bonus <= max(penalised),
    }
    return SeedResult(table, checks, curve_plots(curves, STABILITY))


@exhibit(arms="starts", claim="The critic's start matters early only; a policy without SFT fails")
def figure_8(run: SeedRun) -> SeedResult:
    """Initialisation of critic and policy.

    Early and late are the first and the last third of the steps in which the policy is trained,
    those of the critic alone left out.
    """
    curves, table = _curves_and_outcomes(run, variants.STARTS)
    for name, variant in variants.STARTS.items():
        alone = sum("policy_clip_fraction" not in row for row in run.metrics(f"policy_{name}"))
        trained = curves[variant.label].gained[alone:]
        third = max(1, len(trained) // 3)
        table[variant.label][EARLY] = fmean(trained[:third])
        table[variant.label][LATE] = fmean(trained[-third:])
    *critics, without_sft = table.values()

    def apart(column: str) -> float:
        values = [row[column] for row in critics]
        return max(values) - min(values)

    checks = {
        "early the scores of three critics' policies lie further apart than late": (
            apart(EARLY) > apart(LATE)
        ),
        "critics of three starts end within ten points of each other": apart("net") < 0.1,
        "without SFT the policy loses against SFT": without_sft["net"] < 0,
    }
    plots = curve_plots(curves, ("gained", "gold", "kl", "response_length"))
    return SeedResult(table, checks, plots)


@exhibit(
    arms="ppo_max",
    claim="PPO-max stays stable: the score rises at a bounded KL, and quality with it",
)
def figure_9(run: SeedRun) -> SeedResult:
    """PPO-max by step."""
    curves = {"PPO-max": run.curve("ppo_max_rm")}
    judged = run.outcome("judge_ppo_max_rm")
    ((label, row),) = curves_table(curves).items()
    checks = {
        "the score rises": row[GAINED] > 0,
        "KL stays below 2 nats": max(curves[label].kl) < 2,
        "answers win more often than they lose against SFT": judged["net"] > 0,
    }
    table = {label: row | {name: judged[name] for name in ("win", "lose", "net")}}
    return SeedResult(table, checks, curve_plots(curves))


@exhibit(
    arms="one_reward_model",
    claim="A reward model prefers the answers that people prefer, in every domain",
    printed="distributions, no numbers",
)
def figure_2(run: SeedRun) -> SeedResult:
    """How far a reward model's scores of a pair's answers lie apart, by domain of the prompt.

    Test pairs and the labels as given; a domain is a category of LEAST_PAIRS pairs or more.
    """
    scored, by_domain = run.labelled_gaps("scorer_raw"), dict[str, list[float]]()
    for row, gap in zip(scored.rows, scored.gap.tolist(), strict=True):
        by_domain.setdefault(str(row.get("category")), []).append(gap)
    by_domain = {name: by_domain[name] for name in sorted(by_domain)}
    by_domain = {name: gaps for name, gaps in by_domain.items() if len(gaps) >= LEAST_PAIRS}
    table = {
        domain: {
            GIVEN: fmean(gap > 0 for gap in gaps),
            MEAN: fmean(gaps),
            SPREAD: pstdev(gaps),
            "pairs": float(len(gaps)),
        }
        for domain, gaps in by_domain.items()
    }
    checks: dict[str, Verdict] = {
        f"{domain}: more than half of the pairs are ordered as people did": row[GIVEN] > 0.5
        for domain, row in table.items()
    }
    plot = bar_plot(
        "Differences of scores",
        "domain",
        "score of the better answer by the labels, less the other's",
        table,
        [MEAN, SPREAD],
    )
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="vanilla_and_ppo_max",
    claim="PPO-max moves scores within the range of SFT's answers, vanilla PPO beyond it",
    printed="no numbers printed; long tails in a run that fails",
)
def score_distributions(run: SeedRun) -> SeedResult:
    """Appendix A: how a reward model's scores of answers lie before and after PPO.

    Scores of the answers to the main prompts, by the reward model that PPO is trained on, less
    the mean of SFT's in the prompt's category: categories differ as much as answers do.
    """
    by_category: dict[str, list[float]] = {}
    for row in run.responses("sft"):
        by_category.setdefault(str(row.get("category")), []).append(float(row["score"]))
    means = {category: fmean(scores) for category, scores in by_category.items()}
    scores = {
        label: [float(r["score"]) - means[str(r.get("category"))] for r in run.responses(name)]
        for name, label in SCORED.items()
    }
    limit = float(np.quantile(scores["SFT"], 0.99))
    beyond = "share beyond SFT's 99th percentile"
    table = {
        name: {
            "median": median(values),
            "standard deviation": pstdev(values),
            beyond: fmean(score > limit for score in values),
        }
        for name, values in scores.items()
    }
    start, bound, free = table.values()
    edges = np.linspace(min(map(min, scores.values())), max(map(max, scores.values())), NUM_BINS)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    checks = {
        "both raise the median score": min(bound["median"], free["median"]) > start["median"],
        "at most a tenth of PPO-max's answers score beyond SFT's": bound[beyond] <= 0.1,
        "more than a tenth of vanilla PPO's do": free[beyond] > 0.1,
    }
    plot = Plot(
        "Scores of the answers",
        "score by the reward model, less SFT's mean in the category",
        "density, answers to the main test prompts",
        {
            name: (middles, np.histogram(values, edges, density=True)[0].tolist())
            for name, values in scores.items()
        },
        kind="paths",
    )
    return SeedResult(table, checks, [plot])


@exhibit(
    arms="vanilla_ppo",
    varied=variants.JOINT_CLIPS,
    claim="Clipped advantages beside clipped rewards hold the policy nearer, and gain nothing",
    printed="no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
)
def joint_clips(run: SeedRun) -> SeedResult:
    """Appendix B.1: rewards clipped, with advantages clipped beside them and without.

    Normalised rewards at two clips, each with normalised advantages at two clips and none.
    """
    curves, table = _curves_and_outcomes(run, variants.JOINT_CLIPS)
    rows, checks, nearer = list(table.values()), {}, {}
    for score, (alone, *both) in ((0.8, rows[:3]), (0.3, rows[3:])):
        words = f"reward clip {score:g}: with either advantage clip KL ends lower"
        nearer[words] = _nearer(max(row[KL] for row in both), alone[KL])
        checks[words] = nearer[words].measured > 0
        gain = fmean(row["net"] for row in both) <= alone["net"] + 0.05
        checks[f"reward clip {score:g}: on average they win at most five points more"] = gain
    return SeedResult(table, checks, curve_plots(curves, ("gained", "gold", "kl")), nearer)


@exhibit(
    arms="pretraining_losses",
    claim="PPO loses abilities, and the pre-training loss keeps them at no cost in alignment",
    printed="on C-Eval PPO is below SFT, and PPO with the pre-training loss near it",
)
def alignment_tax(run: SeedRun) -> SeedResult:
    """Section 6.4: what PPO loses of what SFT could do, with the pre-training loss and without.

    PPO's prompts have none of the forget set's eight task families, which the demonstrations, in
    place of pre-training data, show. Families are of one size, so that a share is the mean over
    them. The loss on demonstrations holds a policy near SFT as the KL penalty does: what it keeps
    beyond that is read at equal KL on the main prompts.
    """

    def read(_: str, policy: str) -> dict[str, float]:
        return run.forgetting(policy) | run.answers(policy)

    coefs = variants.PTX_KL_COEFS
    table, lines = read_by_kl(variants.PTX, coefs, read, LOST)
    nets = {
        label: [table[f"{label}, KL coefficient {coef:g}"]["main, net"] for coef in coefs]
        for label in lines
    }
    without, *with_loss = lines
    checks: dict[str, Verdict] = {
        "without it PPO loses a tenth of the forget set": lines[without][1][0] > 0.1
    }
    for label in with_loss:
        won = zip(nets[label], nets[without], strict=True)
        checks |= loses_less(f"{label}: less is lost", lines[label], lines[without])
        words = f"{label}: main prompts are won as often, within five points"
        checks[words] = all(ours > theirs - 0.05 for ours, theirs in won)
    return SeedResult(table, checks, [forgetting_plot(lines, "A point a KL coefficient.")])


def _curves_and_outcomes(
    run: SeedRun, compared: Mapping[str, Variant]
) -> tuple[dict[str, GainCurve], Rows]:
    """Each run's curves, and a row of its last steps, its answers and their outcome."""
    curves = run.curves(compared)
    table = curves_table(curves)
    for name, variant in compared.items():
        last_steps = {c: table[variant.label][c] for c in (GAINED, KL, "perplexity")}
        table[variant.label] = last_steps | run.policy(name) | {KL: last_steps[KL]}
    return curves, table
