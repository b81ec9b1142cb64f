"""Scores of answers by a reward model that somebody else has trained.

It is an `AutoModelForSequenceClassification` folder, or one of the hub, with one label, and reads a
dialogue as its tokenizer's chat template writes it. Without one, a model that reads the score at
the last token gets prompt and answer as one text with an end token, as TRL and OpenRLHF train it,
and any other, such as BERT, a pair of texts. A whole text it reads as it is. Trimtab's own read a
text as they were trained to, those of earlier versions too, whose tokenizers do not end it. Only
safetensors are read, and no code is run that comes with a model. Of Llamas and the like (`PACKED`)
a prompt is passed once for all its answers; others get padded batches of like length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import torch
from jinja2 import TemplateError
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from trimtab.models.data.messages import (
    ASSISTANT_MARK,
    MARKS,
    Message,
    Render,
    chat_renderer,
    dialogue_of,
    render_hh,
)
from trimtab.models.nets import counts
from trimtab.models.nets.device import current_device
from trimtab.models.nets.freezing import find_layers
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.packing import Candidates, encode, pack
from trimtab.models.nets.precision import convert_to_bfloat16
from trimtab.models.nets.pretrained import load_pretrained, load_tokenizer_of
from trimtab.models.nets.scoring import response_scores
from trimtab.models.reporting.score_token import HH_TEMPLATE, MARK
from trimtab.models.training.batching import micro_batches
from trimtab.models.training.progress import Progress
from trimtab.models.training.scoring import distinct_rows

# Of these classes the score is read at the last token by a head without bias, and attention is
# plain and causal.
PACKED = {f"{family}ForSequenceClassification" for family in ("Llama", "Mistral", "Qwen2", "Qwen3")}
# A prompt and an answer; or roles and contents of messages that end with an assistant's.
Exchange = tuple[str, str] | tuple[tuple[str, str], ...]
# Or a whole text, as by a chat template that was applied already.
Dialogue = Exchange | str
D = TypeVar("D", bound=Dialogue)
NO_PROMPT = "a prompt that nobody asks"  # behind it a template writes what an answer starts from


class ExternalScorer:
    """A reward model and its tokenizer."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, is_own: bool = False
    ) -> None:
        self.model, self.tokenizer, self.is_own = model.eval(), tokenizer, is_own
        longest = (
            getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        )
        self.limit = min(int(longest), tokenizer.model_max_length)
        self.num_cut = 0
        self.refused: dict[Dialogue, str] = {}
        self._opening: str | None = None  # of an answer, by the chat template, once it is asked for
        added = {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        self.control_tokens = tuple(sorted({*tokenizer.all_special_tokens, *added} - {""}))

    @classmethod
    def load(cls, name: str) -> ExternalScorer:
        """A folder or hub id. Raises ValueError for a model of another kind, OSError for none."""
        folder = Path(name).expanduser()
        name = str(folder) if folder.is_dir() else name
        if (folder / "adapter_config.json").is_file():
            raise ValueError(f"{name}: found an adapter; allowed: merged weights")
        with current_device():
            model, info = load_pretrained(
                AutoModelForSequenceClassification,
                name,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
            )
        if model.config.num_labels != 1:
            raise ValueError(
                f"{name}: found {model.config.num_labels} labels; allowed: a reward model of one"
            )
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"{name}: found no weights for {', '.join(missing[:5])}; allowed: a trained reward "
                f"model with all weights of {type(model).__name__}"
            )
        convert_to_bfloat16(*(find_layers(model) or ()))
        fuse_layers(model)
        return cls(model, load_tokenizer_of(name), _is_own(model, folder))

    def score(self, dialogues: Sequence[D], progress: Progress | None = None) -> dict[D, float]:
        """The score of every different dialogue; `num_cut` of them were too long.

        `refused` has those that have none, as the chat template does not take their roles, with
        what it says. Raises ValueError where these are all.
        """
        texts = {}
        for dialogue in dict.fromkeys(dialogues):
            try:
                texts[dialogue] = self.encode(dialogue)
            except (TemplateError, ValueError) as error:
                self.refused[dialogue] = str(error)
        if not texts:
            message = next(iter(self.refused.values()))
            raise ValueError(f"the model's chat template refuses every dialogue: {message}")
        return self.score_encoded(texts, progress)

    @torch.no_grad()
    def score_encoded(
        self, texts: Mapping[D, Mapping[str, list[int]]], progress: Progress | None = None
    ) -> dict[D, float]:
        """The score of every dialogue, each with what `encode` makes of it; at least one."""
        follow = progress.follow if progress is not None else lambda items, _: items
        if not self._is_packed(max(len(text["input_ids"]) for text in texts.values())):
            return dict(follow(self._padded(texts), len(texts)))
        end = None if self.is_own else self.model.config.pad_token_id
        ids = {dialogue: _strip_padding(text["input_ids"], end) for dialogue, text in texts.items()}
        rows = dict(_with_common_prefix(ids))
        places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[D]] = {}
        for dialogue, row in rows.items():
            places.setdefault((tuple(row.prompt), tuple(row.responses[0])), []).append(dialogue)
        scores = follow(self._packed(list(rows.values())), len(places))
        return {dialogue: score for key, score in scores for dialogue in places[key]}

    def encode(self, dialogue: Dialogue) -> Mapping[str, list[int]]:
        """What the model is given of a dialogue: of too long a one the end.

        Raises TemplateError or ValueError where the chat template does not take its roles.
        """
        if self.is_own:
            return self._last(self._ids_as_trained(dialogue))
        if isinstance(dialogue, str):
            start = self.tokenizer.bos_token  # which a chat template may have written
            has_start = bool(start) and dialogue.startswith(str(start))
            ids = self.tokenizer(dialogue, add_special_tokens=not has_start)["input_ids"]
            return self._last(ids)
        if self.tokenizer.chat_template is not None:
            ids = self.tokenizer.apply_chat_template(
                _messages(dialogue), sanitize_control_tokens=True, return_dict=False
            )
            return self._last(ids)
        prompt, answer = _texts(dialogue)
        if hasattr(self.model, "score"):  # the head of models that read the last token
            ids, end = self.tokenizer(prompt + answer)["input_ids"], self.tokenizer.eos_token_id
            return self._last(ids if end is None or ids[-1:] == [end] else [*ids, end])
        pair = self.tokenizer(prompt, answer.strip())
        if len(pair["input_ids"]) > self.limit:
            self.num_cut += 1
            self.tokenizer.truncation_side = "left"
            pair = self.tokenizer(
                prompt, answer.strip(), truncation="longest_first", max_length=self.limit
            )
        return pair

    def _last(self, ids: list[int]) -> Mapping[str, list[int]]:
        self.num_cut += len(ids) > self.limit
        return {"input_ids": ids[-self.limit :]}

    def _ids_as_trained(self, dialogue: Dialogue) -> list[int]:
        """Prompt, answer and end token, messages as the chat template writes them for training.

        So, too, a prompt of text that no template has written, to a model of messages alone.
        """
        if isinstance(dialogue, str):
            prompt, answer = "", dialogue
        else:
            prompt, answer = _texts(dialogue)
            render = chat_renderer(self.tokenizer)
            if render is not None and prompt.endswith(ASSISTANT_MARK) and not self._writes_hh():
                *before, last = _messages(dialogue)
                prompt, answer = render(before), last["content"]
            elif render is not None and self._is_unwritten(prompt, render):
                prompt = render([{"role": "user", "content": prompt}])
                answer = f" {answer.lstrip(' ')}" if self._writes_hh() else answer
        (row,) = encode(self.tokenizer, [prompt], [[answer]])
        return [*row.prompt, *row.responses[0]]

    def _is_unwritten(self, prompt: str, render: Render) -> bool:
        """Whether a prompt is text that the chat template of a model of messages has not written.

        A written one begins with a control token, or ends as the template's prompts do.
        """
        if not prompt or getattr(self.model.config, MARK, {}).get("prompts") != "messages":
            return False
        if self._writes_hh():
            return not any(mark in prompt for mark in MARKS)
        if self._opening is None:
            self._opening = _opening_of(render)
        written = prompt.strip()
        return not written.startswith(self.control_tokens) and not written.endswith(self._opening)

    def _writes_hh(self) -> bool:
        return HH_TEMPLATE in str(self.tokenizer.chat_template)

    def _is_packed(self, longest: int) -> bool:
        config = self.model.config
        has_window = getattr(config, "use_sliding_window", True)
        window = (getattr(config, "sliding_window", None) if has_window else None) or longest
        return type(self.model).__name__ in PACKED and longest <= window

    def _packed(
        self, rows: Sequence[Candidates]
    ) -> Iterator[tuple[tuple[tuple[int, ...], tuple[int, ...]], float]]:
        """The score of each different prompt and response, by their tokens."""
        distinct = sorted(distinct_rows(rows), key=lambda row: row.num_tokens)
        for part in micro_batches(distinct, counts.PASS_TOKENS):
            batch = [distinct[index] for index in part]
            scores = iter(response_scores(self.model, pack(batch)).tolist())
            for row in batch:
                for response in row.responses:
                    yield (tuple(row.prompt), tuple(response)), next(scores)

    def _padded(self, texts: Mapping[D, Mapping[str, list[int]]]) -> Iterator[tuple[D, float]]:
        """The score of each text, by the model's own forward pass."""
        order = sorted(texts, key=lambda dialogue: len(texts[dialogue]["input_ids"]))
        lengths = [len(texts[dialogue]["input_ids"]) for dialogue in order]
        # Without a token to pad with, which the model knows, it takes no batches.
        padding = self.model.config.pad_token_id
        has_padding = padding is not None and padding == self.tokenizer.pad_token_id
        most = counts.PASS_TOKENS if has_padding else 1
        for part in counts.micro_batches(lengths, most):
            batch: Any = [dict(texts[order[index]]) for index in part]
            if has_padding:
                batch = self.tokenizer.pad(batch, padding_side="right", return_tensors="pt")
            else:
                batch = {name: torch.tensor([values]) for name, values in batch[0].items()}
            inputs = {name: values.to(self.model.device) for name, values in batch.items()}
            scores = self.model(**inputs).logits.float()[:, 0].tolist()
            yield from zip((order[index] for index in part), scores, strict=True)


def _opening_of(render: Render) -> str:
    """What a chat template writes between a user's message and the answer, stripped; empty, which
    all prompts end with, where it takes no such message alone."""
    try:
        return render([{"role": "user", "content": NO_PROMPT}]).rpartition(NO_PROMPT)[2].strip()
    except ValueError:
        return ""


def _messages(dialogue: Exchange) -> list[Message]:
    match dialogue:
        case (str(prompt), str(answer)):
            return dialogue_of(prompt, answer)
        case _:
            return [{"role": role, "content": content} for role, content in dialogue]


def _texts(dialogue: Exchange) -> tuple[str, str]:
    """Prompt and answer; of messages as HH-RLHF text."""
    match dialogue:
        case (str(prompt), str(answer)):
            return prompt, answer
        case _:
            *before, last = _messages(dialogue)
            return render_hh(before), f" {last['content']}"


def _is_own(model: PreTrainedModel, folder: Path) -> bool:
    """Whether Trimtab exported a model: it says so, or in an earlier version's its card does."""
    if hasattr(model.config, MARK):
        return True
    card = folder / "README.md"
    is_tagged = card.is_file() and '"trimtab"]' in card.read_text("utf-8", "replace")
    return is_tagged and model.config.id2label == {0: "reward"}


def _strip_padding(ids: list[int], padding: int | None) -> list[int]:
    """Up to the last token that is no padding: where transformers' own models read the score."""
    end = len(ids)
    while end > 1 and ids[end - 1] == padding:
        end -= 1
    return ids[:end]


def _with_common_prefix(
    texts: Mapping[D, list[int]],
) -> Iterator[tuple[D, Candidates]]:
    """Each text as a response to what all texts of its prompt begin with."""
    by_prompt: dict[Any, list[D]] = {}
    for dialogue in texts:
        prompt = dialogue if isinstance(dialogue, str) else dialogue[:-1]
        by_prompt.setdefault(prompt, []).append(dialogue)
    for dialogues in by_prompt.values():
        ids = [texts[dialogue] for dialogue in dialogues]
        both = zip(min(ids), max(ids), strict=False)  # the prefix of these two is that of all
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        shared = min(shared, *(len(text) - 1 for text in ids))
        for dialogue, text in zip(dialogues, ids, strict=True):
            start = shared or len(text) - 1  # no empty prompt, where there is another way
            yield dialogue, Candidates(text[:start], (text[start:],))
