"""Reads a label from an answer: from the log-probabilities of its tokens, or from its text.

Deviations from [RLAIF] (Lee et al., arXiv 2309.00267, sections 2.1 and 2.2.2)
1. The paper's softmax covers the labels' tokens only, however unlikely they are. Here the labels
   must have at least `min_mass` of the probability together; otherwise the text is read.
2. An endpoint lists the likeliest tokens only. A label that is not listed has probability 0.
3. Spellings of a label that differ in white space only (`A`, ` A`) are added up.
4. A label of two tokens (`10` in some vocabularies) has the product of its tokens' probabilities.
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


def label_logprobs(
    answer: ChatAnswer, labels: Sequence[str], min_mass: float
) -> list[float] | None:
    """Log-probability of each label in nats, or None if the answer names no label.

    Read at the first token that is not white space, if the labels have at least `min_mass` there.
    These are not normalised: other tokens have the rest. Else the whole text must be one label,
    which gets 0, and the others -inf.
    """
    shares = _label_shares(answer.tokens, labels)
    mass = sum(shares)
    if mass > 0 and mass >= min_mass:
        return [math.log(share) if share > 0 else -math.inf for share in shares]
    found = label_of(answer.content, labels)
    if found is None:
        return None
    return [0.0 if label == found else -math.inf for label in labels]


def label_of(text: str, labels: Sequence[str]) -> str | None:
    """The label that a text consists of, apart from punctuation and a prefix such as `Answer:`."""
    choice = "|".join(re.escape(label) for label in labels)
    match = re.fullmatch(rf"\W*(?:{_PREFIX}\W+)?(?<![-+.])({choice})\W*", text)
    return match.group(1) if match else None


def _label_shares(tokens: Sequence[Token], labels: Sequence[str]) -> list[float]:
    """Probability of each label at the answer's first token that is not white space."""
    position = next((i for i, token in enumerate(tokens) if token.text.strip()), None)
    if position is None:
        return [0.0] * len(labels)
    first = _token_shares(tokens[position])
    shares = {label: first.get(label, 0.0) for label in labels}
    begun = tokens[position].text.strip()
    if position + 1 < len(tokens):
        second = _token_shares(tokens[position + 1])
        for label in labels:
            rest = label.removeprefix(begun)
            if label not in first and rest and rest != label and begun in shares:
                part = first[begun] * second.get(rest, 0.0)
                shares[label] += part
                shares[begun] -= part
    return [shares[label] for label in labels]


def _token_shares(token: Token) -> dict[str, float]:
    """Probabilities at a token's position, by text without white space; its own included."""
    listed = {token.text: token.logprob, **dict(token.top)}
    shares: dict[str, float] = {}
    for text, logprob in listed.items():
        shares[text.strip()] = shares.get(text.strip(), 0.0) + math.exp(logprob)
    return shares
