"""One or several scorers on loose texts: the mean of their scores less a multiple of the spread.

The spread is about each member's mean over known answers, never over the batch: a score is the same
whatever else is scored with it. What a trainer left behind a text is taken off first: padding, and
end tokens but the one at which the scorer is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor

from trimtab.models.functional.combination import ensemble_scores, member_spread
from trimtab.models.reporting.score_token import MARK
from trimtab.models.reward_server.formats import RequestError, Scored, read_input
from trimtab.models.training.external_scorer import Dialogue, ExternalScorer

ENSEMBLE = "`trimtab export RUN ensemble`"


class Text(NamedTuple):
    """A dialogue as every member reads it: what it is to that member, and its tokens."""

    members: tuple[tuple[Dialogue, Mapping[str, list[int]]], ...]

    @property
    def num_tokens(self) -> int:
        """Those of the member that makes most of it."""
        return max(len(encoded["input_ids"]) for _, encoded in self.members)


class Member:
    """A scorer, and what it takes off the end of a text.

    stripped: further texts that a trainer leaves there, such as its own tokenizer's end token.
    """

    def __init__(self, scorer: ExternalScorer, stripped: Sequence[str] = ()) -> None:
        tokenizer = scorer.tokenizer
        self.scorer, self._end = scorer, str(tokenizer.eos_token or "")
        endings = {self._end, str(tokenizer.pad_token or ""), *stripped} - {""}
        self._endings = sorted(endings, key=len, reverse=True)

    def read(self, dialogue: Dialogue) -> tuple[Dialogue, Mapping[str, list[int]]]:
        """The dialogue without what does not belong to it, and its tokens.

        Raises RequestError where the chat template refuses it, or it has no tokens.
        """
        cleaned = self.clean(dialogue)
        try:
            encoded = self.scorer.encode(cleaned)
        except (TemplateError, ValueError) as error:
            raise RequestError(f"the model's chat template refuses the messages: {error}") from None
        if not encoded["input_ids"]:
            raise RequestError("found a text without tokens; allowed: a text that is not empty")
        return cleaned, encoded

    def clean(self, dialogue: Dialogue) -> Dialogue:
        """The dialogue without padding and end tokens at its end.

        A whole text for somebody else's model keeps one end token, where it has any: the score may
        be read there. A prompt that a chat template has written already, as most trainers send it,
        is the beginning of a whole text to such a model; Trimtab's own read both alike.
        """
        match dialogue:
            case str(text):
                return self._clean_whole(text)
            case (str(prompt), str(response)):
                if not self.scorer.is_own and any(
                    token in prompt for token in self.scorer.control_tokens
                ):
                    return self._clean_whole(prompt + response)
                return prompt, response[: self._num_kept(response)]
            case _:
                *before, (role, content) = dialogue
                return (*before, (role, content[: self._num_kept(content)]))

    def _clean_whole(self, text: str) -> str:
        kept = self._num_kept(text)
        place = -1 if self.scorer.is_own or not self._end else text.find(self._end, kept)
        if place < 0:
            return text[:kept]
        rest = text[place + len(self._end) :]
        return f"{text[:kept]}{self._end}{rest[: len(rest) - len(rest.lstrip())]}"

    def _num_kept(self, text: str) -> int:
        """Characters before the padding and end tokens, between which white space may stand."""
        kept = len(text)
        while True:
            place = kept
            while place and text[place - 1].isspace():
                place -= 1
            endings = (end for end in self._endings if text.endswith(end, 0, place))
            ending = next(endings, None)
            if ending is None:
                return kept
            kept = place - len(ending)


class Ensemble:
    """Scorers of one kind of answer.

    std_coef: how many spreads are taken off the mean. means: (M,), logits, of each member over the
    same known answers.
    """

    def __init__(self, members: Sequence[Member], std_coef: float, means: Tensor) -> None:
        self.members, self.std_coef, self.means = members, std_coef, means.double()

    @classmethod
    def load(
        cls,
        folders: Sequence[str],
        std_coef: float,
        stripped: Sequence[str] = (),
        answers: Path | None = None,
    ) -> Ensemble:
        """Load folders or hub ids. answers: a file of known answers, as `read_answers`.

        Raises OSError and ValueError as `ExternalScorer.load`, and ValueError for several scorers
        that were not measured on the same answers.
        """
        members = [Member(ExternalScorer.load(folder), stripped) for folder in folders]
        if len(members) == 1:
            return cls(members, std_coef, torch.zeros(1))
        if answers is None:
            return cls(members, std_coef, _exported_means(folders, members))
        ensemble = cls(members, 0.0, torch.zeros(len(members)))
        try:
            texts = [ensemble.read(dialogue) for dialogue in read_answers(answers)]
        except RequestError as error:
            raise ValueError(f"{answers}: {error}") from None
        return cls(members, std_coef, ensemble.member_scores(texts).mean(1))

    def read(self, dialogue: Dialogue) -> Text:
        """A dialogue in every member's tokens. Raises RequestError as `Member.read`."""
        return Text(tuple(member.read(dialogue) for member in self.members))

    @property
    def num_cut(self) -> int:
        """How many texts were too long so far, and lost their beginning."""
        return max(member.scorer.num_cut for member in self.members)

    def member_scores(self, texts: Sequence[Text]) -> Tensor:
        """Scores (M, B), logits, float64, of B texts by M members."""
        scores = []
        for number, member in enumerate(self.members):
            read = [text.members[number] for text in texts]
            by_dialogue = member.scorer.score_encoded(dict(read))
            scores.append([by_dialogue[dialogue] for dialogue, _ in read])
        return torch.tensor(scores, dtype=torch.float64)

    def score(self, texts: Sequence[Text]) -> list[Scored]:
        """The score and the spread of every text."""
        scores = self.member_scores(texts)
        combined, _ = ensemble_scores(scores, self.std_coef, self.means)
        spreads = member_spread(scores, self.means)
        counts = [text.num_tokens for text in texts]
        return list(map(Scored, combined.tolist(), spreads.tolist(), counts))


def read_answers(path: Path) -> Iterator[Dialogue]:
    """Known answers: JSON lines, each as an element of the request's `inputs`.

    Raises OSError, and ValueError for a line that is none, or a file without any.
    """
    number = 0
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            yield read_input(f"line {number}", json.loads(line))
        except (RequestError, ValueError, RecursionError) as error:
            text = error if isinstance(error, RequestError) else f"line {number}: {error}"
            raise ValueError(f"{path}: {text}") from None
    if not number:
        raise ValueError(f"{path}: found no line; allowed: a known answer on each")


def _exported_means(folders: Sequence[str], members: Sequence[Member]) -> Tensor:
    """What the members' config.json say. Raises ValueError where they do not, or of other pairs."""
    known = []
    for folder, member in zip(folders, members, strict=True):
        mark = getattr(member.scorer.model.config, MARK, None) or {}
        if "known_answers" not in mark:
            raise ValueError(
                f"{folder}: found no mean score over known answers, without which the spread of "
                f"several scorers has no meaning; allowed: the members that {ENSEMBLE} writes, or "
                "--answers FILE"
            )
        known.append(mark["known_answers"])
    if len({answers["preferences"] for answers in known}) > 1:
        raise ValueError(
            f"{', '.join(folders)}: found mean scores over the answers of different pairs; "
            f"allowed: the members that {ENSEMBLE} writes, or --answers FILE"
        )
    return torch.tensor([answers["mean"] for answers in known])
