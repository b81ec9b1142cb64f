"""A trained reward model as an object of Python, which TRL takes among its `reward_funcs`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.models.config.base import last_part
from trimtab.models.data.messages import check_messages
from trimtab.models.data.problems import Problem, shorten
from trimtab.models.nets.device import set_device
from trimtab.models.training.external_scorer import Dialogue, ExternalScorer

Messages = Sequence[Mapping[str, Any]]
Part = str | Messages
"""A prompt or an answer: text, or messages with `role` and `content`."""
FORMS = "text, messages (list of dict), or a tuple of prompt and answer"


class RewardModel:
    """A reward model: `score` gives numbers for numpy, calling it is what TRL's trainers do.

    >>> reward = RewardModel.load("my-reward")
    >>> reward.score([("What is two and two?", "Four."), ("What is two and two?", "Five.")])
    >>> GRPOTrainer(model=..., reward_funcs=reward, train_dataset=...)

    Scores are those of `trimtab audit --reward-model` and of Trimtab's own stages: prompt and
    answer become tokens as in training, a prompt is passed once for all its answers, and equal
    dialogues are scored once. `num_cut` counts dialogues that were longer than the model reads, of
    which it read the end.
    """

    def __init__(self, scorer: ExternalScorer, name: str, device: torch.device) -> None:
        self._scorer, self._device = scorer, device
        self.__name__ = name

    @classmethod
    def load(
        cls, model: str | os.PathLike[str], *, device: str | torch.device | None = None
    ) -> RewardModel:
        """A reward model in a folder, such as `trimtab export` writes, or of the Hub.

        model: of AutoModelForSequenceClassification with one label, in safetensors, of any family;
        no code that comes with it is run. device: by default the GPU, where torch sees one of
        CUDA's, else the CPU. Its `__name__`, by which TRL logs it, is the last part of `model`.

        Raises ValueError for a model of another kind, OSError where there is none.
        """
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        place = torch.device(device)
        set_device(place)
        name = os.fspath(model)
        return cls(ExternalScorer.load(name), last_part(name), place)

    @property
    def num_cut(self) -> int:
        """Dialogues so far that were longer than the model reads."""
        return self._scorer.num_cut

    def score(
        self,
        inputs: Sequence[str | Messages | tuple[Part, Part]],
        answers: Sequence[Part] | None = None,
    ) -> NDArray[np.float32]:
        """The score of each of N dialogues, (N,) float32, in logits: differences have a meaning.

        inputs: each a whole text, as a chat template has written it; or messages that end with the
        assistant's; or a tuple of prompt and answer, each text or messages. A plain prompt is a
        message of the user's to a model that learned from messages alone. With `answers`, inputs
        are the N prompts of these.

        Raises ValueError for another form, naming its place, for a dialogue that the model's chat
        template refuses, and for a score that is not finite.
        """
        if answers is not None:
            _require_list("answers", answers)
            _require_list("inputs", inputs)
            if len(answers) != len(inputs):
                raise ValueError(
                    f"answers: found {len(answers)} for {len(inputs)} prompts; allowed: one each"
                )
            inputs = list(zip(inputs, answers, strict=True))  # type: ignore[arg-type]
        elif isinstance(inputs, tuple) and [type(part) for part in inputs] == [str, str]:
            raise ValueError("inputs: found a tuple of two texts; allowed: a list of such tuples")
        _require_list("inputs", inputs)
        dialogues = [_dialogue(f"inputs[{place}]", item) for place, item in enumerate(inputs)]
        if not dialogues:
            return np.zeros(0, np.float32)
        set_device(self._device)
        scores = self._scorer.score(dialogues)
        for place, dialogue in enumerate(dialogues):
            if dialogue not in scores:
                raise ValueError(
                    f"inputs[{place}]: {self._scorer.refused[dialogue]}; allowed: messages that "
                    "the model's chat template takes"
                )
            if not math.isfinite(scores[dialogue]):
                raise ValueError(
                    f"inputs[{place}]: found the score {scores[dialogue]} of {self.__name__}; "
                    "allowed: finite numbers"
                )
        return np.array([scores[dialogue] for dialogue in dialogues], np.float32)

    def __call__(
        self, prompts: Sequence[Part], completions: Sequence[Part], **_: object
    ) -> list[float]:
        """The scores of completions, as TRL's trainers ask a reward function for them.

        prompts, completions: N of each, texts or, of conversations, messages. What else a trainer
        gives, such as `completion_ids`, is not read. Raises ValueError as `score`.
        """
        scores: list[float] = self.score(prompts, completions).tolist()
        return scores

    def __repr__(self) -> str:
        return f"RewardModel({self.__name__!r}, {type(self._scorer.model).__name__})"


def _require_list(name: str, values: object) -> None:
    if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
        raise ValueError(f"{name}: found {shorten(values)}; allowed: a list, each {FORMS}")


def _dialogue(place: str, item: object) -> Dialogue:
    """A dialogue as the scorer takes it; ValueError for another form."""
    match _plain(item):
        case str(text):
            return text
        case [Mapping(), *_] as messages:
            return _messages(place, messages)
        case [str() as prompt, str() as answer]:
            return prompt, answer
        case [prompt, answer]:
            parts = {"prompt": ("user", prompt), "answer": ("assistant", answer)}
            return tuple(
                message
                for name, (role, part) in parts.items()
                for message in _part(f"{place}, {name}", role, part)
            )
    raise ValueError(f"{place}: found {shorten(item)}; allowed: {FORMS}")


def _plain(item: object) -> object:
    """Messages of a column of Parquet, which pandas reads as arrays, are a list."""
    return item.tolist() if isinstance(item, np.ndarray) else item


def _part(place: str, role: str, part: object) -> tuple[tuple[str, str], ...]:
    """The messages of a prompt or an answer; text is one of its role's."""
    match _plain(part):
        case str(text):
            return ((role, text),)
        case [Mapping(), *_] as messages:
            return _messages(place, messages, is_prompt=role == "user")
    raise ValueError(f"{place}: found {shorten(part)}; allowed: text, or messages")


def _messages(
    place: str, messages: Sequence[Any], *, is_prompt: bool = False
) -> tuple[tuple[str, str], ...]:
    """Roles and contents; an answer may be empty, as a policy's that ends at once."""
    problems: list[Problem] = []
    is_empty = [isinstance(message, Mapping) and _is_empty(message) for message in messages]
    filled = [
        {**message, "content": "-"} if empty else message
        for message, empty in zip(messages, is_empty, strict=True)
    ]
    plain = check_messages(place, filled, problems)
    if plain is None:
        first = problems[0]
        raise ValueError(f"{first.field}: found {first.found}; allowed: {first.allowed}")
    if not is_prompt and plain[-1]["role"] != "assistant":
        raise ValueError(
            f"{place}: found messages that end with the {plain[-1]['role']}'s; allowed: an answer, "
            "which is the assistant's"
        )
    return tuple(
        (message["role"], "" if empty else message["content"])
        for message, empty in zip(plain, is_empty, strict=True)
    )


def _is_empty(message: Mapping[str, Any]) -> bool:
    content = message.get("content") or ""
    is_blank = isinstance(content, str) and not content.strip()
    return message.get("role") == "assistant" and is_blank and not message.get("tool_calls")
