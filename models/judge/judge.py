"""A judge: which of two responses is better, and how good one is by itself.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267.
[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.

Each question is put so: thoughts first where they are wanted (section 2.1.2: they are decoded, and
the answer is asked for behind them), then the answer, whose probabilities are read from its tokens;
where it is not understood, once more with the form it must have. Several samples are averaged
(self-consistency), those that were not understood left out. With a constitution a comparison is
decided by one of its principles, drawn at random for each pair ([CAI] section 4.1).

Deviations from [RLAIF]
1. The labels are A and B instead of 1 and 2, which a rating could be mistaken for.
2. A comparison of which nothing was understood in one order counts as 1/2 in that order.
3. A single response of which nothing was understood is rated in the middle of the scale.

Deviations from [CAI]
1. The principle stands behind the rubric, which says what else to look at, and worked examples;
   the paper shows the principle alone.
2. Labels are A and B in both orders of presentation, as in [RLAIF]; the paper asks in one.

What the samples of one question come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models import counts
from models.config.judge import JudgeConfig
from models.functional.verdicts import expected_score, label_probabilities
from models.judge.asking import Asker
from models.judge.chat import ChatAnswer, ChatRequest, Usage
from models.judge.constitutions import Constitution
from models.judge.parse import label_logprobs
from models.judge.prompts import LABELS, Interview, Kind
from models.judge.rubrics import load_rubric

OnAnswer = Callable[[], None]
# What is judged, by name and in order, and the principle that decides.
_Case = tuple[dict[str, str], str | None]


@dataclass(frozen=True)
class Comparison:
    """Two responses to the last turn of a dialogue."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class PairVerdict:
    """Probabilities that `first` is better, as it was shown before `second`, and behind it.

    num_unparsed: answers that were not understood, of twice as many as samples.
    """

    shown_first: float
    shown_second: float
    num_unparsed: int
    usage: Usage


@dataclass(frozen=True)
class ScoreVerdict:
    """The expected rating, 1 to 10, and its place in [-1, 1]."""

    score: float
    normalised: float
    num_unparsed: int
    usage: Usage


@dataclass(frozen=True)
class Judge:
    """A chat model with a way of asking it; `seed` is that of drawing principles."""

    asker: Asker
    config: JudgeConfig
    constitution: Constitution | None = None
    seed: int = 0

    def compare(
        self, comparisons: Sequence[Comparison], on_answer: OnAnswer = lambda: None
    ) -> list[PairVerdict]:
        """Verdicts on pairs, each asked in both orders; `on_answer` as in `Asker.ask`.

        Raises StoppedError, and what the chat model raises.
        """
        cases = []
        for pair in comparisons:
            principle = self._principle(pair)
            for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
                shown = {"dialogue": pair.prompt, "response A": one, "response B": other}
                cases.append((shown, principle))
        interview = self._interview("compare", self.config.num_examples)
        found = self._conduct(interview, cases, on_answer)
        return [
            PairVerdict(
                float(before.probabilities[0]),
                float(behind.probabilities[1]),
                before.num_unparsed + behind.num_unparsed,
                before.usage + behind.usage,
            )
            for before, behind in zip(found[::2], found[1::2], strict=True)
        ]

    def score(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        on_answer: OnAnswer = lambda: None,
    ) -> list[ScoreVerdict]:
        """Ratings of responses one by one [RLAIF section 2.2.2]; raises as `compare` does."""
        cases: list[_Case] = [
            ({"dialogue": prompt, "response": response}, None)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        found = self._conduct(self._interview("score", 0), cases, on_answer)
        if not found:
            return []
        scores, normalised = expected_score(torch.stack([each.probabilities for each in found]))
        return [
            ScoreVerdict(score, place, each.num_unparsed, each.usage)
            for each, score, place in zip(found, scores.tolist(), normalised.tolist(), strict=True)
        ]

    def has_understood(self, verdict: ScoreVerdict) -> bool:
        """Whether any of the judge's answers was understood."""
        return verdict.num_unparsed < self.config.num_samples

    @property
    def answers_per_pair(self) -> int:
        """How often `on_answer` is called for a pair, further tries left out."""
        return counts.NUM_ORDERS * counts.answers_per_question(self.config)

    def _principle(self, pair: Comparison) -> str | None:
        """What decides a pair, in both orders and whichever response is named first."""
        if self.constitution is None:
            return None
        texts = sorted((pair.first, pair.second))
        return self.constitution.draw(self.seed, "compare", pair.prompt, *texts)

    def _interview(self, kind: Kind, num_examples: int) -> Interview:
        config = self.config
        return Interview(kind, load_rubric(config.rubric), num_examples, config.max_characters)

    def _conduct(
        self,
        interview: Interview,
        cases: Sequence[_Case],
        on_answer: OnAnswer,
    ) -> list[Finding]:
        """What the judge says of each: all samples of one after those of another."""
        num_samples, labels = self.config.num_samples, LABELS[interview.kind]
        requests = [
            self._first_request(interview, case, number)
            for case in cases
            for number in range(num_samples)
        ]
        usages = [Usage()] * len(requests)
        if self.config.chain_of_thought:
            thoughts = self.asker.ask(requests, on_answer)
            requests = [
                request.followed_by(*interview.after_thoughts(found.content))
                for request, found in zip(requests, thoughts, strict=True)
            ]
            usages = _added(usages, thoughts)
        requests = [self._for_label(request, labels) for request in requests]
        answers = self.asker.ask(requests, on_answer)
        usages = _added(usages, answers)
        answers, usages = self._repaired(interview, requests, answers, usages, labels)
        found = [label_logprobs(each, labels, self.config.min_mass) for each in answers]
        return [
            Finding.of(found[at : at + num_samples], usages[at : at + num_samples], len(labels))
            for at in range(0, len(found), num_samples)
        ]

    def _first_request(self, interview: Interview, case: _Case, number: int) -> ChatRequest:
        config = self.config
        shown, principle = case
        return ChatRequest(
            interview.opening(shown, config.chain_of_thought, principle),
            max_tokens=config.max_thought_tokens,
            temperature=config.temperature,
            # Where one sample is taken, none is sent: some endpoints know no seeds.
            seed=number if config.num_samples > 1 else None,
        )

    def _for_label(self, request: ChatRequest, labels: Sequence[str]) -> ChatRequest:
        """Ask for a label: where probabilities are read, for its tokens only and without chance."""
        config = self.config
        tokens = counts.verdict_tokens(config, max(map(len, labels)))
        if not config.top_logprobs:
            return replace(request, max_tokens=tokens)
        return replace(
            request,
            max_tokens=tokens,
            top_logprobs=config.top_logprobs,
            temperature=0.0,
            seed=None,
        )

    def _repaired(
        self,
        interview: Interview,
        requests: Sequence[ChatRequest],
        answers: Sequence[ChatAnswer],
        usages: Sequence[Usage],
        labels: Sequence[str],
    ) -> tuple[list[ChatAnswer], list[Usage]]:
        """The answers, with another in place of each that was not understood, and their tokens."""
        bad = [
            at
            for at, answer in enumerate(answers)
            if label_logprobs(answer, labels, self.config.min_mass) is None
        ]
        again = self.asker.ask(
            [
                requests[at].followed_by(
                    *interview.after_nonsense(answers[at].content),
                    max_tokens=self.config.max_answer_tokens,
                )
                for at in bad
            ]
        )
        answers, usages = list(answers), list(usages)
        for at, answer in zip(bad, again, strict=True):
            answers[at] = answer
            usages[at] += answer.usage or Usage()
        return answers, usages


def _added(usages: Sequence[Usage], answers: Sequence[ChatAnswer]) -> list[Usage]:
    return [
        usage + (answer.usage or Usage()) for usage, answer in zip(usages, answers, strict=True)
    ]


@dataclass(frozen=True)
class Finding:
    """The mean distribution (L,) of the samples that were understood, float64."""

    probabilities: Tensor
    num_unparsed: int
    usage: Usage

    @classmethod
    def of(
        cls, logprobs: Sequence[list[float] | None], usages: Sequence[Usage], num_labels: int
    ) -> Finding:
        """Of each sample, its labels' log-probabilities; None for one not understood."""
        understood = [each for each in logprobs if each is not None]
        if understood:
            rows = torch.tensor(understood, dtype=torch.float64, device="cpu")
            mean = label_probabilities(rows).mean(0)
        else:
            even = 1 / num_labels
            mean = torch.full((num_labels,), even, dtype=torch.float64, device="cpu")
        return cls(mean, len(logprobs) - len(understood), sum(usages, Usage()))
