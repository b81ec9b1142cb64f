"""A judge: a language model that compares two responses, or rates one.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267.
[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.

A question has up to three requests. With chain_of_thought the judge first writes its thoughts,
and the answer is asked for after them ([RLAIF] section 2.1.2). Then it answers, and the options'
probabilities are read from the answer's tokens. An answer that cannot be parsed is asked for once
more, with the required form. Samples that can be parsed are averaged (self-consistency). With a
constitution, one of its principles decides a comparison, drawn at random for each pair ([CAI]
section 4.1).

Deviations from [RLAIF]
1. The options are A and B instead of 1 and 2, which could be taken for ratings.
2. A comparison of which no answer can be parsed in one order counts as 1/2 in that order.
3. A response of which no answer can be parsed gets the mean of all ratings.

Deviations from [CAI]
1. The principle stands after the rubric, which lists further criteria, and after worked examples;
   the paper shows the principle alone.
2. Every pair is shown in both orders, as in [RLAIF]; the paper shows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.models.config.judge import JudgeConfig
from trimtab.models.functional.verdicts import expected_score, option_probabilities
from trimtab.models.judge.batch import CachedChatModel, OnAnswer
from trimtab.models.judge.chat import ChatAnswer, ChatRequest, Usage
from trimtab.models.judge.constitutions import Constitution
from trimtab.models.judge.parse import option_logprobs
from trimtab.models.judge.prompts import OPTIONS, Kind, PromptTemplate
from trimtab.models.judge.rubrics import load_rubric
from trimtab.models.nets import counts

# The texts to judge, by name and in order, and the principle that decides.
_Case = tuple[dict[str, str], str | None]


@dataclass(frozen=True)
class Comparison:
    """Two responses to the last turn of a dialogue."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class PairVerdict:
    """Probabilities that `first` is better: as response A, and as response B.

    num_unparsed: answers that could not be parsed, of two times num_samples.
    """

    shown_first: float
    shown_second: float
    num_unparsed: int
    usage: Usage


@dataclass(frozen=True)
class ScoreVerdict:
    """The expected rating: `score` from 1 to 10, `normalised` from -1 to 1."""

    score: float
    normalised: float
    num_unparsed: int
    usage: Usage


@dataclass(frozen=True)
class OptionDistribution:
    """The mean distribution (L,) over options of the samples that could be parsed, float64."""

    probabilities: Tensor
    num_unparsed: int
    usage: Usage

    @classmethod
    def mean(
        cls, logprobs: Sequence[list[float] | None], usages: Sequence[Usage], num_options: int
    ) -> OptionDistribution:
        """From each sample's log-probabilities of the options; None for one not parsed.

        Even if no sample could be parsed.
        """
        parsed = [values for values in logprobs if values is not None]
        probabilities = torch.full(
            (num_options,), 1 / num_options, dtype=torch.float64, device="cpu"
        )
        if parsed:
            rows = torch.tensor(parsed, dtype=torch.float64, device="cpu")
            probabilities = option_probabilities(rows).mean(0)
        return cls(probabilities, len(logprobs) - len(parsed), sum(usages, Usage()))


@dataclass(frozen=True)
class Judge:
    """A chat model and how it is asked. `seed` decides which principles are drawn."""

    chat: CachedChatModel
    config: JudgeConfig
    constitution: Constitution | None = None
    seed: int = 0

    def compare(
        self, comparisons: Sequence[Comparison], on_answer: OnAnswer = lambda: None
    ) -> list[PairVerdict]:
        """Verdicts on pairs, each asked in both orders; `on_answer` as in `CachedChatModel.ask`.

        Raises StoppedError, and what the chat model raises.
        """
        cases = []
        for pair in comparisons:
            principle = self._principle(pair)
            for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
                shown = {"dialogue": pair.prompt, "response A": one, "response B": other}
                cases.append((shown, principle))
        template = self._template("compare", self.config.num_examples)
        distributions = self._distributions(template, cases, on_answer)
        return [
            PairVerdict(
                float(as_a.probabilities[0]),
                float(as_b.probabilities[1]),
                as_a.num_unparsed + as_b.num_unparsed,
                as_a.usage + as_b.usage,
            )
            for as_a, as_b in zip(distributions[::2], distributions[1::2], strict=True)
        ]

    def score(self, prompts: Sequence[str], responses: Sequence[str]) -> list[ScoreVerdict]:
        """Ratings of single responses [RLAIF section 2.2.2]; raises as `compare` does."""
        cases: list[_Case] = [
            ({"dialogue": prompt, "response": response}, None)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        distributions = self._distributions(self._template("score", 0), cases)
        if not distributions:
            return []
        probabilities = torch.stack([rating.probabilities for rating in distributions])
        scores, normalised = (values.tolist() for values in expected_score(probabilities))
        return [
            ScoreVerdict(score, position, rating.num_unparsed, rating.usage)
            for rating, score, position in zip(distributions, scores, normalised, strict=True)
        ]

    def is_parsed(self, verdict: ScoreVerdict) -> bool:
        """Whether at least one of the verdict's samples could be parsed."""
        return verdict.num_unparsed < self.config.num_samples

    @property
    def answers_per_pair(self) -> int:
        """How often `compare` calls `on_answer` for a pair; repairs do not count."""
        return counts.NUM_ORDERS * counts.answers_per_question(self.config)

    def _principle(self, pair: Comparison) -> str | None:
        """The principle that decides a pair: the same in both orders."""
        if self.constitution is None:
            return None
        texts = sorted((pair.first, pair.second))
        return self.constitution.draw(self.seed, "compare", pair.prompt, *texts)

    def _template(self, kind: Kind, num_examples: int) -> PromptTemplate:
        config = self.config
        return PromptTemplate(kind, load_rubric(config.rubric), num_examples, config.max_characters)

    def _distributions(
        self,
        template: PromptTemplate,
        cases: Sequence[_Case],
        on_answer: OnAnswer = lambda: None,
    ) -> list[OptionDistribution]:
        """One distribution per case, of num_samples requests each."""
        num_samples, options = self.config.num_samples, OPTIONS[template.kind]
        requests = [
            self._first_request(template, case, number)
            for case in cases
            for number in range(num_samples)
        ]
        usages = [Usage()] * len(requests)
        if self.config.chain_of_thought:
            thoughts = self.chat.ask(requests, on_answer)
            requests = [
                request.followed_by(*template.follow_up(thought.content, "answer"))
                for request, thought in zip(requests, thoughts, strict=True)
            ]
            usages = _add_usages(usages, thoughts)
        requests = [self._option_request(request, options) for request in requests]
        answers = self.chat.ask(requests, on_answer)
        usages = _add_usages(usages, answers)
        logprobs = [self._option_logprobs(answer, options) for answer in answers]
        # An answer that cannot be parsed is asked for once more.
        bad = [index for index, values in enumerate(logprobs) if values is None]
        repairs = [
            requests[index].followed_by(
                *template.follow_up(answers[index].content, "repair"),
                max_tokens=self.config.max_answer_tokens,
            )
            for index in bad
        ]
        for index, answer in zip(bad, self.chat.ask(repairs), strict=True):
            logprobs[index] = self._option_logprobs(answer, options)
            usages[index] += answer.usage or Usage()
        samples = [slice(at, at + num_samples) for at in range(0, len(logprobs), num_samples)]
        return [OptionDistribution.mean(logprobs[s], usages[s], len(options)) for s in samples]

    def _first_request(self, template: PromptTemplate, case: _Case, number: int) -> ChatRequest:
        config = self.config
        shown, principle = case
        return ChatRequest(
            template.first_question(shown, config.chain_of_thought, principle),
            max_tokens=config.max_thought_tokens,
            temperature=config.temperature,
            # A single sample needs no seed, and some endpoints know none.
            seed=number if config.num_samples > 1 else None,
        )

    def _option_request(self, request: ChatRequest, options: Sequence[str]) -> ChatRequest:
        """Ask for an option. With top_logprobs only its own tokens are needed, greedily."""
        config = self.config
        tokens = counts.verdict_tokens(config, max(map(len, options)))
        request = replace(request, max_tokens=tokens)
        if not config.top_logprobs:
            return request
        return replace(request, top_logprobs=config.top_logprobs, temperature=0.0, seed=None)

    def _option_logprobs(self, answer: ChatAnswer, options: Sequence[str]) -> list[float] | None:
        return option_logprobs(answer, options, self.config.min_mass)


def _add_usages(usages: Sequence[Usage], answers: Sequence[ChatAnswer]) -> list[Usage]:
    return [
        usage + (answer.usage or Usage()) for usage, answer in zip(usages, answers, strict=True)
    ]
