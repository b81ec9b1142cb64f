"""Stage `relabel`: flips, soft labels and margins from the strength [RM section 2.4], and from
ratings, people's of pairs and those of responses that pairs amount to.

Raw pairs are never mutated: a relabelled pair is the raw pair plus what was decided about it. A
person's verdict comes before the vote.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.models.config.base import last_part
from trimtab.models.config.reward import RelabelConfig
from trimtab.models.data.external_votes import read_review
from trimtab.models.data.readers import Source
from trimtab.models.functional.label_noise import relabel_by_noise
from trimtab.models.functional.relabel import (
    Relabel,
    apply_review,
    doubt_weight,
    rating_margin,
    relabel,
    relabel_soft_labels,
    strength_slice,
)
from trimtab.models.statistics.bradley_terry import ELO_SCALE, bradley_terry_ratings
from trimtab.models.statistics.estimates import wrong_labels_by_prompt
from trimtab.models.statistics.measured import Interval, with_ends
from trimtab.models.statistics.wrong_labels import SHARES
from trimtab.models.training.data import with_columns
from trimtab.models.training.stage import Row, Stage

# Of shares nearer to one half neither response is rated better.
TIED = 1e-6
# Settings that `doubt_weight` takes.
BY_DOUBT = {"drop_below", "drop_against", "weights"}
# Settings that `relabel_by_noise` takes, or that say what it is given.
BY_NOISE = {"noise", "flip_rate", "flip_rate_at", "largest_flip_rate"}
# Settings that none of these and not `relabel` takes.
LATER = {"rating_margins", "response_ratings", "keep_from", "keep_to", "max_pairs", "review"}
# Verdicts that stand in place of the vote's; the fourth, unsure, leaves the pair to the vote.
OVERRULING = ("keep", "flip", "drop")


class Noise(NamedTuple):
    """How often labels are wrong: the share of all, and how surely votes tell which.

    flip_rate, slope: as in `relabel_by_noise`. numbers: of the estimate, as summary.json holds it.
    """

    flip_rate: float
    slope: float
    numbers: dict[str, float | str]


def run(config: RelabelConfig, stage: Stage) -> None:
    """Inputs: `preferences`, `strength`, and `review` where the configuration names one.

    Output: train.jsonl with the treatment, and the reviewer's verdict (or null) as `review`.
    """
    pairs = stage.rows("preferences", "train.jsonl")
    verdicts = _verdicts(config, stage)
    votes = {row["id"]: row for row in stage.rows("strength", "strength.jsonl")}
    missing = [pair["id"] for pair in pairs if pair["id"] not in votes]
    if missing:
        raise ValueError(f"{len(missing)} pairs have no strength, the first: {missing[0]!r}")
    reviews = [verdicts.get(pair["id"]) for pair in pairs]
    noise = None if config.noise == "none" else _noise(config, stage, pairs, votes)
    relabelled = apply_treatments(
        config, pairs, [votes[pair["id"]] for pair in pairs], reviews, noise
    )
    names = ("is_flipped", "label", "margin", "weight")
    columns = {name: getattr(relabelled, name) for name in names}
    stage.write_rows("train.jsonl", with_columns(pairs, {**columns, "review": reviews}))
    num_reviewed = sum(review is not None for review in reviews)
    num_smoothed = sum(
        label < pair.get("label", 1.0)
        for pair, label in zip(pairs, relabelled.label.tolist(), strict=True)
    )
    stage.write_summary(
        {
            "num_pairs": len(pairs),
            "share_flipped": float(relabelled.is_flipped.double().mean()),
            "share_smoothed": num_smoothed / len(pairs),
            "share_left_out": float((relabelled.weight == 0).double().mean()),
            "mean_margin": float(relabelled.margin.mean()),
            "num_reviewed": num_reviewed,
            "num_reviewed_held_out": len(verdicts) - num_reviewed,
            **(noise.numbers if noise else {}),
        }
    )


def apply_treatments(
    config: RelabelConfig,
    pairs: list[Row],
    votes: list[Row],
    reviews: list[str | None],
    noise: Noise | None = None,
) -> Relabel:
    """Relabel by strength, or by the noise of labels where that is given; then by the ratings of
    responses and pairs, then by the review. Pairs outside the slice, or beyond the number of pairs,
    get weight 0."""
    mean = torch.tensor([vote["strength_mean"] for vote in votes], dtype=torch.float64)
    relabelled = relabel(mean, **config.model_dump(exclude=LATER | BY_DOUBT | BY_NOISE))
    if noise is not None and config.noise != "none":
        relabelled = relabel_by_noise(
            relabelled,
            mean,
            config.noise,
            flip_rate=noise.flip_rate,
            slope=noise.slope,
            largest_rate=config.largest_flip_rate,
        )
    against = None
    if config.drop_against is not None:
        shares = [
            vote["num_against"] / max(vote["num_for"] + vote["num_against"], 1) for vote in votes
        ]
        against = torch.tensor(shares, dtype=torch.float64)
    relabelled = relabelled._replace(
        weight=doubt_weight(relabelled, mean, against, **config.model_dump(include=BY_DOUBT))
    )
    labels = torch.tensor([pair.get("label", 1.0) for pair in pairs], dtype=torch.float64)
    relabelled = relabel_soft_labels(relabelled, labels)
    verdicts = {name: torch.tensor([review == name for review in reviews]) for name in OVERRULING}
    in_slice = strength_slice(mean, config.keep_from, config.keep_to)
    if config.max_pairs is not None:
        # The first of one random order, so that fewer pairs are some of more.
        order = torch.randperm(len(mean), generator=torch.Generator().manual_seed(0))
        drawn = order[in_slice[order] > 0][: config.max_pairs]
        in_slice = torch.zeros_like(in_slice).index_fill(0, drawn, 1.0)
    if config.response_ratings:
        # Among pairs that are trained on, a person's verdict in its place.
        reviewed = apply_review(relabelled, **verdicts)
        rated = relabel_by_ratings(pairs, reviewed, reviewed.weight * in_slice > 0)
        relabelled = rated._replace(weight=relabelled.weight)
    if config.rating_margins is not None:
        relabelled = relabelled._replace(
            margin=relabelled.margin + _rating_margin(config, pairs, relabelled)
        )
    relabelled = apply_review(relabelled, **verdicts)
    return relabelled._replace(weight=relabelled.weight * in_slice)


def _noise(config: RelabelConfig, stage: Stage, pairs: list[Row], votes: dict[str, Row]) -> Noise:
    """How often the training labels are wrong; ValueError where the strength is not calibrated.

    Where no voter is better than chance all shares are as likely, and the lowest is taken.
    """
    summary = json.loads((stage.inputs["strength"] / "summary.json").read_text("utf-8"))
    if "weight_0" not in summary:
        raise ValueError(
            f"noise={config.noise} needs a calibrated strength, whose unit is log-odds of held-out "
            "labels; found a mean over members, in a unit of theirs: give a strength of "
            "mode=calibrated"
        )
    strength = np.array([votes[pair["id"]]["strength_mean"] for pair in pairs])
    wrong = wrong_labels_by_prompt(strength, [pair["prompt"] for pair in pairs])
    if wrong is None:
        warnings.warn(
            f"noise={config.noise}: no voter is better than chance, so nothing tells how often "
            "labels are wrong; give flip_rate, or more pairs",
            stacklevel=2,
        )
    share = wrong.share if wrong else Interval(0.0, 0.0, float(SHARES[-1]))
    rate = getattr(share, config.flip_rate_at) if config.flip_rate is None else config.flip_rate
    numbers = {"flip_rate": rate, **with_ends("share_wrong", share)}
    return Noise(rate, wrong.slope_at(rate) if wrong else 0.0, numbers)


def relabel_by_ratings(pairs: Sequence[Row], relabelled: Relabel, counted: Tensor) -> Relabel:
    """Labels by the ratings that a prompt's labels together give its responses.

    Each prompt's responses are players and its pairs games, won by the label's share; a pair's
    label becomes the probability by which its better rated response beats the other. Labels that
    contradict each other correct each other so; a prompt of one pair has its label smoothed by the
    tie that the ratings' prior adds.

    relabelled: of the N pairs. counted: (N,) bool, the pairs that are games; others stay as they
    are. Returns a new Relabel.
    """
    indices: dict[str, list[int]] = {}
    for index in counted.nonzero()[:, 0].tolist():
        indices.setdefault(pairs[index]["prompt"], []).append(index)
    label, is_flipped = relabelled.label.clone(), relabelled.is_flipped.clone()
    for games in indices.values():
        responses = [(pairs[index]["chosen"], pairs[index]["rejected"]) for index in games]
        players = {text: number for number, text in enumerate(dict.fromkeys(chain(*responses)))}
        wins = torch.zeros(len(players), len(players), dtype=torch.float64)
        for index, (chosen, rejected) in zip(games, responses, strict=True):
            better, worse = players[chosen], players[rejected]
            won = float(label[index])
            won = 1 - won if bool(is_flipped[index]) else won
            wins[better, worse] += won
            wins[worse, better] += 1 - won
        if len(players) < 2:
            continue
        ratings = bradley_terry_ratings(wins) / ELO_SCALE
        for index, (chosen, rejected) in zip(games, responses, strict=True):
            share = torch.sigmoid(ratings[players[chosen]] - ratings[players[rejected]])
            is_flipped[index] = share < 0.5 - TIED
            label[index] = torch.maximum(share, 1 - share)
    has_changed = is_flipped != relabelled.is_flipped
    margin = torch.where(has_changed, -relabelled.margin, relabelled.margin)
    return relabelled._replace(label=label, is_flipped=is_flipped, margin=margin)


def _verdicts(config: RelabelConfig, stage: Stage) -> dict[str, str]:
    """The review by pair id; warns of verdicts on held-out pairs, which stay as annotated."""
    if config.review is None:
        return {}
    split_of = {row["id"]: split for split, row in stage.rows_by_split()}
    name = last_part(config.review)
    verdicts = read_review(Source(str(stage.inputs["review"] / name), name=name), split_of.keys())
    held_out = sum(split_of[identifier] != "train" for identifier in verdicts)
    if held_out:
        warnings.warn(
            f"{name}: {held_out} of {len(verdicts)} verdicts are on validation and test pairs, "
            "which stay as annotated: policies and scorers are measured on them",
            stacklevel=2,
        )
    return verdicts


def _rating_margin(config: RelabelConfig, pairs: list[Row], relabelled: Relabel) -> Tensor:
    """Margins (N,) by the pairs' ratings; ValueError where no pair has one."""
    assert config.rating_margins is not None
    rating = torch.tensor([pair.get("rating") or 0 for pair in pairs])
    if not bool(rating.any()):
        raise ValueError(
            f"relabel.rating_margins is {config.rating_margins}, but none of {len(pairs)} pairs "
            "has a rating (1 to 4); leave it out, or give preferences with `rating`"
        )
    return rating_margin(rating, relabelled.is_flipped, config.rating_margins)
