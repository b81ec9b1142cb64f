"""Exhibits of labels by how often they are wrong: posterior labels and unbiased losses.

Not in the papers. `trimtab.models.functional.label_noise` has the formulas; the opponent is the
recipe's treatment [RM, arXiv 2401.06080, section 2.4], the control are right labels.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import torch.nn.functional as F

from trimtab.models.reporting.kit.artifacts import is_clear
from trimtab.models.reporting.kit.names import capitalised
from trimtab.models.reporting.run.scorers import ece
from trimtab.models.studies.measures import RIGHT, SeedRun, read_variants
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import SeedResult, bar_plot
from trimtab.models.studies.variants import NOISE_TREATMENTS

exhibit = exhibits_in("part-2")
SCORERS = {"scorer": "reward model", "advantage": "Advantage Model"}
ERROR, LOSS = "calibration error, right labels", "log loss, right labels"
WRONG, CLEAR = "training labels that are wrong", "of the clear ones"
ESTIMATE, LOW, HIGH = "estimate", "lower end", "upper end"
OURS = ("posterior", "unbiased", "unbiased_by_pair")


@exhibit(
    arms="noise_treatments",
    varied="uniform",
    in_world=True,
    claim="Labels by how often they are wrong make scorers more accurate and better calibrated "
    "than flips and smoothing",
)
def label_noise(run: SeedRun) -> SeedResult:
    """Not in the paper: posterior labels and unbiased losses, a fifth of the clear labels wrong.

    They are wrong whatever the pair, as the estimate of their share takes them to be. It is
    estimated from the cross-fitted vote, and of near-ties, labelled at random, it knows nothing.
    """
    return _result(run)


@exhibit(
    arms="noise_treatments",
    varied="by_difficulty",
    in_world=True,
    claim="Where harder pairs are wrong more often, a flip rate by pair is better than one for all",
)
def label_noise_by_difficulty(run: SeedRun) -> SeedResult:
    """Not in the paper: posterior labels and unbiased losses, harder pairs wrong more often.

    One rate and rates by pair have the same mean, the world's share of wrong labels: estimated from
    the vote it would be far too low, as wrong labels of hard pairs look like errors of the vote.
    """
    result = _result(run)
    checks = dict(result.checks)
    for scorer in SCORERS.values():
        one, by_pair = (
            result.table[_row(scorer, name)] for name in ("unbiased_given", "unbiased_by_pair")
        )
        words = _row(scorer, "unbiased_by_pair")
        checks[f"{words}: more accurate than one rate"] = by_pair[RIGHT] > one[RIGHT]
        checks[f"{words}: of less log loss than one rate"] = by_pair[LOSS] < one[LOSS]
    return replace(result, checks=checks)


def _row(scorer: str, name: str) -> str:
    return f"{scorer}, {NOISE_TREATMENTS[name].label}"


def _result(run: SeedRun) -> SeedResult:
    """Scorers by the treatment of their labels, and what each does better than the opponent."""
    labels = _labels(run)
    is_inside = labels[LOW] <= labels[CLEAR] <= labels[HIGH]
    table, plots = {"labels": labels}, []
    checks = {"the interval holds the share of the clear labels that is wrong": is_inside}
    for role, scorer in SCORERS.items():
        rows = {name: _scored(run, role, name) for name in NOISE_TREATMENTS}
        table |= {_row(scorer, name): row for name, row in rows.items()}
        recipe = rows["recipe"]
        for name in OURS:
            ours, words = rows[name], _row(scorer, name)
            checks |= {
                f"{words}: more accurate than the recipe's": ours[RIGHT] > recipe[RIGHT],
                f"{words}: better calibrated than the recipe's": ours[ERROR] < recipe[ERROR],
                f"{words}: of less log loss than the recipe's": ours[LOSS] < recipe[LOSS],
            }
        title = f"{capitalised(scorer)} by the treatment of its labels"
        by_label = read_variants(NOISE_TREATMENTS, rows.__getitem__)
        plots.append(bar_plot(title, "labels", "on right labels", by_label, (RIGHT, ERROR)))
    return SeedResult(table, checks, plots)


def _labels(run: SeedRun) -> dict[str, float]:
    """The share of the training labels that is wrong, and what the vote says of it."""
    summary = run.document("pairs_unbiased", "summary.json")
    truths = [run.truth[row["id"]] for row in run.rows("pairs_unbiased", "train.jsonl")]
    clear = [truth for truth in truths if is_clear(truth)]
    names = {ESTIMATE: "share_wrong", LOW: "share_wrong_low", HIGH: "share_wrong_high"}
    return {
        **{
            words: fmean(t["is_wrong"] for t in of)
            for words, of in ((WRONG, truths), (CLEAR, clear))
        },
        **{words: summary[name] for words, name in names.items()},
    }


def _scored(run: SeedRun, role: str, name: str) -> dict[str, float]:
    """A scorer on the clear test pairs by right labels, and the mean label that it learned from."""
    scorer = f"{role}_{name}"
    gap = run.clean_gaps(scorer).gap
    return {
        **run.accuracies(scorer),
        ERROR: ece(gap, "width"),
        LOSS: float(-F.logsigmoid(gap).mean()),
        "mean label": fmean(row["label"] for row in run.rows(f"pairs_{name}", "train.jsonl")),
    }
