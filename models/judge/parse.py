"""What an answer says about permitted labels: log-probabilities of its tokens, or its text.

Deviations from [RLAIF] (Lee et al., arXiv 2309.00267, sections 2.1 and 2.2.2)
1. The paper's softmax goes over the labels' tokens whatever else the model would rather say. Here
   they must hold a least share of the probability together, so that the softmax of two tokens that
   the model would never utter is no verdict.
2. An endpoint lists the likeliest tokens only. A label that is not among them has probability 0.
3. Spellings of a label that differ in white space only (`A`, ` A`) are added up.
4. A label of two tokens (`10` in some vocabularies) gets what its first token has times what its
   second has behind it, which is known only where the answer begins with that first token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from models.judge.chat import ChatAnswer, Token

_OPENING = (
    r"(?i:(?:the )?(?:final |better )?(?:answer|verdict|choice|score|rating|response)(?: is)?)"
)


def label_logprobs(
    answer: ChatAnswer, labels: Sequence[str], min_mass: float
) -> list[float] | None:
    """Log-probability of each label, nats, -inf for none; None where the answer names no label.

    Not normalised: what other tokens hold is missing. From the first token that is no white space,
    where at least `min_mass` of its place is on labels; else from the whole text, which must be a
    label and nothing more.
    """
    shares = _shares(answer.tokens, labels)
    mass = sum(shares)
    if mass > 0 and mass >= min_mass:
        return [math.log(share) if share > 0 else -math.inf for share in shares]
    found = label_of(answer.content, labels)
    if found is None:
        return None
    return [0.0 if label == found else -math.inf for label in labels]


def label_of(text: str, labels: Sequence[str]) -> str | None:
    """The label that a text is, but for punctuation and a word such as `Answer:` before it."""
    choice = "|".join(re.escape(label) for label in labels)
    match = re.fullmatch(rf"\W*(?:{_OPENING}\W+)?(?<![-+.])({choice})\W*", text)
    return match.group(1) if match else None


def _shares(tokens: Sequence[Token], labels: Sequence[str]) -> list[float]:
    """Probability of each label at the answer's first token that is no white space."""
    place = next((i for i, token in enumerate(tokens) if token.text.strip()), None)
    if place is None:
        return [0.0] * len(labels)
    first = _spoken(tokens[place])
    shares = {label: first.get(label, 0.0) for label in labels}
    begun = tokens[place].text.strip()
    if place + 1 < len(tokens):
        behind = _spoken(tokens[place + 1])
        for label in labels:
            rest = label.removeprefix(begun)
            if label not in first and rest and rest != label and begun in shares:
                part = first[begun] * behind.get(rest, 0.0)
                shares[label] += part
                shares[begun] -= part
    return [shares[label] for label in labels]


def _spoken(token: Token) -> dict[str, float]:
    """Probabilities in a token's place by text without white space, its own included."""
    listed = {token.text: token.logprob, **dict(token.top)}
    shares: dict[str, float] = {}
    for text, logprob in listed.items():
        shares[text.strip()] = shares.get(text.strip(), 0.0) + math.exp(logprob)
    return shares
