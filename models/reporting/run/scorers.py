"""What the reward models are worth: accuracy, calibration, and comparability across categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from trimtab.models.data.words import words_of
from trimtab.models.reporting.kit.artifacts import Artifacts, Row, ScoredPairs, is_clear
from trimtab.models.reporting.kit.names import EMBEDDING_MODELS, PROBE_NAMES
from trimtab.models.statistics.calibration import (
    Binning,
    expected_calibration_error,
    pair_confidence,
)
from trimtab.models.statistics.estimates import (
    biased_estimate,
    cluster_ids,
    mean_estimate,
    share_estimate,
)
from trimtab.models.statistics.measured import Estimate

NUM_BINS = 10
NAMES = {
    "baseline": "member_0",
    "relabelled": "reward_model",
    "advantage_model": "advantage_model",
    "external_reward": "reward",
    **{role: role for role in EMBEDDING_MODELS},
}
BINNINGS: tuple[Binning, ...] = ("width", "mass")
Labels = Literal["annotators", "clean"]
LABEL_NAMES: dict[Labels, str] = {"annotators": "annotators' labels", "clean": "right labels"}


@dataclass(frozen=True)
class CategoryScores:
    """Scores of all answers to a category's test pairs, and accuracy on annotators' labels."""

    mean: float
    std: float
    num_pairs: int
    accuracy: Estimate | None


@dataclass(frozen=True)
class Probe:
    """A changed answer beside the answer of a test pair that the labels prefer, over prompts.

    shift: of the score, in its unit. preferred: the share in which the changed one scores higher.
    """

    shift: Estimate
    preferred: Estimate


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """One scorer on the test pairs.

    label_*: against the annotators' labels; clean_*: pairs that are no near-ties with the label
    put right by gold (None without truth). *_ece_width, *_ece_mass: expected calibration error,
    10 bins of equal width or equal mass. votes_ece_*: the same against the share of people's votes
    for the answer that the scorer prefers, undecided votes left out (None without votes). An
    external reward, of any unit, has no calibration error. category_mean_spread: standard
    deviation over categories (dividing by their number) of the mean score of all test answers;
    category_std: mean over categories of the standard deviation within; spread_ratio: the former
    over the latter (None with fewer than two categories). longer_preferred: how often it prefers
    the longer answer, in words, of test pairs whose answers differ in length. probes: by name of
    `trimtab.models.training.probes`.
    """

    role: str
    num_trained_pairs: int
    label_accuracy: Estimate | None
    label_ece_width: Estimate | None = None
    label_ece_mass: Estimate | None = None
    clean_accuracy: Estimate | None
    clean_ece_width: Estimate | None = None
    clean_ece_mass: Estimate | None = None
    votes_ece_width: Estimate | None = None
    votes_ece_mass: Estimate | None = None
    category_mean_spread: Estimate | None = None
    category_std: Estimate | None = None
    spread_ratio: Estimate | None = None
    longer_preferred: Estimate | None = None
    categories: dict[str, CategoryScores]
    probes: dict[str, Probe]


@dataclass(frozen=True)
class LengthBaseline:
    """Prefers the longer answer (in words); equal lengths count as half right.

    categories: accuracy on the annotators' labels by category.
    """

    label_accuracy: Estimate
    clean_accuracy: Estimate | None
    categories: dict[str, Estimate | None]


def gaps(artifacts: Artifacts, role: str, labels: Labels) -> ScoredPairs:
    """Test pairs with the score gap towards the better answer."""
    return artifacts.labelled_gaps(role) if labels == "annotators" else artifacts.clean_gaps(role)


def measure(artifacts: Artifacts, role: str, seed: int) -> Scorer:
    """All numbers of one scorer."""
    measures: dict[str, Estimate | None] = {}
    for prefix, scored in (
        ("label", artifacts.labelled_gaps(role)),
        ("clean", artifacts.clean_gaps(role)),
    ):
        gap = scored.gap
        clusters = cluster_ids(row["prompt"] for row in scored.rows)
        measures[f"{prefix}_accuracy"] = share_estimate(gap > 0, clusters)
        for binning in BINNINGS if len(gap) and role != NAMES["external_reward"] else ():
            error = partial(_ece_of, gap, binning)
            measures[f"{prefix}_ece_{binning}"] = biased_estimate(error, len(gap), seed)
    return Scorer(
        role=role,
        num_trained_pairs=artifacts.document(role, "summary.json")["num_trained_pairs"],
        **measures,
        **_errors_of_votes(artifacts, role, seed),
        **_spreads(artifacts, role, seed),
        longer_preferred=_longer_preferred(artifacts, role),
        categories=_categories(artifacts, role),
        probes=_probes(artifacts, role, seed),
    )


def _longer_preferred(artifacts: Artifacts, role: str) -> Estimate | None:
    scored = artifacts.labelled_gaps(role)
    more = torch.tensor([_num_more_words(row) for row in scored.rows])
    differs = more != 0
    clusters = cluster_ids(row["prompt"] for row in scored.rows)[differs]
    return share_estimate(scored.gap[differs] * more[differs] > 0, clusters)


def _num_more_words(row: Row) -> int:
    """How many words `chosen` has more than `rejected`."""
    return len(words_of(row["chosen"])) - len(words_of(row["rejected"]))


def _probes(artifacts: Artifacts, role: str, seed: int) -> dict[str, Probe]:
    rows = artifacts.rows(role, "probes.jsonl")
    probes = {}
    for name in [name for name in PROBE_NAMES if rows and name in rows[0]]:
        shift = torch.tensor([row[name] - row["chosen"] for row in rows], dtype=torch.float64)
        preferred = share_estimate(shift > 0, None)
        assert preferred is not None
        probes[name] = Probe(mean_estimate(shift, seed), preferred)
    return probes


def _errors_of_votes(artifacts: Artifacts, role: str, seed: int) -> dict[str, Estimate | None]:
    """Calibration errors against people's votes."""
    scored = artifacts.labelled_gaps(role)
    votes = [row.get("votes") or {} for row in scored.rows]
    counts = torch.tensor([[v.get("chosen", 0), v.get("rejected", 0)] for v in votes]).view(-1, 2)
    decided = counts.sum(1) > 0
    if role == NAMES["external_reward"] or not decided.any():
        return {}
    confidence, _ = pair_confidence(scored.gap[decided])
    shares = counts[decided].double() / counts[decided].sum(1, keepdim=True)
    # A scorer that cannot tell is as sure of either answer: half right.
    gap = scored.gap[decided]
    right = torch.where(gap > 0, shares[:, 0], torch.where(gap < 0, shares[:, 1], 0.5))

    def error(index: Tensor, binning: Binning) -> float:
        return float(expected_calibration_error(confidence[index], right[index], NUM_BINS, binning))

    return {
        f"votes_ece_{binning}": biased_estimate(partial(error, binning=binning), len(gap), seed)
        for binning in BINNINGS
    }


def _ece_of(gap: Tensor, binning: Binning, index: Tensor) -> float:
    return ece(gap[index], binning)


def ece(gap: Tensor, binning: Binning) -> float:
    """Expected calibration error of score gaps (N,) towards the better answer."""
    confidence, correct = pair_confidence(gap)
    return float(expected_calibration_error(confidence, correct, NUM_BINS, binning))


def overconfidence(artifacts: Artifacts, role: str, seed: int) -> Estimate:
    """Mean confidence in the preferred answer less the share that is labelled better, test pairs:
    above 0 where a bound of scores has something to take back."""
    confidence, correct = pair_confidence(artifacts.labelled_gaps(role).gap)
    return mean_estimate(confidence.double() - correct.double(), seed)


def answer_scores(artifacts: Artifacts, role: str) -> tuple[list[str], Tensor, Tensor]:
    """Category names, and per test pair with a category its index (N,) and two scores (N, 2)."""
    scores = artifacts.scores(role, "test")
    pairs = [row for row in artifacts.pairs("test") if row.get("category") is not None]
    names = sorted({row["category"] for row in pairs})
    which = torch.tensor([names.index(row["category"]) for row in pairs], dtype=torch.long)
    values = [
        [scores[row["id"]]["chosen_score"], scores[row["id"]]["rejected_score"]] for row in pairs
    ]
    return names, which, torch.tensor(values, dtype=torch.float64).view(-1, 2)


def category_moments(which: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (dividing by n) of scores (N, 2) by category, (count,) each."""
    size = 2 * torch.bincount(which, minlength=count).double()
    zeros = torch.zeros(count, dtype=torch.float64)
    mean = zeros.index_add(0, which, scores.sum(1)) / size
    square = zeros.index_add(0, which, ((scores - mean[which, None]) ** 2).sum(1)) / size
    return mean, square.sqrt()


def spread_of(which: Tensor, scores: Tensor, count: int) -> tuple[float, float]:
    """Standard deviation over categories of their mean score, and mean deviation within."""
    mean, std = category_moments(which, scores, count)
    return float(mean.std(correction=0)), float(std.mean())


def ratio_of(spread: float, within: float) -> float:
    """Spread over spread within; 0 where answers of a category all score the same."""
    return spread / within if within > 0 else 0.0


def _spreads(artifacts: Artifacts, role: str, seed: int) -> dict[str, Estimate | None]:
    names, which, scores = answer_scores(artifacts, role)
    if len(names) < 2:
        return {}

    def statistic(index: Tensor, place: int) -> float:
        spread, within = spread_of(which[index], scores[index], len(names))
        return (spread, within, ratio_of(spread, within))[place]

    return {
        key: biased_estimate(partial(statistic, place=place), len(which), seed, strata=which)
        for place, key in enumerate(("category_mean_spread", "category_std", "spread_ratio"))
    }


def _categories(artifacts: Artifacts, role: str) -> dict[str, CategoryScores]:
    names, which, scores = answer_scores(artifacts, role)
    mean, std = category_moments(which, scores, len(names))
    count = torch.bincount(which, minlength=len(names)).tolist()
    rows = [row for row in artifacts.pairs("test") if row.get("category") is not None]
    accuracy = _accuracy_by_category(rows, (scores[:, 0] > scores[:, 1]).tolist())
    return {
        name: CategoryScores(m, s, n, accuracy[name])
        for name, m, s, n in zip(names, mean.tolist(), std.tolist(), count, strict=True)
    }


def _accuracy_by_category(
    rows: Sequence[Row], right: Sequence[float]
) -> dict[str, Estimate | None]:
    """The share that is right (N,) of the rows of each category."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.get("category") is not None:
            groups.setdefault(row["category"], []).append(index)
    return {
        name: share_estimate(
            [right[index] for index in group], cluster_ids(rows[index]["prompt"] for index in group)
        )
        for name, group in sorted(groups.items())
    }


def length_baseline(artifacts: Artifacts) -> LengthBaseline | None:
    """The accuracy of preferring the longer answer."""
    pairs = artifacts.pairs("test")
    if not pairs:
        return None
    more = [_num_more_words(row) for row in pairs]
    right = [0.5 if number == 0 else float(number > 0) for number in more]
    clusters = cluster_ids(row["prompt"] for row in pairs)
    clear = [n for n, row in enumerate(pairs) if is_clear(artifacts.truth.get(row["id"]))]
    wrong = [artifacts.truth[pairs[n]["id"]]["is_wrong"] for n in clear]
    clean = [
        1 - right[n] if is_wrong else right[n] for n, is_wrong in zip(clear, wrong, strict=True)
    ]
    accuracy = share_estimate(right, clusters)
    assert accuracy is not None
    return LengthBaseline(
        accuracy, share_estimate(clean, clusters[clear]), _accuracy_by_category(pairs, right)
    )
