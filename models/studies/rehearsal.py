"""Exhibits of selective rehearsal [AM, arXiv 2309.10202, section 3.2]."""

from __future__ import annotations

from statistics import fmean

from trimtab.models.studies import variants
from trimtab.models.studies.frontier import is_more_at_equal_kl, loses_less
from trimtab.models.studies.measures import (
    KL,
    LOST,
    SeedRun,
    forgetting_plot,
    read_by_kl,
    read_variants,
)
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Plot, SeedResult, Verdict, bar_plot
from trimtab.models.studies.variants import (
    CRITERIA,
    LEAST_SHARED_KL,
    REHEARSALS,
    SHARED_REHEARSALS,
)

exhibit = exhibits_in("advantage-model")
UNSHOWN = "forget families without an example"
WORST, MAIN = "gold lost of the worst forget family", "main, net"
MAX_NET_LOST = 0.05


@exhibit(
    arms="rehearsal_by_kl",
    claim="Rehearsal loses less of the forget set, at equal KL too, and selection is why",
)
def rehearsal(run: SeedRun) -> SeedResult:
    """What is lost of the forget set by KL, with rehearsal and without, over KL coefficients.

    The forget set has eight task families of as many prompts each, so that a share lost is the
    mean over families. Answers to PPO's own prompts, which the paper rehearses, hold the families
    where PPO's prompts do, as the paper's tasks share skills: "families shared". They hold none
    where PPO trains on none, and answers to what SFT was taught on do, if selection leaves them.
    The latter drawn at random are the control of selection. Lines are compared over the KL, on
    the main prompts, that they share.
    """

    def read(name: str, policy: str) -> dict[str, float]:
        row = {KL: run.answers(policy)[KL]}
        row[f"{KL}, forget set"] = run.answers(policy, "forget")[KL]
        return row | run.forgetting(policy) | _rehearsed(run, name, policy)

    compared = REHEARSALS | SHARED_REHEARSALS
    table, lines = read_by_kl(compared, variants.REHEARSAL_KL_COEFS, read, LOST)
    without, policy, shown, at_random, shared, shared_policy = lines
    checks: dict[str, Verdict] = {
        f"{label}: PPO without a KL penalty loses a tenth of the forget set": (
            lines[label][1][0] > 0.1
        )
        for label in (without, shared)
    }
    pairs = ((shared_policy, shared), (policy, without), (shown, without), (shown, at_random))
    for ours, theirs in pairs:
        checks |= loses_less(f"{ours} loses less than {theirs}", lines[ours], lines[theirs])
    note = (
        "A point a KL coefficient. At equal KL: over what two lines share, if that is at least "
        f"{LEAST_SHARED_KL} nats."
    )
    return SeedResult(table, checks, [forgetting_plot(lines, note)])


def _rehearsed(run: SeedRun, name: str, policy: str) -> dict[str, float]:
    """How many task families of the forget set `rehearsal_<name>` has no example of."""
    if not run.has(f"rehearsal_{name}"):
        return {}
    families = {row["category"] for row in run.responses(policy, "forget")}
    shown = {row["category"] for row in run.rows(f"rehearsal_{name}", "rehearsal.jsonl")}
    return {UNSHOWN: float(len(families - shown))}


@exhibit(
    arms="risk_by_kl",
    in_world=True,
    claim="Rehearsal by risk loses less of the forget set than uniform rehearsal, and individual "
    "KL weights less than one for all, at no cost on the main prompts",
    printed="not tried: rehearsal as amplifying the weight of the KL term for crucial instances",
)
def rehearsal_risk(run: SeedRun) -> SeedResult:
    """What is lost of the forget set, and won on the main prompts, by KL: rehearsal by risk,
    individual KL weights, and what they stand against.

    Risk is what the policy loses of SFT's answers in a cluster, measured while it trains on answers
    that are not rehearsed: by it more of the cluster's answers are rehearsed, as many in all, or
    its prompts have a higher KL coefficient, on average the same. The opponent of the first is
    uniform rehearsal of the same answers, of the second PPO without rehearsal, of both the
    pre-training loss. All learn from SFT's prompts, which hold the families of the forget set.
    PPO's hold none, so that weights of theirs can keep what is like them alone; and where "families
    shared", they hold these families.
    """
    coefs, before = variants.RISK_KL_COEFS, _gold_by_family(run, "sft")

    def read(name: str, policy: str) -> dict[str, float]:
        row = {KL: run.answers(policy)[KL]} | run.forgetting(policy)
        if name in variants.SHARED_RISKS:  # of another SFT
            return row
        after = _gold_by_family(run, policy)
        return row | {WORST: max(before[family] - after[family] for family in before)}

    compared = variants.RISKS | variants.SHARED_RISKS
    table, lines = read_by_kl(compared, coefs, read, LOST)
    _, wins = read_by_kl(compared, coefs, read, MAIN)
    nothing, uniform, ours, weighed, ptx, shared, shared_weighed = lines
    checks: dict[str, Verdict] = {
        f"{label} loses a tenth of the forget set": max(lines[label][1]) > 0.1
        for label in (nothing, shared)
    }
    by_risk = ((ours, uniform), (weighed, nothing), (shared_weighed, shared))
    for one, other in (*by_risk, (ours, ptx), (weighed, ptx)):
        checks |= loses_less(f"{one} loses less than {other}", lines[one], lines[other])
    for one, other in by_risk:
        raised = wins[one][0], [net + MAX_NET_LOST for net in wins[one][1]]
        words = f"{one} wins at most .05 less on the main prompts than {other} at equal KL"
        checks[words] = is_more_at_equal_kl(raised, wins[other])
    main = Plot(
        "What is won on the main prompts",
        "KL to SFT on the main prompts (nats)",
        "wins minus losses against SFT",
        wins,
        kind="paths",
    )
    note = "A point a KL coefficient."
    return SeedResult(table, checks, [forgetting_plot(lines, note), main])


def _gold_by_family(run: SeedRun, policy: str) -> dict[str, float]:
    """A policy's mean gold on each task family of the forget set."""
    families: dict[str, list[float]] = {}
    for row in run.responses(policy, "forget"):
        families.setdefault(row["category"], []).append(row["gold"])
    return {family: fmean(golds) for family, golds in families.items()}


@exhibit(
    arms="rehearsal_criteria",
    claim="Examples of the highest advantage score keep more than those of other criteria",
    printed="named as other criteria, not tried: entropy, response length",
)
def rehearsal_criteria(run: SeedRun) -> SeedResult:
    """What is lost of the forget set when rehearsed examples are kept by other criteria.

    PPO-max on the Advantage Model without a KL penalty: as much is forgotten as can be. Every
    criterion keeps as many examples of the same clusters.
    """

    def read(name: str) -> dict[str, float]:
        policy = f"{name}_0"
        row = run.forgetting(policy) | {KL: run.answers(policy)[KL]}
        return row | _rehearsed(run, name, policy)

    table = read_variants({"without": REHEARSALS["without"]} | CRITERIA, read)
    (_, without), (highest, best), *others = table.items()
    checks = {"without rehearsal a tenth of the forget set is lost": without[LOST] > 0.1} | {
        f"{highest} loses less than {other}": best[LOST] < row[LOST] for other, row in others
    }
    plot = bar_plot(
        "What is lost of the forget set",
        "rehearsed examples",
        "share of the forget set that is worse than SFT's",
        table,
        {"lost": LOST},
    )
    return SeedResult(table, checks, [plot])
