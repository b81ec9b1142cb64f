"""A judge's verdicts: probabilities without position bias, expected scores, agreement.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267.
[MT] Zheng et al., Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena, arXiv 2306.05685.
[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.
[KAPPA] Cohen, A Coefficient of Agreement for Nominal Scales, Educational and Psychological
Measurement 20, 1960.

Deviations
1. [RLAIF] leaves open what a preference of exactly 1/2 says. In the alignment it is half right, as
   in a draw of lots; in a verdict it is a tie; as a label it is 1/2 also where labels are not soft;
   as a vote on a label it is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.models.functional.checks import (
    ShapeError,
    require_floating,
    require_mask,
    require_shape,
)

# Largest probability of a vote (free), so that its log-odds are finite where the judge is certain.
SUREST = 0.999


def option_probabilities(logprobs: Tensor) -> Tensor:
    """Probabilities of the permitted answers alone [RLAIF section 2.1]: softmax over them.

    P_l = exp(logprob_l) / sum_k exp(logprob_k).

    logprobs: (N, L), nats, -inf for an answer that has no share; not normalised.
    Returns (N, L), each row summing to 1.
    Raises ShapeError for other shapes, ValueError for NaN and for a row without any share.
    """
    require_shape("option_probabilities", 2, logprobs=logprobs)
    require_floating("option_probabilities", logprobs=logprobs)
    if not bool((logprobs.amax(1) > -torch.inf).all()):
        raise ValueError(
            "option_probabilities: a row is -inf or NaN throughout, so that no answer is likelier "
            "than another; leave it out and count it as not understood"
        )
    return logprobs.softmax(1)


def debiased_preference(
    shown_first: Tensor, shown_second: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Preference averaged over both orders of presentation [RLAIF section 2.1.1].

    preference_i = (p_i + q_i) / 2, where p_i and q_i are the probabilities of the same response, of
    two, when it is shown first and when it is shown second.

    shown_first, shown_second: (N,), probabilities in [0, 1].
    Returns preference (N,) and means: `position_bias` (mean probability of whatever is shown first,
    minus 1/2: in [-1/2, 1/2], 0 without bias) and `share_same_position` (share of pairs in which
    the same place wins in both orders, whichever response has it [RLAIF appendix B]).
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities(
        "debiased_preference", shown_first=shown_first, shown_second=shown_second
    )
    # In the second order the other response stands first, with probability 1 - q.
    bias = (shown_first - shown_second) / 2
    first, second = shown_first.detach(), shown_second.detach()
    same = ((first > 0.5) & (second < 0.5)) | ((first < 0.5) & (second > 0.5))
    return (shown_first + shown_second) / 2, {
        "position_bias": bias.detach().mean(),
        "share_same_position": same.to(bias.dtype).mean(),
    }


def clamped_preference(preference: Tensor, low: float, high: float) -> Tensor:
    """A preference clamped to bounds, as chain of thought makes a judge overconfident.

    min(max(p, low), high) [CAI section 4.1: 0.4 and 0.6, with chain of thought].

    preference: (N,), probabilities in [0, 1]. low, high: 0 <= low <= high <= 1.
    Returns (N,) in [low, high].
    Raises ShapeError for other shapes, ValueError for other values.
    """
    _require_probabilities("clamped_preference", preference=preference)
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"clamped_preference: bounds must be 0 <= low <= high <= 1, found {low} and {high}"
        )
    return preference.clamp(low, high)


def order_verdicts(shown_first: Tensor, shown_second: Tensor) -> Tensor:
    """Win 1, tie 0, lose -1: a win only where both orders say so [MT section 3.4].

    shown_first, shown_second: (N,), probabilities in [0, 1], as in `debiased_preference`.
    Returns (N,) in {-1, 0, 1}, in the probabilities' dtype.
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities("order_verdicts", shown_first=shown_first, shown_second=shown_second)
    wins = (shown_first > 0.5) & (shown_second > 0.5)
    losses = (shown_first < 0.5) & (shown_second < 0.5)
    return wins.to(shown_first.dtype) - losses.to(shown_first.dtype)


def expected_score(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The mean rating by its probabilities, and its place in [-1, 1] [RLAIF section 2.2.2].

    s = sum_{i=1..S} i P_i; normalised: 2 (s - 1) / (S - 1) - 1.

    probabilities: (N, S), of the ratings 1 to S, S >= 2, each row summing to 1.
    Returns s (N,) in [1, S] and its normalised form (N,).
    Raises ShapeError for other shapes, ValueError for rows that are no distributions.
    """
    _require_probabilities("expected_score", 2, probabilities=probabilities)
    num_ratings = probabilities.shape[1]
    if num_ratings < 2:
        raise ShapeError(f"expected_score: at least 2 ratings are needed, found {num_ratings}")
    if not bool(((probabilities.sum(1) - 1).abs() < 1e-4).all()):
        raise ValueError(
            "expected_score: each row must sum to 1; pass it through option_probabilities first"
        )
    ratings = torch.arange(1, num_ratings + 1, device=probabilities.device)
    score = probabilities @ ratings.to(probabilities.dtype)
    return score, 2 * (score - 1) / (num_ratings - 1) - 1


def alignment(preference: Tensor) -> Tensor:
    """Whether a judge agrees with each label [RLAIF section 2.3, AI labeler alignment, its mean].

    1 where preference > 1/2, 0 where it is less, 1/2 where it is equal (deviation 1).

    preference: (N,), the judge's probability in [0, 1] that the chosen response is better.
    Returns (N,) in {0, 1/2, 1}, in the probabilities' dtype.
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities("alignment", preference=preference)
    return ((preference.detach() - 0.5).sign() + 1) / 2


def preferred_labels(preference: Tensor, *, soft: bool) -> tuple[Tensor, Tensor]:
    """A judge's preferences as labels of the responses it prefers [RLAIF section 2.1].

    is_flipped_i = preference_i < 1/2; label_i = max(preference_i, 1 - preference_i), the judge's
    probability that the response it prefers is better; where labels are not soft, 1.
    At 1/2 nothing is flipped, and the label is 1/2 (deviation 1).

    preference: (N,), the judge's probability in [0, 1] that the chosen response is better.
    soft: whether labels are probabilities, for the cross entropy of `reward.ranking_loss`.
    Returns is_flipped (N,) bool, True = the two responses are swapped, and label (N,) in [1/2, 1].
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities("preferred_labels", preference=preference)
    label = torch.maximum(preference, 1 - preference)
    if not soft:
        label = torch.where(preference == 0.5, label, torch.ones_like(label))
    return preference < 0.5, label


def is_understood(shown_first: Tensor, shown_second: Tensor, num_unparsed: Tensor) -> Tensor:
    """Whether each pair has an answer in both orders, without which position bias stays in it.

    An order of which no answer can be parsed counts as exactly 1/2.

    shown_first, shown_second: (N,), probabilities in [0, 1], as in `debiased_preference`.
    num_unparsed: (N,), answers that could not be parsed, of both orders together.
    Returns (N,) bool.
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities("is_understood", shown_first=shown_first, shown_second=shown_second)
    require_shape("is_understood", 1, num_unparsed=num_unparsed)
    return (num_unparsed == 0) | ((shown_first != 0.5) & (shown_second != 0.5))


def log_odds_votes(preference: Tensor, understood: Tensor) -> Tensor:
    """A judge's votes on labels: log(p / (1 - p)), p within 1 - SUREST and SUREST.

    preference: (N,), the judge's probability in [0, 1] that the chosen response is better.
    understood: (N,) bool, True = as in `is_understood`.
    Returns (N,), logits; NaN, no vote, where the pair was not understood or p is 1/2 (deviation 1).
    Raises ShapeError for other shapes, ValueError for values outside [0, 1].
    """
    _require_probabilities("log_odds_votes", preference=preference)
    require_mask("log_odds_votes", understood, "understood")
    votes = preference.clamp(1 - SUREST, SUREST).logit()
    return votes.where(understood & (preference != 0.5), torch.nan)


def kappa_of_counts(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement of two judges: raw, and beyond chance [KAPPA eq. 1]; of many samples at once.

    p_o = share of equal verdicts; p_e = sum_c share_1(c) share_2(c); kappa = (p_o - p_e)/(1 - p_e).

    counts: (..., C, C), n_cd = how often the first judge said c and the second d; some above 0.
    Returns p_o in [0, 1] and kappa in [-1, 1], (...), float64; kappa is NaN where both judges give
    one and the same verdict throughout, as chance would agree just as well.
    Raises ShapeError where counts are not square.
    """
    if counts.ndim < 2 or counts.shape[-1] != counts.shape[-2]:
        raise ShapeError(
            f"kappa_of_counts: counts must be (..., C, C), found {tuple(counts.shape)}"
        )
    shares = counts.double() / counts.sum((-2, -1), keepdim=True)
    by_chance = (shares.sum(-1) * shares.sum(-2)).sum(-1)
    agreement = shares.diagonal(dim1=-2, dim2=-1).sum(-1)
    # Shares of one verdict throughout add up to 1 but for rounding.
    room = torch.where(1 - by_chance > 1e-12, 1 - by_chance, torch.nan)
    return agreement, (agreement - by_chance) / room


def _require_probabilities(where: str, ndim: int = 1, **tensors: Tensor) -> None:
    require_shape(where, ndim, **tensors)
    require_floating(where, **tensors)
    for name, values in tensors.items():
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(f"{where}: {name} must be probabilities in [0, 1]")
