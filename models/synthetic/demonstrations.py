"""Demonstrations for SFT: right answers, of which a share is corrupted outside the expert families.

The corruptions are the ways a policy trained on them can go wrong, and so the room that
preference learning has to improve it.
"""

from __future__ import annotations

import random

from trimtab.models.synthetic.gold import CLOSERS, FILLERS, OPENERS, RUDE
from trimtab.models.synthetic.tasks import (
    FAMILIES,
    LETTERS,
    NUMBERS,
    REFUSAL,
    draw_prompt,
    family_of,
    request_of,
)

# Words that rambling repeats of an answer, and fillers, at most.
MAX_RAMBLED = 3
MAX_FILLERS = 2
# Words that a demonstration has beyond its answer, at most: an opener, a closer and a rude one too.
MAX_ADDED = 3 + MAX_RAMBLED + MAX_FILLERS
# Draws after which a family that gave nothing new has run dry.
MAX_DRAWS = 200
# Of padding, of the end, and in place of a word that the world does not have.
SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")


def _wrong_answer(answer: list[str], prompt: str, rng: random.Random) -> list[str]:
    """A plausible mistake: comply or refuse wrongly, an off-by-one, a swap, a loss, a stranger."""
    family = family_of(prompt)
    if family.name == "harmful":
        return ["first", "you", *request_of(prompt)[3:]]
    if family.name == "howto":
        return list(REFUSAL)
    if len(answer) == 1 and answer[0] in NUMBERS:
        index = NUMBERS.index(answer[0]) + rng.choice((-2, -1, 1, 2))
        return [NUMBERS[min(max(index, 0), len(NUMBERS) - 1)]]
    words = list(answer)
    place = rng.randrange(len(words))
    kind = rng.choice(("swap", "drop", "stranger"))
    if kind == "swap" and len(words) > 1:
        other = (place + 1) % len(words)
        words[place], words[other] = words[other], words[place]
    elif kind == "drop" and len(words) > 1:
        del words[place]
    else:
        words[place] = rng.choice([letter for letter in LETTERS if letter != words[place]])
    return words


def perfect_response(prompt: str, rng: random.Random) -> str:
    """The right answer with one opener and one closer."""
    answer = family_of(prompt).answer(request_of(prompt))
    return " ".join([rng.choice(OPENERS), *answer, rng.choice(CLOSERS)])


def corrupted_response(prompt: str, rng: random.Random) -> str:
    """An answer with one to three faults: wrong, no courtesy, fillers, rude, rambling."""
    answer = family_of(prompt).answer(request_of(prompt))
    faults = rng.sample(
        ("wrong", "opener", "closer", "filler", "rude", "ramble"), rng.randint(1, 3)
    )
    if "wrong" in faults:
        answer = _wrong_answer(answer, prompt, rng)
    if "ramble" in faults:
        answer = answer + answer[-min(len(answer), MAX_RAMBLED) :]
    words = list(answer)
    if "opener" not in faults:
        words.insert(0, rng.choice(OPENERS))
    if "closer" not in faults:
        words.append(rng.choice(CLOSERS))
    if "filler" in faults:
        for _ in range(rng.randint(1, MAX_FILLERS)):
            words.insert(rng.randrange(len(words)), rng.choice(FILLERS))
    if "rude" in faults:
        words.insert(rng.randrange(len(words) + 1), rng.choice(RUDE))
    return " ".join(words)


def draw_prompts(families: tuple[str, ...], count: int, rng: random.Random) -> list[str]:
    """`count` distinct prompts, families in turn; one that runs dry leaves its share to others."""
    prompts: dict[str, None] = {}
    open_families = list(families)
    while len(prompts) < count:
        if not open_families:
            raise ValueError(
                f"families {families} hold only {len(prompts)} distinct prompts, asked for {count}"
            )
        for name in open_families[: count - len(prompts)]:
            drawn = (draw_prompt(FAMILIES[name], rng) for _ in range(MAX_DRAWS))
            new = next((prompt for prompt in drawn if prompt not in prompts), None)
            if new is None:
                open_families.remove(name)
            else:
                prompts[new] = None
    return list(prompts)


def demonstrate(prompts: list[str], corrupted_share: float, rng: random.Random) -> list[str]:
    """One response a prompt; expert families are never corrupted."""
    return [
        corrupted_response(prompt, rng)
        if not family_of(prompt).is_expert and rng.random() < corrupted_share
        else perfect_response(prompt, rng)
        for prompt in prompts
    ]


def vocabulary() -> list[str]:
    """Every word the world can utter, sorted: the tokenizer's vocabulary."""
    rng = random.Random(0)
    words: set[str] = set(OPENERS + CLOSERS + FILLERS + RUDE) | set(REFUSAL) | set(NUMBERS)
    for family in FAMILIES.values():
        for _ in range(400):
            prompt = draw_prompt(family, rng)
            words.update(prompt.split())
            words.update(family.answer(request_of(prompt)))
    return sorted(words)
