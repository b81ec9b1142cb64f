"""The requests that trainers send for rewards, told apart by their keys, and the answers they read.

| keys | who sends them | answer |
|---|---|---|
| inputs | anybody | {"scores": [...], "spreads": [...]} |
| query | OpenRLHF, to `/get_reward` | {"rewards": [...], "scores": [...], "extra_logs": {...}} |
| prompt, response | slime and miles, `remote_rm` | a number |
| input, or messages | verl and clients of vLLM, to `/classify` | vLLM's, `probs` the score |
| queries and documents, or as below | clients of vLLM, to `/score` | vLLM's |

As vLLM names the two texts of a pair in several ways, so do the last: queries and items, text_1 and
text_2, data_1 and data_2. Keys beyond these, such as OpenRLHF's `labels`, decide nothing. Scores
are logits: no format gets a sigmoid.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from trimtab.models.data.messages import check_messages
from trimtab.models.data.problems import Problem, typed
from trimtab.models.training.external_scorer import Dialogue

Body = Mapping[str, Any]


class RequestError(ValueError):
    """A request that cannot be answered; status: HTTP's."""

    def __init__(self, text: str, status: int = 422) -> None:
        super().__init__(text)
        self.status = status


class Scored(NamedTuple):
    """Of a text its score and the spread of the ensemble's members, logits, and its tokens."""

    score: float
    spread: float
    num_tokens: int


Reply = Callable[[Sequence[Scored]], Any]


class RewardRequest(NamedTuple):
    """What is to be scored, and the JSON value that answers with as many `Scored`."""

    format: str
    dialogues: list[Dialogue]
    reply: Reply


class Format(NamedTuple):
    """A name, the keys by which a body is known, and what reads it."""

    name: str
    keys: tuple[str, ...]
    read: Callable[[Body, str], tuple[list[Dialogue], Reply]]


def read_request(body: bytes, model: str) -> RewardRequest:
    """A request's dialogues. model: the name that vLLM's answers have where the request has none.

    Raises RequestError, which says the first thing that is wrong.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}", 400) from None
    if not isinstance(value, dict):
        raise _wrong("the body", value, "an object")
    fitting = [form for form in FORMATS if value.keys() >= set(form.keys)]
    if len(fitting) != 1:
        allowed = "; ".join(" and ".join(form.keys) for form in FORMATS)
        raise _wrong("the keys of the body", sorted(value), f"those of one format: {allowed}")
    named = value.get("model")
    try:
        dialogues, reply = fitting[0].read(value, str(named) if _is_unicode(named) else model)
    except RecursionError:  # of what an error would show
        raise RequestError("the body: found values that are nested too deeply", 400) from None
    return RewardRequest(fitting[0].name, dialogues, reply)


def read_input(where: str, value: Any) -> Dialogue:
    """One of `inputs`: a text, messages that end with an assistant's, or a prompt and a response.

    Raises RequestError.
    """
    if isinstance(value, str):
        return _whole_text(where, value)
    if isinstance(value, list):
        return _dialogue_of_messages(where, value)
    if isinstance(value, dict) and value.keys() >= {"prompt", "response"}:
        return _exchange(f"{where}.", value)
    raise _wrong(where, value, "a text, a list of messages, or an object with prompt and response")


def _wrong(where: str, value: Any, allowed: str) -> RequestError:
    return RequestError(f"{where}: found {typed(value)}; allowed: {allowed}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}; allowed: finite numbers")


def _is_unicode(value: Any) -> bool:
    """Whether it is a text that UTF-8 can hold: JSON can spell half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(where: str, value: Any) -> str:
    if not _is_unicode(value):
        raise _wrong(where, value, "a text of Unicode characters")
    return str(value)


def _whole_text(where: str, value: Any) -> str:
    text = _text(where, value)
    if not text.strip():
        raise _wrong(where, text, "a text that is not empty")
    return text


def _exchange(where: str, value: Body) -> Dialogue:
    """A prompt, text or messages, with a response; an empty one is an answer, too."""
    prompt, response = value["prompt"], _text(f"{where}response", value["response"])
    if isinstance(prompt, list):
        return (*_turns(f"{where}prompt", prompt), ("assistant", response))
    if not isinstance(prompt, str):
        raise _wrong(f"{where}prompt", prompt, "a text or a list of messages")
    if not (_text(f"{where}prompt", prompt) + response).strip():
        raise _wrong(f"{where}prompt", prompt, "a text that is not empty")
    return prompt, response


def _turns(where: str, value: Any) -> tuple[tuple[str, str], ...]:
    problems: list[Problem] = []
    messages = check_messages(where, value, problems)
    if messages is None:
        first = problems[0]
        raise RequestError(f"{first.field}: found {first.found}; allowed: {first.allowed}")
    return tuple((message["role"], message["content"]) for message in messages)


def _dialogue_of_messages(where: str, value: list[Any]) -> Dialogue:
    before, last = value[:-1], value[-1] if value else None
    if before and last == {"role": "assistant", "content": ""}:
        return (*_turns(where, before), ("assistant", ""))
    turns = _turns(where, value)
    if turns[-1][0] != "assistant":
        raise _wrong(
            f"{where}[{len(turns) - 1}].role", turns[-1][0], "assistant, whose answer is scored"
        )
    return turns


def _several(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _wrong(where, value, "a list that is not empty")
    return list(value)


def _texts(where: str, value: Any) -> list[str]:
    """One text or several, as vLLM takes them."""
    texts = [value] if isinstance(value, str) else _several(where, value)
    return [_text(f"{where}[{place}]", text) for place, text in enumerate(texts)]


def _read_inputs(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
    inputs = _several("inputs", body["inputs"])
    dialogues = [read_input(f"inputs[{place}]", value) for place, value in enumerate(inputs)]
    return dialogues, lambda scored: {
        "scores": [text.score for text in scored],
        "spreads": [text.spread for text in scored],
    }


def _read_query(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
    """Texts of a prompt and a response. `prompts` says where each response begins, if it is as the
    text begins. No text at all is what OpenRLHF sends to the last of several servers where it has
    fewer texts than servers."""
    queries = body["query"]
    if not isinstance(queries, list):
        raise _wrong("query", queries, "a list of texts")
    texts = [_whole_text(f"query[{place}]", text) for place, text in enumerate(queries)]
    prompts = body.get("prompts", [None] * len(texts))
    if not isinstance(prompts, list) or len(prompts) != len(texts):
        raise _wrong("prompts", prompts, f"a list of {len(texts)}, as many as in query")
    dialogues: list[Dialogue] = [
        (prompt, text.removeprefix(prompt))
        if prompt and isinstance(prompt, str) and text.startswith(prompt)
        else text
        for prompt, text in zip(prompts, texts, strict=True)
    ]

    def reply(scored: Sequence[Scored]) -> Any:
        scores = [text.score for text in scored]
        logs = {"reward_spread": [text.spread for text in scored]}
        return {"rewards": scores, "scores": scores, "extra_logs": logs}

    return dialogues, reply


def _read_exchange(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
    return [_exchange("", body)], lambda scored: scored[0].score


def _read_classify(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
    texts: list[Dialogue] = [
        _whole_text(f"input[{n}]", text) for n, text in enumerate(_texts("input", body["input"]))
    ]
    return texts, _class_reply(body, model)


def _read_chat(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
    messages = _several("messages", body["messages"])
    return [_dialogue_of_messages("messages", messages)], _class_reply(body, model)


def _class_reply(body: Body, model: str) -> Reply:
    _refuse_activation(body)
    return lambda scored: _vllm_answer(
        "classify",
        model,
        [{"label": "reward", "probs": [text.score], "num_classes": 1} for text in scored],
        scored,
    )


def _read_pairs(first: str, second: str) -> Callable[[Body, str], tuple[list[Dialogue], Reply]]:
    """What reads a prompt for every answer, or one for all."""

    def read(body: Body, model: str) -> tuple[list[Dialogue], Reply]:
        _refuse_activation(body)
        prompts, answers = (_texts(key, body[key]) for key in (first, second))
        if len(prompts) not in (1, len(answers)):
            raise RequestError(
                f"{first}: found {len(prompts)} for {len(answers)} {second}; allowed: one, or one "
                "for each"
            )
        prompts = prompts * (len(answers) // len(prompts))
        dialogues = [
            _exchange(f"{second}[{n}].", {"prompt": prompt, "response": answer})
            for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
        return dialogues, lambda scored: _vllm_answer(
            "score", model, [{"object": "score", "score": text.score} for text in scored], scored
        )

    return read


def _refuse_activation(body: Body) -> None:
    for key in ("use_activation", "activation"):
        if body.get(key) not in (None, False):
            raise _wrong(key, body[key], "false: scores are logits, and no sigmoid is taken")


def _vllm_answer(
    kind: str, model: str, data: Sequence[Body], scored: Sequence[Scored]
) -> dict[str, Any]:
    tokens = sum(text.num_tokens for text in scored)
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [{"index": index, **fields} for index, fields in enumerate(data)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


FORMATS = (
    Format("inputs", ("inputs",), _read_inputs),
    Format("get_reward", ("query",), _read_query),
    Format("remote_rm", ("prompt", "response"), _read_exchange),
    Format("classify", ("input",), _read_classify),
    Format("classify", ("messages",), _read_chat),
    *(
        Format("score", keys, _read_pairs(*keys))
        for keys in (
            ("queries", "documents"),
            ("queries", "items"),
            ("text_1", "text_2"),
            ("data_1", "data_2"),
        )
    ),
)
