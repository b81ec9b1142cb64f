"""Better or not: one sentence, built from intervals and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.models.reporting.kit.audit_words import agreement, finding, reliability
from trimtab.models.reporting.kit.names import MEASURE_NAMES, ONLY_BY_RULE, SETS, policy_name
from trimtab.models.reporting.run.claims import Claim
from trimtab.models.reporting.run.labels import LabelNoise
from trimtab.models.reporting.run.policies import Policy, decisive_measure, final_policy
from trimtab.models.statistics.measured import Estimate

MIN_REQUESTS_FOR_HARM = 10  # of fewer, the shares of harmless answers say next to nothing
TOO_SMALL = "The recipe smoke checks the installation; its models are too small for an answer."
Answer = Literal["better", "not shown to be better", "worse", "labels only"]


@dataclass(frozen=True)
class Verdict:
    """answer: the word; sentence: the first screen's headline; details: further sentences."""

    answer: Answer
    sentence: str
    details: list[str]
    policy: str | None
    judged_by: str | None
    net: Estimate | None


def verdict(
    found: Sequence[Policy],
    checked: Sequence[Claim],
    noise: LabelNoise | None,
    champion: str | None,
    audit: Mapping[str, float] | None = None,
    recipe: str = "",
) -> Verdict:
    """Judge the policy the run ends with against SFT; without one, say what the labels showed.

    audit: numbers of the label audit, if there was one.
    """
    policy = final_policy(found, champion)
    if policy is None or not policy.against_sft:
        return _answer_of_audit(checked, noise, audit or {})
    measure = decisive_measure(policy)
    place = "main" if "main" in policy.against_sft else next(iter(policy.against_sft))
    net = policy.against_sft[place][measure].net
    answer = answer_of(net)
    where = SETS.get(place, place)
    sentence = {
        "better": f"Better: the final policy beats SFT on {where}, {net_points(net)}.",
        "worse": f"Worse: the final policy loses to SFT on {where}, {net_points(net)}.",
    }.get(
        answer,
        f"Not shown to be better: on {where} the final policy and SFT cannot be told apart, "
        f"{net_points(net)}.",
    )
    final = f"The final policy is {policy_name(policy.name)}"
    forgotten = policy.against_sft.get("forget", {}).get(measure)
    if place != "forget" and forgotten is not None and answer_of(forgotten.net) == "worse":
        sentence += " On the forget set it is worse than SFT."
    harmless = _harmless(found, policy, place)
    if harmless and harmless[0].high < harmless[1].low:
        sentence += " Fewer of its answers to requests for harm are harmless."
    details = [TOO_SMALL] if recipe == "smoke" else []
    details += [f"{final}; judged by {MEASURE_NAMES[measure]} on {net.count} prompts."]
    details += [
        _on_set(other, outcomes[measure].net)
        for other, outcomes in policy.against_sft.items()
        if other not in (place, "validation") and measure in outcomes
    ]
    if harmless and min(share.count for share in harmless) >= MIN_REQUESTS_FOR_HARM:
        own, of_sft = map(_percent, harmless)
        details.append(f"Requests for harm: {own} of its answers are harmless, {of_sft} of SFT's.")
    if policy.is_promoted is False:
        is_champion = policy.name == champion
        details.append(ONLY_BY_RULE if is_champion else "Held-out judgement did not promote it.")
    if policy.collapsed:
        details.append(f"The collapse guard spoke up: {policy.collapse_reason}.")
    return Verdict(answer, sentence, details, policy.name, measure, net)


def _harmless(
    found: Sequence[Policy], policy: Policy, place: str
) -> tuple[Estimate, Estimate] | None:
    """Shares of harmless answers, the policy's and SFT's, where both were measured."""
    rates = [
        each.sets[place].harmless for each in found if each.name == "sft" and place in each.sets
    ]
    own, of_sft = policy.sets[place].harmless, rates[0] if rates else None
    return None if own is None or of_sft is None else (own, of_sft)


def answer_of(net: Estimate) -> Literal["better", "not shown to be better", "worse"]:
    """Better when the whole interval is above 0, worse when it is wholly below."""
    return "not shown to be better" if net.standing == "not clear" else net.standing


def net_points(net: Estimate) -> str:
    """A difference of shares in percentage points, with its interval."""
    return f"{net.text('+.1f', 100, ' points')} wins minus losses"


def _percent(share: Estimate) -> str:
    return share.text(".1f", 100, " %")


def _on_set(place: str, net: Estimate) -> str:
    words = {"better": "it is better than SFT", "worse": "it is worse than SFT"}
    how = words.get(answer_of(net), "no difference from SFT is shown")
    return f"On {SETS.get(place, place)} {how}: {net_points(net)}."


def _answer_of_audit(
    checked: Sequence[Claim], noise: LabelNoise | None, audit: Mapping[str, float]
) -> Verdict:
    """The label audit's answer, and the reward model's where there is one."""
    details = []
    sentence = "No policy was trained in this run, and no vote on the labels was taken."
    if noise is not None and noise.mode == "calibrated":
        sentence = finding(audit)
        details += [] if audit.get("is_uninformative") else reliability(audit)
        details += agreement(audit)
    elif noise is not None:
        share = noise.share_negative
        sentence = (
            f"Label audit: {noise.num_members} reward models together disagree with "
            f"{_percent(share)} of {noise.num_pairs:,} training labels."
        )
        details.append("No policy was trained in this run, so none is judged.")
    gain = {claim.name: claim for claim in checked}.get("relabelling_helps")
    if gain is not None:
        change = gain.measured["accuracy_gain"]
        word = answer_of(change)
        details.append(
            f"The reward model on relabelled pairs is {word} than the one on raw labels: accuracy "
            f"{change.text('+.1f', 100, ' points')}."
        )
    return Verdict("labels only", sentence, details, None, None, None)
