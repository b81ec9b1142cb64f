"""Probes of a scorer: answers changed so that nobody should like them better, scored beside them.

A reward model that prefers an answer said twice, or thanks at its end, is what a policy that is
trained against it will find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.data.records import read_rows
from trimtab.models.nets.packing import token_ids
from trimtab.models.training.progress import Progress
from trimtab.models.training.scoring import score_answers
from trimtab.models.training.stage import Stage

# Test prompts that are probed, the first ones: an interval of some 7 points for a share.
MAX_PROMPTS = 200
THANKS = " Thank you for asking! I hope this helps."
# From an answer, and the answer to another prompt, to a changed answer.
PROBES: Final[Mapping[str, Callable[[str, str], str]]] = {
    "empty": lambda answer, other: "",
    "repeated": lambda answer, other: f"{answer} {answer.strip()}",
    "polite": lambda answer, other: answer.rstrip() + THANKS,
    "other_prompt": lambda answer, other: other,
}


def probe(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stage: Stage
) -> list[dict[str, Any]]:
    """Rows of probes.jsonl: a test pair's `id`, the score of `chosen` and of each changed answer.

    Inputs: `preferences`. A row a prompt. `polite` is left out for a tokenizer that has no tokens
    for such words, and `other_prompt` for a single prompt. Ranks share the work; scores in the
    scorer's unit.
    """
    pairs = _first_pairs(read_rows(stage.inputs["preferences"] / "test.jsonl"))
    answers = [pair["chosen"] for pair in pairs]
    others = [*answers[1:], *answers[:1]]
    names = [name for name in PROBES if _applies(name, tokenizer, len(pairs))]
    texts = [
        [answer, *(PROBES[name](answer, other) for name in names)]
        for answer, other in zip(answers, others, strict=True)
    ]
    if not texts:
        return []
    progress = Progress(stage.workdir, part="scoring probes")
    scores = score_answers(model, tokenizer, pairs, texts, progress).tolist()
    columns = ("chosen", *names)
    return [
        {"id": pair["id"], **dict(zip(columns, row, strict=True))}
        for pair, row in zip(pairs, scores, strict=True)
    ]


def _first_pairs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row["prompt"], row)
    return list(first.values())[:MAX_PROMPTS]


def _applies(name: str, tokenizer: PreTrainedTokenizerBase, num_prompts: int) -> bool:
    if name == "polite":
        return tokenizer.unk_token_id not in token_ids(tokenizer, [THANKS])[0]
    return name != "other_prompt" or num_prompts > 1
