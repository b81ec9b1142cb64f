"""What the method promises, held against this run's intervals: holds, fails or is unclear.

A claim holds when its whole 95 % interval is on the promised side, fails when it is wholly on the
other, and is unclear in between. One run is one seed: see the several-seed results for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from trimtab.models.reporting.kit.artifacts import Artifacts, is_clear
from trimtab.models.reporting.run.labels import LabelNoise, flip_word
from trimtab.models.reporting.run.policies import Policy, decisive_measure
from trimtab.models.reporting.run.scorers import (
    NAMES,
    Labels,
    answer_scores,
    ece,
    gaps,
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
    artifacts: Artifacts, noise: Sequence[LabelNoise], found: Sequence[Policy], seed: int
) -> list[Claim]:
    """The claims this run's artifacts can speak about."""
    by_name = {policy.name: policy for policy in found}
    return [
        *_noise_claim(noise, flip_word(artifacts)),
        *_scorer_claims(artifacts, seed),
        *_policy_claims(artifacts, by_name, seed),
    ]


def _noise_claim(noise: Sequence[LabelNoise], flip: str) -> list[Claim]:
    """Judged by the vote relabelling used, over all training pairs, near-ties included."""
    if not noise or noise[0].auroc_flipped is None:
        return []
    measured = {n.mode: n.auroc_flipped for n in noise if n.auroc_flipped is not None}
    if noise[0].auroc_flipped_clear is not None:
        measured["without_near_ties"] = noise[0].auroc_flipped_clear
    return [
        Claim(
            "noise_found",
            f"{flip.capitalize()}s are found with an AUROC of at least {LEAST_AUROC:.2f} by the "
            "vote that relabelling used",
            status_of(noise[0].auroc_flipped, LEAST_AUROC, "above", or_equal=True),
            measured,
        )
    ]


def _scorer_claims(artifacts: Artifacts, seed: int) -> list[Claim]:
    if not artifacts.pairs("test"):
        return []
    has_clean = any(is_clear(artifacts.truth.get(row["id"])) for row in artifacts.pairs("test"))
    labels: Labels = "clean" if has_clean else "annotators"
    told = "right labels" if has_clean else "annotators' labels"
    base, ours, advantage = (NAMES[key] for key in ("baseline", "relabelled", "advantage_model"))
    result = []
    if artifacts.has(base) and artifacts.has(ours):
        gain = accuracy_difference(artifacts, ours, base, labels)
        result.append(
            Claim(
                "relabelling_helps",
                f"Denoised labels make a reward model more accurate than raw ones on {told}",
                status_of(gain, 0.0, "above"),
                {"accuracy_gain": gain},
            )
        )
    if artifacts.has(ours) and artifacts.has(advantage):
        better = ece_difference(artifacts, advantage, ours, "annotators", seed)
        kept = accuracy_difference(artifacts, advantage, ours, labels)
        parts = (
            status_of(better, 0.0, "below"),
            status_of(kept, -MAX_ACCURACY_LOST, "above", or_equal=True),
        )
        measured = {"ece_change": better, "accuracy_change": kept}
        if has_clean:
            measured["ece_change_clean"] = ece_difference(artifacts, advantage, ours, "clean", seed)
        result.append(
            Claim(
                "advantage_model_calibrated",
                "The Advantage Model's calibration error (annotators' labels, equal width) is "
                "below the reward model's, at an accuracy no more than half a point lower",
                all_of(parts),
                measured,
            )
        )
        result += _spread_claim(artifacts, advantage, ours, seed)
    return result


def _spread_claim(artifacts: Artifacts, advantage: str, ours: str, seed: int) -> list[Claim]:
    names, which, theirs = answer_scores(artifacts, ours)
    _, _, mine = answer_scores(artifacts, advantage)
    if len(names) < 2:
        return []

    def difference(index: torch.Tensor, is_ratio: bool) -> float:
        (a, within_a), (b, within_b) = (
            spread_of(which[index], scores[index], len(names)) for scores in (mine, theirs)
        )
        return ratio_of(a, within_a) - ratio_of(b, within_b) if is_ratio else a - b

    lowest = -float("inf")
    raw, ratio = (
        biased_estimate(
            partial(difference, is_ratio=is_ratio), len(which), seed, lowest=lowest, strata=which
        )
        for is_ratio in (False, True)
    )
    return [
        Claim(
            "advantage_model_comparable",
            "The Advantage Model's mean scores differ less between categories than the reward "
            "model's (the ratio divides by the spread within categories)",
            status_of(raw, 0.0, "below"),
            {"spread_change": raw, "spread_ratio_change": ratio},
        )
    ]


def _policy_claims(artifacts: Artifacts, by_name: dict[str, Policy], seed: int) -> list[Claim]:
    result = []
    full, vanilla = by_name.get("full"), by_name.get("vanilla")
    if full is not None and "main" in full.against_sft:
        net = full.against_sft["main"][decisive_measure(full)].net
        status = status_of(net, 0.0, "above")
        if full.collapsed:
            status = "fails"
        statement = "PPO-max beats SFT on the main prompts, and its KL stays bounded"
        kl = full.sets["main"].kl
        result.append(Claim("beats_sft", statement, status, {"net_win": net, "kl": kl}))
    if vanilla is not None and vanilla.drift is not None and vanilla.drift.gold is not None:
        score, gold = vanilla.drift.score, vanilla.drift.gold
        parts = (status_of(score, 0.0, "above"), status_of(gold, 0.0, "below"))
        statement = "Vanilla PPO over-optimises: the score it is trained on rises, gold falls"
        measured = {"score_change": score, "gold_change": gold}
        result.append(Claim("vanilla_over_optimises", statement, all_of(parts), measured))
    result += _rehearsal_claim(artifacts, seed)
    second = by_name.get("round_2")
    if second is not None and "main" in second.against_previous:
        net = second.against_previous["main"][decisive_measure(second)].net
        statement = "MetaRM's second round is not worse than the first on the main prompts"
        status = status_of(net, 0.0, "above", or_equal=True)
        result.append(Claim("second_round_not_worse", statement, status, {"net_win": net}))
    return result


def _rehearsal_claim(artifacts: Artifacts, seed: int) -> list[Claim]:
    """Mean judged score on the forget set, with minus without rehearsal: of each task family, and
    then over families, as a policy loses a family as a whole."""
    rows = [
        [row for row in artifacts.rows(role, "responses.jsonl") if row["set"] == "forget"]
        for role in ("eval_full", "eval_ppo_max_am")
    ]
    if not all(rows) or [r["prompt"] for r in rows[0]] != [r["prompt"] for r in rows[1]]:
        return []
    measure = "gold" if "gold" in rows[0][0] else "judge_score"
    with_it, without = (
        torch.tensor([float(row[measure]) for row in part], dtype=torch.float64) for part in rows
    )
    families = family_ids([row.get("category") for row in rows[0]])
    gain = mean_estimate(means_of(with_it - without, families), seed)
    name = "gold" if measure == "gold" else "held-out score"
    return [
        Claim(
            "rehearsal_keeps",
            f"With rehearsal less is lost on the forget set (mean {name} over its task families, "
            "with minus without)",
            status_of(gain, 0.0, "above"),
            {"forget_gain": gain},
        )
    ]


def accuracy_difference(artifacts: Artifacts, ours: str, theirs: str, labels: Labels) -> Estimate:
    """Accuracy of one scorer minus another's on the same test pairs."""
    a, b = (gaps(artifacts, role, labels) for role in (ours, theirs))
    right = [(scored.gap > 0).double() for scored in (a, b)]
    return net_estimate(right[0] - right[1], cluster_ids(row["prompt"] for row in a.rows))


def ece_difference(
    artifacts: Artifacts, ours: str, theirs: str, labels: Labels, seed: int
) -> Estimate:
    """Calibration error (equal width) of one scorer minus another's on the same test pairs."""
    a, b = (gaps(artifacts, role, labels).gap for role in (ours, theirs))
    return biased_estimate(
        lambda index: ece(a[index], "width") - ece(b[index], "width"),
        len(a),
        seed,
        lowest=-float("inf"),
    )
