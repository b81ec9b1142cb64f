"""The synthetic world's gold scorer as a chat model that is right with a given probability.

It reads the judged texts back from the messages that any judge gets, and answers in the same form,
with token probabilities. So the effect of a judge's accuracy on a whole run can be measured.

A comparison is right with probability `accuracy`. The draw depends on seed and pair and not on the
order of presentation, so there is no position bias and both orders agree. The probability of the
verdict is the accuracy, or 1/2 if gold scores both responses alike.

A single response is rated 1 to 10 by its quality or, with probability 1 - sqrt(2 accuracy - 1), at
random. Two ratings then order two responses rightly with probability `accuracy` if their qualities
are close, and a little more often if they are far apart.

With probability 2 accuracy - 1 a draft becomes the right answer, if that is better. Otherwise the
draft stays, or becomes a faulty answer if that is worse, equally often. So at accuracy 1 every step
improves the draft, and at 1/2 none does. The critique announces the revision.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator

from trimtab.models.judge.chat import ChatAnswer, ChatRequest, Token, Usage
from trimtab.models.judge.prompts import read_blocks
from trimtab.models.judge.rubrics import load_questions
from trimtab.models.synthetic.demonstrations import corrupted_response, perfect_response
from trimtab.models.synthetic.gold import quality


class GoldModel:
    """Answers from the rules of the synthetic world. It costs nothing."""

    def __init__(self, accuracy: float, seed: int) -> None:
        self.identity = f"gold {accuracy} {seed}"
        self._accuracy, self._seed = accuracy, seed

    def answers(
        self, requests: Iterable[tuple[str, ChatRequest]]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """As in `ChatModel`; raises ValueError for prompts that are not of the synthetic world."""
        for name, request in requests:
            yield name, self._answer(request)

    def _answer(self, request: ChatRequest) -> ChatAnswer:
        blocks = read_blocks(request.messages)
        if "draft" in blocks:
            return ChatAnswer(self._revise(request, blocks["dialogue"], blocks["draft"]), Usage())
        if "response A" in blocks:
            shares = self._compare(blocks["dialogue"], blocks["response A"], blocks["response B"])
        else:
            shares = {self._rate(blocks["dialogue"], blocks["response"]): 1.0}
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        top = tuple((option, math.log(share)) for option, share in ordered if share > 0)
        tokens = (Token(*top[0], top),) if request.top_logprobs else ()
        return ChatAnswer(top[0][0], Usage(), tokens)

    def _compare(self, prompt: str, first: str, second: str) -> dict[str, float]:
        """Probabilities of A and B."""
        gap = quality(prompt, first) - quality(prompt, second)
        if gap == 0:
            return {"A": 0.5, "B": 0.5}
        is_right = self._draw(prompt, *sorted((first, second))).random() < self._accuracy
        of_first = self._accuracy if (gap > 0) == is_right else 1 - self._accuracy
        return {"A": of_first, "B": 1 - of_first}

    def _rate(self, prompt: str, response: str) -> str:
        draw = self._draw(prompt, response)
        value = quality(prompt, response)
        if draw.random() < 1 - math.sqrt(2 * self._accuracy - 1):
            value = draw.random()
        return str(1 + round(9 * value))

    def _revise(self, request: ChatRequest, prompt: str, draft: str) -> str:
        """The critique or the revision of a draft, as the last message asks."""
        shown = next(m.content for m in request.messages if "[draft]" in m.content)
        principle = shown.rsplit("\n\n", 2)[1]
        draw = self._draw(prompt, draft, principle)
        chance = draw.random()
        right, faulty = perfect_response(prompt, draw), corrupted_response(prompt, draw)
        before = quality(prompt, draft)
        revision = draft
        if chance < 2 * self._accuracy - 1:
            revision = right if quality(prompt, right) > before else draft
        elif chance < self._accuracy:
            revision = faulty if quality(prompt, faulty) < before else draft
        if request.messages[-1].content.endswith(load_questions()["revise answer"]):
            return revision
        return "Nothing has to change." if revision == draft else f"It would rather be: {revision}"

    def _draw(self, *texts: str) -> random.Random:
        """Random numbers that depend on the seed and the texts alone."""
        content = "\0".join((str(self._seed), *texts))
        return random.Random(hashlib.sha256(content.encode()).digest())
