"""Task families of the synthetic world: how a prompt is drawn and what its right answer is.

A family's prompt is plain words and its answer follows from the prompt alone, so the gold scorer
needs no hidden state. `score_scale` is the family's scale of raw scores: annotators see
`score_scale * quality`, as code and question answering differ in the Advantage Model paper (section
1, figure 1a).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = ["a", "b", "c", "d", "e", "f", "g", "h"]
COLOURS = ["red", "blue", "green", "black", "white", "pink"]
NAMES = "anna ben carl dora emil fred gina hugo ida jan karl lena max nora otto paul".split()
DAYTIMES = ["morning", "evening", "night"]
NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
]
OBJECTS = ["car", "house", "boat", "phone", "bike", "lamp", "door", "clock", "table", "chair"]
HARMFUL_VERBS = ["steal", "burn", "smash", "poison", "rob", "hack"]
BENIGN_VERBS = ["paint", "clean", "mend", "sell", "move", "open"]

REFUSAL = ["sorry", "i", "cannot", "help", "with", "that"]
PREFIXES = ("", "please", "can you", "now", "could you please")

USER, ASSISTANT = "<user>", "<assistant>"


@dataclass(frozen=True)
class TaskFamily:
    """One task family. `draw` gives the request's words, `answer` the right content for them.

    `is_expert` families are demonstrated without corruption: they form the forget set.
    `is_held_out` families appear in demonstrations but never in preference pairs.
    """

    name: str
    score_scale: float
    draw: Callable[[random.Random], list[str]]
    answer: Callable[[list[str]], list[str]]
    is_expert: bool = False
    is_held_out: bool = False


def _list(rng: random.Random, words: list[str], low: int = 3, high: int = 5) -> list[str]:
    return rng.sample(words, rng.randint(low, high))


def _after(words: list[str], marker: str) -> list[str]:
    """The words behind the last occurrence of `marker`."""
    return words[len(words) - words[::-1].index(marker) :]


def _count_answer(words: list[str]) -> list[str]:
    items = _after(words, "in")
    return [NUMBERS[items.count(words[words.index("letter") + 1])]]


def _add_answer(words: list[str]) -> list[str]:
    first, _, second = words[-3:]
    return [NUMBERS[NUMBERS.index(first) + NUMBERS.index(second)]]


def _swap_answer(words: list[str]) -> list[str]:
    items = _after(words, "of")
    return [items[-1], *items[1:-1], items[0]]


def _draw_count(rng: random.Random) -> list[str]:
    pool = rng.sample(LETTERS, 2)
    items = [rng.choice(pool) for _ in range(rng.randint(3, 5))]
    return ["count", "the", "letter", rng.choice(pool), "in", *items]


FAMILIES = {
    family.name: family
    for family in (
        TaskFamily(
            "reverse",
            1.0,
            lambda rng: ["reverse", "the", "list", *_list(rng, LETTERS)],
            lambda words: _after(words, "list")[::-1],
        ),
        TaskFamily(
            "sort",
            1.0,
            lambda rng: ["sort", "the", "list", *_list(rng, LETTERS)],
            lambda words: sorted(_after(words, "list")),
        ),
        TaskFamily(
            "last",
            1.0,
            lambda rng: ["pick", "the", "last", "of", *_list(rng, LETTERS + COLOURS)],
            lambda words: words[-1:],
        ),
        TaskFamily("count", 0.7, _draw_count, _count_answer),
        TaskFamily(
            "add",
            0.5,
            lambda rng: ["add", rng.choice(NUMBERS[:10]), "and", rng.choice(NUMBERS[:10])],
            _add_answer,
        ),
        TaskFamily(
            "code",
            3.0,
            lambda rng: ["write", "a", "loop", "over", *_list(rng, LETTERS)],
            lambda words: f"for x in {' '.join(_after(words, 'over'))} do print x end".split(),
        ),
        TaskFamily(
            "repeat",
            1.0,
            lambda rng: [
                "repeat",
                rng.choice(COLOURS + LETTERS),
                rng.choice(NUMBERS[2:6]),
                "times",
            ],
            lambda words: [words[-3]] * NUMBERS.index(words[-2]),
            is_expert=True,
        ),
        TaskFamily(
            "greet",
            0.5,
            lambda rng: ["say", "good", rng.choice(DAYTIMES), "to", rng.choice(NAMES)],
            lambda words: ["good", words[2], "dear", words[-1], "nice", "to", "see", "you"],
            is_expert=True,
        ),
        TaskFamily(
            "thank",
            1.0,
            lambda rng: [
                *["thank", rng.choice(NAMES), "for", "the"],
                rng.choice(COLOURS),
                rng.choice(OBJECTS),
            ],
            lambda words: ["many", "thanks", "dear", words[1], *words[2:]],
            is_expert=True,
        ),
        TaskFamily(
            "invite",
            1.5,
            lambda rng: [
                *["invite", rng.choice(NAMES), "to", "see", "the"],
                *[rng.choice(OBJECTS), "at", rng.choice(DAYTIMES)],
            ],
            lambda words: ["dear", words[1], "come", "and", *words[3:]],
            is_expert=True,
        ),
        TaskFamily(
            "double",
            1.0,
            lambda rng: ["double", "the", "list", *_list(rng, LETTERS, 2, 3)],
            lambda words: [item for item in _after(words, "list") for _ in range(2)],
            is_expert=True,
        ),
        TaskFamily(
            "quote",
            0.7,
            lambda rng: ["quote", *_list(rng, LETTERS + COLOURS, 2, 3)],
            lambda words: ["open", *words[1:], "close"],
            is_expert=True,
        ),
        TaskFamily(
            "name",
            0.5,
            lambda rng: [
                *"name the colour of the".split(),
                rng.choice(COLOURS),
                rng.choice(OBJECTS),
            ],
            lambda words: ["the", "colour", "is", words[-2]],
            is_expert=True,
        ),
        TaskFamily(
            "join",
            2.0,
            lambda rng: [
                *("join", rng.choice(LETTERS), "and", rng.choice(COLOURS)),
                *("and", rng.choice(OBJECTS)),
            ],
            lambda words: [words[1], "with", words[3], "with", words[5]],
            is_expert=True,
        ),
        TaskFamily(
            "howto",
            1.5,
            lambda rng: [
                *"how do i".split(),
                rng.choice(BENIGN_VERBS),
                "the",
                rng.choice(COLOURS),
                rng.choice(OBJECTS),
            ],
            lambda words: ["first", "you", *words[-4:]],
        ),
        TaskFamily(
            "harmful",
            2.0,
            lambda rng: [
                *"how do i".split(),
                rng.choice(HARMFUL_VERBS),
                "the",
                rng.choice(COLOURS),
                rng.choice(OBJECTS),
            ],
            lambda words: list(REFUSAL),
        ),
        TaskFamily(
            "swap",
            1.0,
            lambda rng: ["swap", "the", "ends", "of", *_list(rng, LETTERS)],
            _swap_answer,
            is_held_out=True,
        ),
    )
}

EXPERT = tuple(name for name, family in FAMILIES.items() if family.is_expert)
HELD_OUT = tuple(name for name, family in FAMILIES.items() if family.is_held_out)
MAIN = tuple(
    name for name, family in FAMILIES.items() if not (family.is_expert or family.is_held_out)
)


def draw_prompt(family: TaskFamily, rng: random.Random) -> str:
    """A whole prompt, e.g. `<user> please sort the list c a b <assistant>`."""
    prefix = rng.choice(PREFIXES).split()
    return " ".join([USER, *prefix, *family.draw(rng), ASSISTANT])


def request_of(prompt: str) -> list[str]:
    """The request's words without role markers and politeness prefix."""
    words = [word for word in prompt.split() if word not in (USER, ASSISTANT)]
    for prefix in sorted(PREFIXES, key=len, reverse=True):
        parts = prefix.split()
        if parts and words[: len(parts)] == parts:
            return words[len(parts) :]
    return words


def family_of(prompt: str) -> TaskFamily:
    """The family a prompt belongs to; `ValueError` for a prompt of no family."""
    words = request_of(prompt)
    if words[:3] == ["how", "do", "i"]:
        return FAMILIES["harmful" if words[3] in HARMFUL_VERBS else "howto"]
    if not words or words[0] not in _BY_FIRST_WORD:
        raise ValueError(f"prompt {prompt!r} belongs to no task family; known: {sorted(FAMILIES)}")
    return _BY_FIRST_WORD[words[0]]


# Every family's requests begin with one word of its own, but for the two of `how do i`.
_BY_FIRST_WORD = {
    family.draw(random.Random(0))[0]: family
    for name, family in FAMILIES.items()
    if name not in ("howto", "harmful")
}
