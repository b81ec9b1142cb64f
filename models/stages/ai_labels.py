"""Stage `ai_labels`: a judge's preferences in place of people's labels, for a reward model.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267, section 2.1.

Only pairs to train on get the judge's label: policies and scorers are measured on the others, as
people labelled them. A pair keeps the label it came with where the judge was not asked (beyond
`judge_preferences.categories` or `.max_pairs`), and where it was not understood at all in one of
both orders: the other order alone would count its position bias in full. What a pair carries
follows its label:

1. Where the judge prefers the other answer, the two change places, and with them people's votes.
   How much better one of them found the answer that is now the worse one (`rating`) is dropped.
2. `label` is written where it is not 1. It goes to ensemble, scorers and relabelling
   (`trimtab.models.functional.relabel.relabel_soft_labels`). A tie has 1/2, soft or not, in the
   order given.
3. truth.jsonl speaks of the new labels. A pair that is no near-tie counts as `flipped` where the
   judge's label contradicts what is known, so that measures of planted noise are of its errors.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from typing import Any

import torch

from trimtab.models.config.judge import AILabelsConfig
from trimtab.models.data.records import Opinion
from trimtab.models.functional.verdicts import preferred_labels
from trimtab.models.training.stage import Row, Stage

# What a stage writes about its run, not about its pairs.
STAGE_FILES = ("summary.json", "metrics.jsonl", "trainer.log")


def run(config: AILabelsConfig, stage: Stage) -> None:
    """Inputs: `preferences`, `judgements` (judge_preferences). Output: the former's files, with
    train.jsonl and, where there is one, truth.jsonl as the judge has it."""
    source, others = stage.inputs["preferences"], shutil.ignore_patterns(*STAGE_FILES)
    shutil.copytree(source, stage.output, dirs_exist_ok=True, ignore=others)
    pairs = stage.rows("preferences", "train.jsonl")
    judgements = {
        row["id"]: row
        for row in stage.rows("judgements", "judgements.jsonl")
        if row["split"] == "train"
    }
    reasons = [_reason_unlabelled(judgements.get(pair["id"])) for pair in pairs]
    judged = [pair["id"] for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
    if not judged:
        raise ValueError(
            f"none of {len(pairs)} training pairs has a label of the judge: "
            f"{dict(Counter(map(str, reasons)))}; allowed: at least one. Look at what the judge "
            "answers"
        )
    preferences = [judgements[name]["preference"] for name in judged]
    preference = torch.tensor(preferences, dtype=torch.float64)
    is_flipped, label = preferred_labels(preference, soft=config.soft)
    labels = dict(zip(judged, zip(is_flipped.tolist(), label.tolist(), strict=True), strict=True))
    stage.write_rows("train.jsonl", (_relabel_pair(pair, labels) for pair in pairs))
    if (source / "truth.jsonl").exists():
        truth = stage.rows("preferences", "truth.jsonl")
        stage.write_rows("truth.jsonl", (_relabel_truth(row, labels) for row in truth))
    counts = Counter(reasons)
    stage.write_summary(
        {
            "num_pairs": len(pairs),
            "num_labelled": len(judged),
            "num_turned": int(is_flipped.sum()),
            "num_tied": int((preference == 0.5).sum()),
            **{f"num_{why}": counts[why] for why in ("unasked", "unparsed")},
            "mean_label": float(label.mean()),
        }
    )


def _reason_unlabelled(judgement: Row | None) -> str | None:
    """Why a pair keeps its label; None if it gets the judge's."""
    if judgement is None:
        return "unasked"
    # An order in which nothing was understood has exactly 1/2.
    even = 0.5 in (judgement["shown_first"], judgement["shown_second"])
    return "unparsed" if even and judgement["num_unparsed"] else None


def _relabel_pair(pair: Row, labels: dict[str, tuple[bool, float]]) -> Row:
    """The pair with the judge's label."""
    if pair["id"] not in labels:
        return pair
    is_flipped, label = labels[pair["id"]]
    if is_flipped:
        pair = _exchange(pair, "chosen", "rejected")
        pair |= {"rating": None, "votes": _exchange(pair.get("votes"), "chosen", "rejected")}
        if pair.get("messages"):
            pair |= {"messages": _exchange(pair["messages"], "chosen", "rejected")}
        if pair.get("opinions"):
            opinions = [Opinion(**opinion).swapped() for opinion in pair["opinions"]]
            pair |= {"opinions": [dataclasses.asdict(opinion) for opinion in opinions]}
    return pair if label == 1 else pair | {"label": label}


def _relabel_truth(truth: Row, labels: dict[str, tuple[bool, float]]) -> Row:
    """The row of truth.jsonl for the judge's label."""
    if truth["id"] not in labels:
        return truth
    is_flipped, _ = labels[truth["id"]]
    if is_flipped:
        truth = _exchange(truth, "gold_chosen", "gold_rejected")
        truth = truth | {"is_wrong": truth["gold_chosen"] < truth["gold_rejected"]}
    if truth["kind"] == "ambiguous":
        return truth
    return truth | {"kind": "flipped" if truth["is_wrong"] else "clear"}


def _exchange(row: Any, one: str, other: str) -> Any:
    """A row with two values swapped; none stays none."""
    return row and row | {one: row[other], other: row[one]}
