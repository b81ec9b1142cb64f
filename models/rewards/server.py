"""A reward server over HTTP, in the wire formats that other projects' trainers send and read.

openrlhf    POST {"query": [text], "prompts": [prompt], "labels": [""]} -> {"rewards": [number]};
            a text is the prompt with its answer [OpenRLHF, utils/agent.py and cli/serve_rm.py]
remote_rm   POST {"prompt": prompt, "response": answer, "label": null} -> number
            [slime and miles, rollout/rm_hub]
classify    POST {"model": name, "input": [text], "use_activation": false}
            -> {"data": [{"index": place, "probs": [number]}]} [vLLM, entrypoints/pooling/classify;
            verl, experimental/reward_loop]: without the activation the number is the raw score
classify_messages   the same with {"messages": [...]} of one dialogue in place of the texts [vLLM]

A label is the prompt's column of that name, where `preferences.prompt_columns` has it.

Requests wait, are tried again and keep their key to themselves as those to judges do, whose rules
on addresses hold here (`trimtab.models.judge.client`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trimtab.models.config.external_reward import RewardServerConfig, WireFormat
from trimtab.models.data.messages import messages_of
from trimtab.models.judge.chat import AnswerError
from trimtab.models.judge.client import Gate, Server
from trimtab.models.rewards.checks import checked_scores

Exchange = tuple[Mapping[str, Any], str]  # the row of a prompt, and an answer
ONE_A_REQUEST = ("remote_rm", "classify_messages")


class RewardServer(Server):
    """A server that scores answers."""

    _config: RewardServerConfig

    def __init__(self, config: RewardServerConfig, label: str) -> None:
        """label: what errors call it. Raises EndpointError for a key that no header can hold."""
        super().__init__(config, config.url, config.model)
        self._label = label

    def scores(
        self, rows: Sequence[Mapping[str, Any]], responses: Sequence[str]
    ) -> Iterator[tuple[int, float]]:
        """Place and score of each row's prompt with its response, as they come.

        Raises EndpointError where the server refuses or does not answer, RewardError where it
        answers other than with a finite number for each.
        """
        size = 1 if self._config.format in ONE_A_REQUEST else self._config.batch_size
        end = self._config.end_text
        exchanges = [(row, text + end) for row, text in zip(rows, responses, strict=True)]
        parts = [range(len(exchanges))[at : at + size] for at in range(0, len(exchanges), size)]
        requests = ((part, [exchanges[place] for place in part]) for part in parts)
        for part, scores in self.ask_all(requests, self._ask):
            yield from zip(part, scores, strict=True)

    def _ask(self, exchanges: Sequence[Exchange], gate: Gate) -> list[float]:
        gate.check()
        write, read = _FORMATS[self._config.format]
        body = write(exchanges)
        if self._config.model is not None:
            body["model"] = self._config.model

        def read_text(text: str) -> list[float]:
            try:
                values = read(json.loads(text))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise AnswerError(
                    f"not an answer in the format {self._config.format} ({type(error).__name__})"
                ) from None
            return checked_scores(self._label, values, len(exchanges))

        return self.post(json.dumps(body, allow_nan=False).encode(), read_text)


def _texts(exchanges: Sequence[Exchange]) -> list[str]:
    return [row["prompt"] + answer for row, answer in exchanges]


def _label(exchange: Exchange) -> Any:
    """The column `label` of the prompt's row, of `preferences.prompt_columns`; None without."""
    return exchange[0].get("columns", {}).get("label")


def _write_openrlhf(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    prompts = [row["prompt"] for row, _ in exchanges]
    labels = ["" if label is None else label for label in map(_label, exchanges)]
    return {"query": _texts(exchanges), "prompts": prompts, "labels": labels}


def _write_remote_rm(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    ((row, answer),) = exchanges
    return {"prompt": row["prompt"], "response": answer, "label": _label(exchanges[0])}


def _write_classify(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    return {"input": _texts(exchanges), "use_activation": False}


def _write_classify_messages(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    ((row, answer),) = exchanges
    return {"messages": messages_of(row, answer), "use_activation": False}


def _read_classify(body: Any) -> list[Any]:
    """The one number of each text, in the order of the texts; several are those of classes."""
    rows = sorted(body["data"], key=lambda row: row["index"])
    return [row["probs"][0] if len(row["probs"]) == 1 else row["probs"] for row in rows]


_FORMATS: dict[
    WireFormat, tuple[Callable[[Sequence[Exchange]], dict[str, Any]], Callable[[Any], Any]]
] = {
    "openrlhf": (_write_openrlhf, lambda body: body["rewards"]),
    "remote_rm": (_write_remote_rm, lambda body: [body]),
    "classify": (_write_classify, _read_classify),
    "classify_messages": (_write_classify_messages, _read_classify),
}
