"""Every pair with all the audit knows of it, from the artifacts of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.models.data.records import read_rows
from trimtab.models.data.words import words_of
from trimtab.models.reporting.kit.artifacts import SPLITS, Artifacts, ReportInputError, Row
from trimtab.models.reporting.run.labels import voting_mode

MOST_NAMED = 5
NO_CATEGORY = "no category"  # as data.js has it
UNTREATED = {"is_flipped": False, "label": 1.0, "margin": 0.0, "weight": 1.0, "review": None}


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """A raw pair, the ensemble's vote on it, and what relabelling decided.

    differences: each member's score of `chosen` minus that of `rejected`, in the members' order;
    None where the member has no vote: it was trained on the pair, or abstains. strength_mean,
    strength_std: of those that vote. label_given: what the pair came with, below 1 where a judge
    was unsure. is_flipped, label, margin, weight, review: of a training pair, as relabelled;
    held-out pairs are not relabelled and stand as annotated. votes: people's. truth: what the
    synthetic world knows. None where there is nothing. source: "file:line" that it was read from.
    opinions: which of the votes is whose, where that is known. messages: the prompt's and both
    answers', of a pair that came as messages. repeats, contradicts: ids of other
    pairs with the same prompt and answers, labelled alike and the other way round, of each the
    first MOST_NAMED.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str
    category: str | None
    split: str
    strength_mean: float
    strength_std: float
    differences: tuple[float | None, ...]
    label_given: float
    is_flipped: bool
    label: float
    margin: float
    weight: float
    review: str | None
    votes: Row | None
    truth: Row | None
    source: str = ""
    opinions: tuple[Row, ...] = ()
    messages: Row | None = None
    repeats: tuple[str, ...] = ()
    contradicts: tuple[str, ...] = ()

    @property
    def category_name(self) -> str:
        """Its category as a word."""
        return self.category or NO_CATEGORY

    @property
    def looks_wrong(self) -> bool:
        """Whether the members together prefer the answer labelled worse."""
        return self.strength_mean < 0

    @property
    def is_wrong(self) -> bool:
        """Whether its label is known to be wrong."""
        return self.truth is not None and bool(self.truth["is_wrong"])

    @property
    def is_disputed(self) -> bool:
        """Whether some members prefer one answer and some the other."""
        voted = [difference for difference in self.differences if difference is not None]
        return bool(voted) and min(voted) < 0 < max(voted)

    @property
    def is_flip_unsupported(self) -> bool:
        """Whether relabelling flipped it though no member prefers the answer labelled worse.

        A flip that a person asked for needs no member.
        """
        has_support = any(d is not None and d < 0 for d in self.differences)
        return self.is_flipped and self.review != "flip" and not has_support

    @property
    def is_explained_by_length(self) -> bool:
        """Whether it looks wrong to who prefers the longer answer, too, by words."""
        is_longer = len(words_of(self.rejected)) > len(words_of(self.chosen))
        return self.looks_wrong and is_longer

    @property
    def is_divided(self) -> bool:
        """Whether people's votes were not all for the answer labelled better."""
        votes = self.votes or {}
        return bool(votes.get("rejected") or votes.get("equal"))

    @property
    def is_smoothed(self) -> bool:
        """Whether relabelling made the label softer than it came."""
        return self.label < self.label_given


def audited_pairs(artifacts: Artifacts) -> list[AuditedPair]:
    """All pairs: training, validation, test, each in the order of `preferences`.

    Needs the roles `preferences`, `member_<i>`, `strength` and `relabelled`. Raises
    ReportInputError where they are not about the same pairs, or a strength is not finite.
    """
    strength = artifacts.rows("strength", "strength.jsonl")
    pairs = [{**row, "split": split} for split in SPLITS for row in artifacts.pairs(split)]
    _check("strength", pairs, strength)
    relabelled = artifacts.rows("relabelled", "train.jsonl")
    _check("relabelled", artifacts.pairs("train"), relabelled)
    treatments = [{name: row[name] for name in UNTREATED} for row in relabelled]
    treatments += [UNTREATED] * (len(pairs) - len(relabelled))
    members = _differences(artifacts, strength)
    recurring = _recurring(pairs)
    result = []
    for pair, vote, treatment, differences in zip(
        pairs, strength, treatments, members, strict=True
    ):
        if not (math.isfinite(vote["strength_mean"]) and math.isfinite(vote["strength_std"])):
            raise ReportInputError(
                f"strength: pair {pair['id']!r} has mean {vote['strength_mean']} and deviation "
                f"{vote['strength_std']}, allowed: finite numbers; train the members again"
            )
        raw: dict[str, Any] = {name: pair.get(name) for name in ("category", "votes")}
        raw |= {name: pair[name] for name in ("id", "prompt", "chosen", "rejected", "split")}
        raw |= {name: vote[name] for name in ("strength_mean", "strength_std")}
        raw |= {"label_given": pair.get("label", 1.0), "source": pair.get("source") or ""}
        raw |= {"opinions": tuple(pair.get("opinions") or ()), "messages": pair.get("messages")}
        raw |= recurring.get(pair["id"], {})
        truth = artifacts.truth.get(pair["id"])
        result.append(AuditedPair(**raw, **treatment, differences=differences, truth=truth))
    return result


def _recurring(pairs: Sequence[Row]) -> dict[str, dict[str, tuple[str, ...]]]:
    """`repeats` and `contradicts` of the pairs that have any, by id."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for pair in pairs:
        answers = sorted((pair["chosen"], pair["rejected"]))
        groups.setdefault((pair["prompt"], *answers), []).append(pair)
    recurring = {}
    for group in groups.values():
        by_label: dict[str, list[str]] = {}
        for pair in group if len(group) > 1 else ():
            by_label.setdefault(pair["chosen"], []).append(pair["id"])
        for chosen, ids in by_label.items():
            others = [same for label, same in by_label.items() if label != chosen]
            contradicts = tuple(others[0][:MOST_NAMED]) if others else ()
            first = ids[: MOST_NAMED + 1]
            for pair_id in ids:
                repeats = tuple(other for other in first if other != pair_id)[:MOST_NAMED]
                recurring[pair_id] = {"repeats": repeats, "contradicts": contradicts}
    return recurring


def _differences(artifacts: Artifacts, strength: Sequence[Row]) -> list[tuple[float | None, ...]]:
    """Every pair's votes. One member is read after another: their rows would fill the memory."""
    is_crossed = voting_mode(artifacts, "strength") != "in_sample"
    columns = []
    for role in artifacts.members:
        rows = read_rows(artifacts.inputs[role] / "scores.jsonl")
        _check(role, strength, rows)
        columns.append(
            [
                None
                if row["chosen_score"] is None or (is_crossed and row["was_trained_on"])
                else row["chosen_score"] - row["rejected_score"]
                for row in rows
            ]
        )
    return list(zip(*columns, strict=True))


def _check(role: str, expected: Sequence[Row], rows: Sequence[Row]) -> None:
    """Require the same pairs in the same order."""
    if [row["id"] for row in expected] != [row["id"] for row in rows]:
        raise ReportInputError(
            f"{role} has {len(rows)} pairs, others or in another order than the {len(expected)} "
            "of `preferences`; pass what was made from these pairs"
        )
