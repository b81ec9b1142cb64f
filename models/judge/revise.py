"""A chat model revises responses by principles, one drawn at random for each step.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073, section 3.1.

A step shows the dialogue and the draft and asks for a critique by the principle. Then it asks for a
revision, which is the next step's draft. Without critiques ([CAI] section 3.5) it asks for the
revision at once.

Deviations
1. The requests have no worked examples, because a chat model follows instructions.
2. A revision that is empty, or cut off at its limit, is not used: the draft stays.
3. In the paper one model answers and revises; here any model may revise another's answers.
4. The paper samples critiques and revisions; here they are greedy by default (temperature 0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.models.config.policy import ReviseConfig
from trimtab.models.judge.batch import CachedChatModel, OnAnswer
from trimtab.models.judge.chat import ChatAnswer, ChatRequest, Message, Usage
from trimtab.models.judge.constitutions import Constitution
from trimtab.models.judge.prompts import QUOTE, assistant_message, principle_part, quote_blocks
from trimtab.models.judge.rubrics import load_questions

# "Here is the revised response:", "**Revision:**" and their like.
_HEADING = re.compile(
    r"[*#\[\s]*(?:here(?:'s| is) )?(?:(?:the|my|a) )?(?:(?:new|revised|rewritten|final) )?"
    r"(?:response|draft|version|answer|revision)[*\]]*\s*(?::[*\s]*|\n\s*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Revision:
    """One revision of a draft. If `is_usable` is false, `revision` is the draft.

    critique: empty if none was asked for.
    """

    principle: str
    critique: str
    revision: str
    is_usable: bool
    usage: Usage


@dataclass(frozen=True)
class Reviser:
    """A chat model and the principles that it revises by."""

    chat: CachedChatModel
    config: ReviseConfig
    constitution: Constitution

    def revise(
        self,
        prompts: Sequence[str],
        drafts: Sequence[str],
        number: int,
        on_answer: OnAnswer = lambda: None,
    ) -> list[Revision]:
        """Step `number` of each draft; `on_answer` is called for each critique and revision.

        Raises StoppedError, and what the chat model raises.
        """
        config, questions = self.config, load_questions()
        principles = [self.constitution.draw(config.seed, str(number), p) for p in prompts]
        usages, critiques = [Usage()] * len(prompts), [""] * len(prompts)
        first = "revise critique" if config.critique else "revise answer"
        requests = [
            ChatRequest(
                (self._message(prompt, draft, principle, questions[first]),),
                config.max_critique_tokens if config.critique else config.max_revision_tokens,
                config.judge.temperature,
            )
            for prompt, draft, principle in zip(prompts, drafts, principles, strict=True)
        ]
        if config.critique:
            answers = self.chat.ask(requests, on_answer)
            critiques = [answer.content.strip() for answer in answers]
            usages = [answer.usage or Usage() for answer in answers]
            requests = [
                request.followed_by(
                    assistant_message(critique),
                    Message("user", questions["revise answer"]),
                    max_tokens=config.max_revision_tokens,
                )
                for request, critique in zip(requests, critiques, strict=True)
            ]
        answers = self.chat.ask(requests, on_answer)
        columns = zip(principles, critiques, drafts, answers, usages, strict=True)
        return [_step(*column) for column in columns]

    @property
    def answers_per_step(self) -> int:
        """How often `revise` calls `on_answer` for a draft."""
        return 2 if self.config.critique else 1

    def _message(self, prompt: str, draft: str, principle: str, question: str) -> Message:
        blocks = quote_blocks(
            {"dialogue": prompt, "draft": draft}, self.config.judge.max_characters
        )
        text = "\n\n".join(
            [load_questions()["revise"], blocks, *principle_part(principle), question]
        )
        return Message("user", text)


def _step(principle: str, critique: str, draft: str, answer: ChatAnswer, usage: Usage) -> Revision:
    revision, usage = revision_of(answer), usage + (answer.usage or Usage())
    if revision is None:
        return Revision(principle, critique, draft, False, usage)
    # Some models begin every response with a space.
    space = draft[: len(draft) - len(draft.lstrip())]
    return Revision(principle, critique, space + revision, True, usage)


def revision_of(answer: ChatAnswer) -> str | None:
    """The new response in an answer; None if it is empty, or was cut off.

    A heading before it is removed, and so is the quotation mark of the prompt if all lines begin
    with it.
    """
    if answer.finish_reason == "length":
        return None
    text = answer.content.strip()
    heading = _HEADING.match(text)
    lines = text[heading.end() if heading else 0 :].splitlines()
    if all(line.startswith(QUOTE.strip()) for line in lines):
        lines = [line.removeprefix(QUOTE.strip()).removeprefix(" ") for line in lines]
    return "\n".join(lines).strip() or None
