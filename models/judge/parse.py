"""Reads an option from an answer: from the log-probabilities of its tokens, or from its text.

Deviations from [RLAIF] (Lee et al., arXiv 2309.00267, sections 2.1 and 2.2.2)
1. The paper's softmax covers the options' tokens only, however unlikely they are. Here the options
   must have at least `min_mass` of the probability together; otherwise the text is read.
2. An endpoint lists the likeliest tokens only. An option that is not listed has probability 0.
3. Spellings of an option that differ in white space only (`A`, ` A`) are added up.
4. An option of two tokens (`10` in some vocabularies) has the product of its tokens' probabilities.
   That of the second is known only if the answer begins with the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from trimtab.models.judge.chat import ChatAnswer, Token

_PREFIX = (
    r"(?i:(?:the )?(?:final |better )?(?:answer|verdict|choice|score|rating|response)(?: is)?)"
)


def option_logprobs(
    answer: ChatAnswer, options: Sequence[str], min_mass: float
) -> list[float] | None:
    """Log-probability of each option in nats, or None if the answer names no option.

    Read at the first token that is not white space, if the options have at least `min_mass` there.
    These are not normalised: other tokens have the rest. Else the whole text must be one option,
    which gets 0, and the others -inf.
    """
    shares = _option_shares(answer.tokens, options)
    mass = sum(shares)
    if mass > 0 and mass >= min_mass:
        return [math.log(share) if share > 0 else -math.inf for share in shares]
    choice = option_of(answer.content, options)
    if choice is None:
        return None
    return [0.0 if option == choice else -math.inf for option in options]


def option_of(text: str, options: Sequence[str]) -> str | None:
    """The option that a text consists of, apart from punctuation and a prefix such as `Answer:`."""
    choice = "|".join(re.escape(option) for option in options)
    match = re.fullmatch(rf"\W*(?:{_PREFIX}\W+)?(?<![-+.])({choice})\W*", text)
    return match.group(1) if match else None


def _option_shares(tokens: Sequence[Token], options: Sequence[str]) -> list[float]:
    """Probability of each option at the answer's first token that is not white space."""
    position = next((i for i, token in enumerate(tokens) if token.text.strip()), None)
    if position is None:
        return [0.0] * len(options)
    first = _token_shares(tokens[position])
    shares = {option: first.get(option, 0.0) for option in options}
    begun = tokens[position].text.strip()
    if position + 1 < len(tokens):
        second = _token_shares(tokens[position + 1])
        for option in options:
            rest = option.removeprefix(begun)
            if option not in first and rest and rest != option and begun in shares:
                part = first[begun] * second.get(rest, 0.0)
                shares[option] += part
                shares[begun] -= part
    return [shares[option] for option in options]


def _token_shares(token: Token) -> dict[str, float]:
    """Probabilities at a token's position, by text without white space; its own included."""
    listed = {token.text: token.logprob, **dict(token.top)}
    shares: dict[str, float] = {}
    for text, logprob in listed.items():
        shares[text.strip()] = shares.get(text.strip(), 0.0) + math.exp(logprob)
    return shares
