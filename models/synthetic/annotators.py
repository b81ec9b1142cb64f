"""Simulated annotators: Bradley-Terry noise, planted flips, planted ambiguity.

Flips are uniform, or fall more often on pairs that are hard to judge: close answers, and answers of
the families in HARD.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from trimtab.models.config.data import MAX_FLIP_PROBABILITY
from trimtab.models.synthetic.gold import quality, raw_score
from trimtab.models.synthetic.tasks import family_of

# Perceived gaps, in raw score, from which on an answer is rated 2, 3 and 4: what a courtesy word,
# politeness and the right answer are worth.
RATED_FROM = (0.15, 0.4, 0.7)
# Families whose labels are wrong twice as often, where flips depend on the pair.
HARD = ("sort", "count", "add", "code", "harmful")


@dataclass(frozen=True)
class LabelledPair:
    """A labelled pair with the truth that only evaluation may read.

    `kind` is `clear` (Bradley-Terry label), `flipped` (a clear pair whose label was then turned
    round on purpose) or `ambiguous` (near-tie, the label is a coin toss). `rating` is how much
    better the annotator found the chosen answer, 1 (barely) to 4 (much). `flip_draw`, in [0, 1),
    decides of a clear pair whether it is flipped: if it is below the probability of that.
    """

    prompt: str
    chosen: str
    rejected: str
    kind: str
    rating: int
    gold_chosen: float
    gold_rejected: float
    flip_draw: float = 1.0

    @property
    def is_wrong(self) -> bool:
        """Whether the label contradicts the gold scorer."""
        return self.gold_chosen < self.gold_rejected


@dataclass(frozen=True)
class Annotator:
    """How a simulated annotator labels.

    A clear pair differs in quality by at least `clear_gap`; an ambiguous one, of which there are
    `ambiguous_share`, by less than half of it. A clear pair's label is drawn from P(first better) =
    sigmoid(sharpness * raw score gap); of such labels `flip_share` are then flipped.
    """

    flip_share: float
    ambiguous_share: float
    clear_gap: float
    sharpness: float


def annotate(
    prompt: str,
    responses: list[str],
    annotator: Annotator,
    rng: random.Random,
    compared: Collection[frozenset[str]] = (),
) -> LabelledPair | None:
    """Compare two of a prompt's responses, or `None` when no pair of the wanted kind is among them.

    The pairs in `compared` are not taken again.
    """
    wants_ambiguous = rng.random() < annotator.ambiguous_share
    candidates = [
        (first, second)
        for index, first in enumerate(responses)
        for second in responses[index + 1 :]
        if first != second
        and frozenset((first, second)) not in compared
        and _fits(prompt, first, second, annotator.clear_gap, wants_ambiguous)
    ]
    if not candidates:
        return None
    first, second = rng.choice(candidates)
    kind, flip_draw = "ambiguous", 1.0
    if wants_ambiguous:
        first_wins, perceived = _perceive(0.0, annotator.sharpness, rng.random())
    else:
        gap = raw_score(prompt, first) - raw_score(prompt, second)
        first_wins, perceived = _label(gap, annotator.sharpness, 0.0, rng)
        flip_draw = rng.random()
        is_flipped = flip_draw < annotator.flip_share
        kind, first_wins = ("flipped" if is_flipped else "clear"), first_wins != is_flipped
    chosen, rejected = (first, second) if first_wins else (second, first)
    return LabelledPair(
        prompt,
        chosen,
        rejected,
        kind,
        1 + bisect(RATED_FROM, perceived),
        quality(prompt, chosen),
        quality(prompt, rejected),
        flip_draw,
    )


def flip_hard_pairs(pairs: Sequence[LabelledPair], share: float) -> list[LabelledPair]:
    """Clear pairs flipped by how hard they are to judge, `share` of them on average.

    A pair's probability is proportional to 1.2 less its difference in quality, and twice that in
    the families of HARD; none exceeds MAX_FLIP_PROBABILITY. pairs: none of them flipped yet.
    """
    clear = [pair for pair in pairs if pair.kind == "clear"]
    probabilities = iter(flip_probabilities([_difficulty(pair) for pair in clear], share))
    return [
        _turned(pair) if pair.kind == "clear" and pair.flip_draw < next(probabilities) else pair
        for pair in pairs
    ]


def _difficulty(pair: LabelledPair) -> float:
    is_hard = family_of(pair.prompt).name in HARD
    return (1.2 - abs(pair.gold_chosen - pair.gold_rejected)) * (2 if is_hard else 1)


def flip_probabilities(weights: Sequence[float], share: float) -> list[float]:
    """Proportional to the weights (above 0), but at most MAX_FLIP_PROBABILITY; their mean is
    `share`, which must not be more than that."""
    rising = sorted(weights)
    total, below = share * len(rising), math.fsum(rising)
    # The largest weights reach the limit first: the others share what these leave.
    for index in range(len(rising), 0, -1):
        factor = (total - (len(rising) - index) * MAX_FLIP_PROBABILITY) / below
        if factor * rising[index - 1] <= MAX_FLIP_PROBABILITY:
            return [min(factor * weight, MAX_FLIP_PROBABILITY) for weight in weights]
        below -= rising[index - 1]
    return [MAX_FLIP_PROBABILITY for _ in weights]


def _turned(pair: LabelledPair) -> LabelledPair:
    return replace(
        pair,
        kind="flipped",
        chosen=pair.rejected,
        rejected=pair.chosen,
        gold_chosen=pair.gold_rejected,
        gold_rejected=pair.gold_chosen,
    )


def _fits(prompt: str, first: str, second: str, clear_gap: float, ambiguous: bool) -> bool:
    gap = abs(quality(prompt, first) - quality(prompt, second))
    return gap < clear_gap / 2 if ambiguous else gap >= clear_gap


def annotator_prefers_first(
    gap: float, sharpness: float, flip_share: float, rng: random.Random
) -> bool:
    """One label: P(first) = sigmoid(sharpness * gap), flipped with probability flip_share."""
    return _label(gap, sharpness, flip_share, rng)[0]


def _label(
    gap: float, sharpness: float, flip_share: float, rng: random.Random
) -> tuple[bool, float]:
    """The label of `annotator_prefers_first`, and how large a gap was perceived."""
    prefers, perceived = _perceive(gap, sharpness, rng.random())
    return prefers != (rng.random() < flip_share), perceived


def _perceive(gap: float, sharpness: float, draw: float) -> tuple[bool, float]:
    """Whether the first looks better, and by how much one looks better, from a draw in [0, 1).

    Bradley-Terry is a gap seen through logistic noise: gap - logit(draw) / sharpness is above 0
    with probability sigmoid(sharpness * gap).
    """
    prefers = draw < 0.5 * (1 + math.tanh(sharpness * gap / 2))
    noise = math.log(max(draw, sys.float_info.min) / (1 - draw))
    return prefers, abs(gap - noise / sharpness)


def truth_row(identifier: str, pair: LabelledPair) -> dict[str, object]:
    """What only evaluation may read of a pair, as a row."""
    return {
        "id": identifier,
        "kind": pair.kind,
        "is_wrong": pair.is_wrong,
        "gold_chosen": pair.gold_chosen,
        "gold_rejected": pair.gold_rejected,
        "category": family_of(pair.prompt).name,
    }
