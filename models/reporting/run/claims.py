"""Better or not, in one sentence; and whether what the method promises holds, fails or is unclear.
Both are built from this run's intervals and nothing else.

A claim holds when its whole 95 % interval is on the promised side, fails when it is wholly on the
other, and is unclear in between. One run is one seed: see the several-seed results for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts, is_clear
from trimtab.models.reporting.kit.audit_words import agreement, finding, reliability
from trimtab.models.reporting.kit.names import MEASURE_NAMES, ONLY_BY_RULE, SETS
from trimtab.models.reporting.run.labels import LabelNoise, flip_word
from trimtab.models.reporting.run.policies import Policy, decisive_measure, final_policy
from trimtab.models.reporting.run.scorers import (
    LABEL_NAMES,
    NAMES,
    Labels,
    answer_scores,
    ece,
    gaps,
    overconfidence,
    ratio_of,
    spread_of,
)
from trimtab.models.statistics.estimates import (
    biased_estimate,
    cluster_ids,
    family_ids,
    mean_estimate,
    means_of,
    net_estimate,
)
from trimtab.models.statistics.measured import Estimate

LEAST_AUROC = 0.90
MAX_ACCURACY_LOST = 0.005
Status = Literal["holds", "fails", "unclear"]


@dataclass(frozen=True)
class Claim:
    """A promise, what was measured for it, and how it stands."""

    name: str
    statement: str
    status: Status
    measured: dict[str, Estimate]


def status_of(
    estimate: Estimate,
    threshold: float,
    wanted: Literal["above", "below"],
    *,
    or_equal: bool = False,
) -> Status:
    """Where the interval lies; `or_equal` lets it touch the threshold and hold."""
    low, high = estimate.low - threshold, estimate.high - threshold
    if wanted == "below":
        low, high = -high, -low
    if low > 0 or (or_equal and low >= 0):
        return "holds"
    return "fails" if high < 0 else "unclear"


def all_of(parts: Sequence[Status]) -> Status:
    """Holds when all hold, fails when any fails."""
    if "fails" in parts:
        return "fails"
    return "holds" if all(part == "holds" for part in parts) else "unclear"


def claims(
    artifacts: Artifacts, noise: Sequence[LabelNoise], policies: Sequence[Policy], seed: int
) -> list[Claim]:
    """The claims this run's artifacts can speak about."""
    return [
        *_noise_claim(noise, flip_word(artifacts)),
        *_scorer_claims(artifacts, seed),
        *_policy_claims(artifacts, {policy.name: policy for policy in policies}, seed),
    ]


def _noise_claim(noise: Sequence[LabelNoise], flip: str) -> Iterator[Claim]:
    """Judged by the vote relabelling used, over all training pairs, near-ties included."""
    if not noise or noise[0].auroc_flipped is None:
        return
    measured = {n.mode: n.auroc_flipped for n in noise if n.auroc_flipped is not None}
    if noise[0].auroc_flipped_clear is not None:
        measured["without_near_ties"] = noise[0].auroc_flipped_clear
    yield Claim(
        "noise_found",
        f"{flip.capitalize()}s are found with an AUROC of at least {LEAST_AUROC:.2f} by the "
        "vote that relabelling used",
        status_of(noise[0].auroc_flipped, LEAST_AUROC, "above", or_equal=True),
        measured,
    )


def _scorer_claims(artifacts: Artifacts, seed: int) -> Iterator[Claim]:
    if not artifacts.pairs("test"):
        return
    has_clean = any(is_clear(artifacts.truth.get(row["id"])) for row in artifacts.pairs("test"))
    labels: Labels = "clean" if has_clean else "annotators"
    base, ours, advantage = (NAMES[key] for key in ("baseline", "relabelled", "advantage_model"))
    if artifacts.has(base) and artifacts.has(ours):
        gain = accuracy_difference(artifacts, ours, base, labels)
        yield Claim(
            "relabelling_helps",
            "Denoised labels make a reward model more accurate than raw ones on "
            + LABEL_NAMES[labels],
            status_of(gain, 0.0, "above"),
            {"accuracy_gain": gain},
        )
    if artifacts.has(ours) and artifacts.has(advantage):
        better = ece_difference(artifacts, advantage, ours, "annotators", seed)
        lost = accuracy_difference(artifacts, advantage, ours, labels)
        measured = {"ece_change": better, "accuracy_change": lost}
        if has_clean:
            measured["ece_change_clean"] = ece_difference(artifacts, advantage, ours, "clean", seed)
        measured["overconfidence"] = overconfidence(artifacts, ours, seed)
        is_kept = status_of(lost, -MAX_ACCURACY_LOST, "above", or_equal=True)
        yield Claim(
            "advantage_model_calibrated",
            "The Advantage Model's calibration error (annotators' labels, equal width) is "
            "below the reward model's, at an accuracy no more than half a point lower",
            all_of([status_of(better, 0.0, "below"), is_kept]),
            measured,
        )
        yield from _spread_claim(artifacts, advantage, ours, seed)


def _spread_claim(artifacts: Artifacts, advantage: str, ours: str, seed: int) -> Iterator[Claim]:
    names, which, theirs = answer_scores(artifacts, ours)
    _, _, mine = answer_scores(artifacts, advantage)
    if len(names) < 2:
        return

    def difference(index: torch.Tensor, is_ratio: bool) -> float:
        (a, within_a), (b, within_b) = (
            spread_of(which[index], scores[index], len(names)) for scores in (mine, theirs)
        )
        return ratio_of(a, within_a) - ratio_of(b, within_b) if is_ratio else a - b

    spread, ratio = (
        biased_estimate(
            partial(difference, is_ratio=is_ratio), len(which), seed, lowest=-inf, strata=which
        )
        for is_ratio in (False, True)
    )
    yield Claim(
        "advantage_model_comparable",
        "The Advantage Model's mean scores differ less between categories than the reward "
        "model's (the ratio divides by the spread within categories)",
        status_of(spread, 0.0, "below"),
        {"spread_change": spread, "spread_ratio_change": ratio},
    )


def _policy_claims(
    artifacts: Artifacts, policies: Mapping[str, Policy], seed: int
) -> Iterator[Claim]:
    full, vanilla, second = (policies.get(name) for name in ("full", "vanilla", "round_2"))
    if full is not None and "main" in full.against_sft:
        net = full.against_sft["main"][decisive_measure(full)].net
        yield Claim(
            "beats_sft",
            "PPO-max beats SFT on the main prompts, and its KL stays bounded",
            "fails" if full.collapsed else status_of(net, 0.0, "above"),
            {"net_win": net, "kl": full.sets["main"].kl},
        )
    if vanilla is not None and vanilla.drift is not None and vanilla.drift.gold is not None:
        score, gold = vanilla.drift.score, vanilla.drift.gold
        yield Claim(
            "vanilla_over_optimises",
            "Vanilla PPO over-optimises: the score it is trained on rises, gold falls",
            all_of([status_of(score, 0.0, "above"), status_of(gold, 0.0, "below")]),
            {"score_change": score, "gold_change": gold},
        )
    yield from _rehearsal_claim(artifacts, seed)
    if second is not None and "main" in second.against_previous:
        net = second.against_previous["main"][decisive_measure(second)].net
        yield Claim(
            "second_round_not_worse",
            "MetaRM's second round is not worse than the first on the main prompts",
            status_of(net, 0.0, "above", or_equal=True),
            {"net_win": net},
        )


def _rehearsal_claim(artifacts: Artifacts, seed: int) -> Iterator[Claim]:
    """Mean judged score on the forget set, with minus without rehearsal: of each task family, and
    then over families, as a policy loses a family as a whole."""
    rows = [
        [row for row in artifacts.rows(role, "responses.jsonl") if row["set"] == "forget"]
        for role in ("eval_full", "eval_ppo_max_am")
    ]
    if not all(rows) or [r["prompt"] for r in rows[0]] != [r["prompt"] for r in rows[1]]:
        return
    measure = "gold" if "gold" in rows[0][0] else "judge_score"
    with_it, without = (
        torch.tensor([float(row[measure]) for row in part], dtype=torch.float64) for part in rows
    )
    families = family_ids([row.get("category") for row in rows[0]])
    gain = mean_estimate(means_of(with_it - without, families), seed)
    name = "gold" if measure == "gold" else "held-out score"
    yield Claim(
        "rehearsal_keeps",
        f"With rehearsal less is lost on the forget set (mean {name} over its task families, "
        "with minus without)",
        status_of(gain, 0.0, "above"),
        {"forget_gain": gain},
    )


def accuracy_difference(artifacts: Artifacts, ours: str, theirs: str, labels: Labels) -> Estimate:
    """Accuracy of one scorer minus another's on the same test pairs."""
    a, b = (gaps(artifacts, role, labels) for role in (ours, theirs))
    outcomes = (a.gap > 0).double() - (b.gap > 0).double()
    return net_estimate(outcomes, cluster_ids(row["prompt"] for row in a.rows))


def ece_difference(
    artifacts: Artifacts, ours: str, theirs: str, labels: Labels, seed: int
) -> Estimate:
    """Calibration error (equal width) of one scorer minus another's on the same test pairs."""
    a, b = (gaps(artifacts, role, labels).gap for role in (ours, theirs))

    def difference(index: torch.Tensor) -> float:
        return ece(a[index], "width") - ece(b[index], "width")

    return biased_estimate(difference, len(a), seed, lowest=-inf)


MIN_REQUESTS_FOR_HARM = 10  # of fewer, the shares of harmless answers say next to nothing
TOO_SMALL = "The recipe smoke checks the installation; its models are too small for an answer."
Answer = Literal["better", "not shown to be better", "worse"]


@dataclass(frozen=True)
class Verdict:
    """answer: the word; sentence: the first screen's headline; details: further sentences."""

    answer: Answer | Literal["labels only"]
    sentence: str
    details: list[str]
    policy: str | None
    judged_by: str | None
    net: Estimate | None


def verdict(
    policies: Sequence[Policy],
    checked: Sequence[Claim],
    noise: LabelNoise | None,
    champion: str | None,
    audit: Mapping[str, float] | None = None,
    recipe: str = "",
) -> Verdict:
    """Judge the policy the run ends with against SFT; without one, say what the labels showed.

    audit: numbers of the label audit, if there was one.
    """
    policy = final_policy(policies, champion)
    if policy is None or not policy.against_sft:
        return _answer_of_audit(checked, noise, audit or {})
    measure = decisive_measure(policy)
    place = "main" if "main" in policy.against_sft else next(iter(policy.against_sft))
    net = policy.against_sft[place][measure].net
    answer, name = answer_of(net), SETS.get(place, place)
    sentence = {
        "better": f"Better: the final policy beats SFT on {name}, {net_points(net)}.",
        "worse": f"Worse: the final policy loses to SFT on {name}, {net_points(net)}.",
        "not shown to be better": f"Not shown to be better: on {name} the final policy and SFT "
        f"cannot be told apart, {net_points(net)}.",
    }[answer]
    forgotten = policy.against_sft.get("forget", {}).get(measure)
    if place != "forget" and forgotten is not None and answer_of(forgotten.net) == "worse":
        sentence += " On the forget set it is worse than SFT."
    sft = next((other for other in policies if other.name == "sft" and place in other.sets), None)
    harmless, of_sft = policy.sets[place].harmless, sft.sets[place].harmless if sft else None
    if harmless and of_sft and harmless.high < of_sft.low:
        sentence += " Fewer of its answers to requests for harm are harmless."
    details = [TOO_SMALL] if recipe == "smoke" else []
    details.append(
        f"The final policy is {policy.label}; judged by {MEASURE_NAMES[measure]} on "
        f"{net.count} prompts."
    )
    words = {"better": "it is better than SFT", "worse": "it is worse than SFT"}
    for other, outcomes in policy.against_sft.items():
        if other not in (place, "validation") and measure in outcomes:
            on_set = outcomes[measure].net
            standing = words.get(on_set.standing, "no difference from SFT is shown")
            details.append(f"On {SETS.get(other, other)} {standing}: {net_points(on_set)}.")
    if harmless and of_sft and min(harmless.count, of_sft.count) >= MIN_REQUESTS_FOR_HARM:
        details.append(
            f"Requests for harm: {_percent(harmless)} of its answers are harmless, "
            f"{_percent(of_sft)} of SFT's."
        )
    if policy.is_promoted is False:
        is_champion = policy.name == champion
        details.append(ONLY_BY_RULE if is_champion else "Held-out judgement did not promote it.")
    if _is_hacked(policy):
        sentence += " Its reward was hacked: its score rose while gold fell."
    details += _training_details(policy, place, policies)
    return Verdict(answer, sentence, details, policy.name, measure, net)


def _is_hacked(policy: Policy) -> bool:
    """Whether the score that PPO optimised rose and gold fell, both clearly, and the policy is of
    the last step."""
    drift = policy.drift
    return bool(
        policy.policy_of_step == policy.num_steps
        and drift
        and drift.gold
        and drift.score.low > 0
        and drift.gold.high < 0
    )


def _training_details(policy: Policy, place: str, policies: Sequence[Policy]) -> Iterator[str]:
    """Of a policy that PPO trained: collapse and reward hacking, and which other arms show them."""
    if policy.num_steps is None:
        return
    kl = policy.sets[place].kl.text(".2f")
    line = f"Collapse: the KL of an answer to SFT is {kl} nats; "
    if policy.collapsed is None:
        line += f"{policy.num_steps} steps are too few for the guard to tell."
    elif not policy.collapsed:
        line += "the guard saw none."
    elif policy.policy_of_step == policy.num_steps:
        line += f"the guard warned: {policy.collapse_reason}."
    else:
        line += (
            f"the guard stopped training, {policy.collapse_reason}, and the policy is that of step "
            f"{policy.policy_of_step}."
        )
    others = [other for other in policies if other.name not in (policy.name, "sft")]
    yield line + _likewise(others, lambda other: bool(other.collapsed), "collapsed")
    if policy.drift is None or policy.drift.gold is None:
        return
    score, gold = (change.text("+.2f") for change in (policy.drift.score, policy.drift.gold))
    line = (
        "Reward hacking: from the first to the last tenth of the steps the score that it optimised "
        f"changed by {score} of its spread, the gold score by {gold}."
    )
    yield line + _likewise(others, _is_hacked, "had a score that rose and gold that fell")


def _likewise(policies: Sequence[Policy], is_so: Callable[[Policy], bool], words: str) -> str:
    names = " and ".join(policy.label for policy in policies if is_so(policy))
    return f" {names} {words}." if names else ""


def answer_of(net: Estimate) -> Answer:
    """Better when the whole interval is above 0, worse when it is wholly below."""
    return "not shown to be better" if net.standing == "not clear" else net.standing


def net_points(net: Estimate) -> str:
    """A difference of shares in percentage points, with its interval."""
    return f"{net.text('+.1f', 100, ' points')} wins minus losses"


def _percent(share: Estimate) -> str:
    return share.text(".1f", 100, " %")


def _answer_of_audit(
    checked: Sequence[Claim], noise: LabelNoise | None, audit: Mapping[str, float]
) -> Verdict:
    """The label audit's answer, and the reward model's where there is one."""
    sentence, details = (
        "No policy was trained in this run, and no vote on the labels was taken.",
        [],
    )
    if noise is not None and noise.mode == "calibrated":
        sentence = finding(audit)
        details = [] if audit.get("is_uninformative") else reliability(audit)
        details += agreement(audit)
    elif noise is not None:
        sentence = (
            f"Label audit: {noise.num_members} reward models together disagree with "
            f"{_percent(noise.share_negative)} of {noise.num_pairs:,} training labels."
        )
        details = ["No policy was trained in this run, so none is judged."]
    for claim in checked:
        if claim.name == "relabelling_helps":
            change = claim.measured["accuracy_gain"]
            details.append(
                f"The reward model on relabelled pairs is {answer_of(change)} than the one on raw "
                f"labels: accuracy {change.text('+.1f', 100, ' points')}."
            )
    return Verdict("labels only", sentence, details, None, None, None)
