"""A judge model as a labeler: how often it agrees with the labels given, and with the truth.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267, section 2.3 (AI labeler alignment).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trimtab.models.functional.verdicts import alignment
from trimtab.models.reporting.kit.artifacts import SPLITS, Artifacts, Row
from trimtab.models.statistics.estimates import cluster_ids, share_estimate
from trimtab.models.statistics.measured import Estimate


@dataclass(frozen=True)
class AILabeler:
    """The judge of `judge_preferences`, over all pairs that it was asked about.

    alignment: share of the labels as people gave them with which it agrees, a tie counting half;
    truth_alignment: the same of right labels by gold, over pairs that gold does not hold equal
    (None without truth). position_bias: mean probability of what is shown first, less 1/2.
    num_labelled: training pairs that carry its label in this run.
    """

    num_pairs: int
    num_labelled: int
    alignment: Estimate
    truth_alignment: Estimate | None
    position_bias: float
    share_tied: float
    num_unparsed: int
    cost: float


def ai_labeler(artifacts: Artifacts, role: str = "judged") -> AILabeler | None:
    """Measure a role that judge_preferences plays; none where nobody was asked."""
    rows = artifacts.rows(role, "judgements.jsonl")
    if not rows:
        return None
    summary = artifacts.document(role, "summary.json")
    labelled = artifacts.document("preferences", "summary.json").get("num_labelled", 0)
    known = _with_right_label(artifacts, rows)
    return AILabeler(
        num_pairs=len(rows),
        num_labelled=labelled if artifacts.has("pairs_as_given") else 0,
        alignment=_agreement(artifacts, [(row["id"], row["preference"]) for row in rows]),
        truth_alignment=_agreement(artifacts, known) if known else None,
        **{name: summary[name] for name in ("position_bias", "share_tied", "num_unparsed", "cost")},
    )


def _with_right_label(artifacts: Artifacts, rows: Sequence[Row]) -> list[tuple[str, float]]:
    """Pairs of which gold finds one answer better, with the judge's probability of that one."""
    given = "pairs_as_given" if artifacts.has("pairs_as_given") else "preferences"
    truth = {row["id"]: row for row in artifacts.rows(given, "truth.jsonl")}
    known = [(row, truth[row["id"]]) for row in rows if row["id"] in truth]
    return [
        (row["id"], 1 - row["preference"] if told["is_wrong"] else row["preference"])
        for row, told in known
        if told["gold_chosen"] != told["gold_rejected"]
    ]


def _agreement(artifacts: Artifacts, preference: Sequence[tuple[str, float]]) -> Estimate:
    prompts = {row["id"]: row["prompt"] for split in SPLITS for row in artifacts.pairs(split)}
    agrees = alignment(torch.tensor([p for _, p in preference], dtype=torch.float64))
    found = share_estimate(agrees, cluster_ids(prompts[name] for name, _ in preference))
    assert found is not None
    return found
