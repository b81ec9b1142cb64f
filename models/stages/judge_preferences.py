"""Stage `judge_preferences`: a judge model compares the answers of preference pairs.

Its probabilities are soft labels; how often it agrees with the labels given is its alignment
([RLAIF] Lee et al., arXiv 2309.00267, sections 2.1 and 2.3). Their log-odds are its votes on the
labels, for the stage `strength`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from trimtab.models.config.judge import JudgePreferencesConfig
from trimtab.models.data.prompts import cluster_ids
from trimtab.models.functional.verdicts import alignment, is_understood, log_odds_votes
from trimtab.models.judge.judge import Comparison
from trimtab.models.judge.resumable import column, judge_pairs, pair_measures, usage_totals
from trimtab.models.nets import counts
from trimtab.models.statistics.intervals import effective_count, wilson_interval
from trimtab.models.training.data import rows_of, score_row
from trimtab.models.training.stage import Row, Stage

# Columns that a vote is made of.
_VOTE_COLUMNS = ("preference", "shown_first", "shown_second", "num_unparsed")


def run(config: JudgePreferencesConfig, stage: Stage) -> None:
    """Inputs: `preferences`, and `constitution`, the user's own, if the judge has one.

    Output: judgements.jsonl, a row a pair. id, split; preference: the probability that the chosen
    answer is better, mean of shown_first and shown_second, by where it was shown, within the
    judge's `clamp`; verdict 1, 0 or -1; num_unparsed, of both orders' answers; prompt_tokens,
    completion_tokens, cost in the currency of the endpoint's prices.
    scores.jsonl, as a reward model's, of all pairs there are: the log-odds of `preference`, and 0;
    null where the pair was not judged, one of its orders not understood, or `preference` is 1/2.
    Raises ValueError where the splits hold no pair of the categories.
    """
    pairs = _pairs(config, stage)
    comparisons = [Comparison(pair["prompt"], pair["chosen"], pair["rejected"]) for pair in pairs]
    judged = judge_pairs(config, stage, comparisons, _measures)
    rows = [
        {"id": pair["id"], "split": pair["split"], **row}
        for pair, row in zip(pairs, judged, strict=True)
    ]
    stage.write_rows("judgements.jsonl", rows)
    stage.write_rows("scores.jsonl", _scores(stage, rows))
    stage.write_summary(_summary(pairs, rows))


def _pairs(config: JudgePreferencesConfig, stage: Stage) -> list[Row]:
    """The first pairs of each split, of the wanted categories; ValueError where there are none."""
    pairs: list[Row] = []
    for split in config.splits:
        rows = stage.rows("preferences", f"{split}.jsonl")
        if config.categories is not None:
            rows = [row for row in rows if row.get("category") in config.categories]
        count = counts.num_taken(len(rows), config.max_pairs)
        pairs += [{**row, "split": split} for row in rows[:count]]
    if not pairs:
        path = stage.inputs["preferences"] / f"{config.splits[0]}.jsonl"
        rows_of(path, config.categories, what="pairs")
    return pairs


def _scores(stage: Stage, judged: list[Row]) -> Iterator[Row]:
    """Rows of scores.jsonl: the vote on every pair."""
    columns = {name: column([row[name] for row in judged]) for name in _VOTE_COLUMNS}
    votes = log_odds_votes(columns.pop("preference"), is_understood(**columns)).tolist()
    by_pair = {
        (row["split"], row["id"]): vote
        for row, vote in zip(judged, votes, strict=True)
        if not math.isnan(vote)
    }
    for split, pair in stage.rows_by_split():
        vote = by_pair.get((split, pair["id"]))
        yield score_row(pair["id"], split, (vote, None if vote is None else 0.0))


def _measures(rows: list[Row]) -> dict[str, float]:
    """Alignment with the labels given, position bias and ties of judged pairs."""
    preference = column([row["preference"] for row in rows])
    return {
        "alignment": float(alignment(preference).mean()),
        "mean_preference": float(preference.mean()),
        **pair_measures(rows),
    }


def _summary(pairs: list[Row], rows: list[Row]) -> dict[str, float]:
    """Measures of all pairs; alignment of each split as well, with its 95 % interval."""
    summary: dict[str, float] = {"num_pairs": len(rows), **_measures(rows), **usage_totals(rows)}
    for split in dict.fromkeys(row["split"] for row in rows):
        agrees = alignment(column([row["preference"] for row in rows if row["split"] == split]))
        prompts = [pair["prompt"] for pair in pairs if pair["split"] == split]
        share = float(agrees.mean())
        count = effective_count(agrees, torch.tensor(cluster_ids(prompts)))
        low, high = wilson_interval(share, count)
        summary[f"{split}_alignment"] = share
        summary[f"{split}_alignment_low"], summary[f"{split}_alignment_high"] = low, high
    return summary
