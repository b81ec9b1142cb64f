"""Reading the artifacts that hold text: prompts, demonstrations and (relabelled) pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, tensor
from transformers import PreTrainedTokenizerBase

from trimtab.models.data.records import read_rows
from trimtab.models.nets.packing import Candidates, encode, encode_whole, with_categories
from trimtab.models.training.trunk_cache import CachedTrunk

SPLITS = ("train", "validation", "test")
HELD_OUT = ("validation", "test")


def splits_of(preferences: Path) -> list[str]:
    """The splits that hold pairs."""
    return [split for split in SPLITS if (preferences / f"{split}.jsonl").stat().st_size > 0]


def score_row(
    identifier: str,
    split: str,
    scores: tuple[float | None, float | None],
    *,
    was_trained_on: bool = False,
    is_planted: bool | None = None,
) -> dict[str, Any]:
    """A row of scores.jsonl, which all that vote on pairs write.

    scores: of the answer labelled better and of the other; None: no vote. is_planted: whether it is
    a planted flip; None: labels are as they came.
    """
    row = {
        "id": identifier,
        "split": split,
        "chosen_score": scores[0],
        "rejected_score": scores[1],
        "was_trained_on": was_trained_on,
    }
    return row if is_planted is None else {**row, "is_planted": is_planted}


def read_prompts(folder: Path, which: str) -> list[dict[str, Any]]:
    """The rows of the artifact `data` that policies are trained on: `policy` or `held_out`.

    Raises ValueError where the artifact has none of that name.
    """
    path = folder / f"{which}_prompts.jsonl"
    if not path.exists():
        raise ValueError(
            f"prompts={which}: these data have no such prompts, which only the synthetic world "
            "draws; allowed: policy"
        )
    return read_rows(path)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def with_columns(
    rows: Iterable[dict[str, Any]], columns: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """N rows, each with its value of further columns (N,): lists, tensors or arrays."""
    lists = [
        column.tolist() if hasattr(column, "tolist") else column for column in columns.values()
    ]
    return [
        {**row, **dict(zip(columns, values, strict=True))}
        for row, *values in zip(rows, *lists, strict=True)
    ]


def rows_of(path: Path, categories: Sequence[str] | None, *, what: str) -> list[dict[str, Any]]:
    """The rows of some categories, or all; ValueError where there are none. what: of the rows."""
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path} holds no {what}: there is nothing to ask about")
    if categories is None:
        return rows
    wanted = [row for row in rows if row.get("category") in categories]
    if not wanted:
        others = sorted({str(row.get("category")) for row in rows})
        raise ValueError(
            f"{path} holds no {what} of the categories {list(categories)}: found those of "
            f"{', '.join(others)}; name some of these, or leave categories out"
        )
    return wanted


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs, preferred response first, with their relabelling.

    records: N rows as they were read, but for messages and opinions. rows: N candidates of two
    responses. label, margin, weight: (N,); 1, 0, 1 for raw pairs.
    """

    records: list[dict[str, Any]]
    rows: list[Candidates]
    label: Tensor
    margin: Tensor
    weight: Tensor

    @cached_property
    def identifiers(self) -> list[str]:
        """Each pair's id."""
        return [record["id"] for record in self.records]

    @cached_property
    def prompts(self) -> list[str]:
        """Each pair's prompt as text, before any truncation."""
        return [record["prompt"] for record in self.records]

    @cached_property
    def categories(self) -> list[str | None]:
        """Each pair's category, if any."""
        return [record.get("category") for record in self.records]

    @cached_property
    def groups(self) -> list[str | None]:
        """The ranking that each pair is from, if any."""
        return [record.get("group") for record in self.records]

    def swapped(self, is_flipped: Sequence[bool]) -> Pairs:
        """The pairs, with chosen and rejected swapped where `is_flipped` (N,)."""
        rows = [
            row.swapped() if flip else row for row, flip in zip(self.rows, is_flipped, strict=True)
        ]
        return replace(self, rows=rows)

    def subset(self, indices: Sequence[int]) -> Pairs:
        """The pairs at `indices`, in that order."""
        at = tensor(indices, dtype=torch.long)
        return Pairs(
            [self.records[index] for index in indices],
            [self.rows[index] for index in indices],
            self.label[at],
            self.margin[at],
            self.weight[at],
        )


def read_pairs(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    states: CachedTrunk | None = None,
) -> Pairs:
    """Read raw or relabelled pairs; a flipped pair comes with its responses swapped.

    Pairs of weight 0 are left out. `states` holds lower layers' states of the raw pairs of every
    split; the file's name says which.
    """
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path} holds no pairs: nothing to train on or to score")
    for row in rows:  # all stay in memory
        row.pop("messages", None)
        row.pop("opinions", None)
    prompts = [row["prompt"] for row in rows]
    responses = [(row["chosen"], row["rejected"]) for row in rows]
    categories = [row.get("category") for row in rows]
    raw = with_categories(encode(tokenizer, prompts, responses, max_length), categories)
    if states is not None:
        raw = states.attach(path.stem, raw)
    pairs = Pairs(
        rows,
        [
            pair.swapped() if row.get("is_flipped", False) else pair
            for pair, row in zip(raw, rows, strict=True)
        ],
        tensor([float(row.get("label", 1.0)) for row in rows]),
        tensor([float(row.get("margin", 0.0)) for row in rows]),
        tensor([float(row.get("weight", 1.0)) for row in rows]),
    )
    counted = pairs.weight.nonzero().flatten().tolist()
    if not counted:
        raise ValueError(f"{path}: all {len(rows)} pairs have weight 0: nothing to train on")
    return pairs if len(counted) == len(rows) else pairs.subset(counted)


def encode_dialogues(
    path: Path, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[Candidates]:
    """Read the rows of a file as `encode_demonstrations` takes them."""
    return encode_demonstrations(read_rows(path), tokenizer, max_length)


def encode_demonstrations(
    rows: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> list[Candidates]:
    """Rows of a prompt with a response, or with the whole `text`, as one-response candidates."""
    with_text = [row for row in rows if "text" in row]
    with_response = [row for row in rows if "text" not in row]
    texts = encode_whole(
        tokenizer,
        [row["prompt"] for row in with_text],
        [row["text"] for row in with_text],
        max_length,
    )
    answers = encode(
        tokenizer,
        [row["prompt"] for row in with_response],
        [[row["response"]] for row in with_response],
        max_length,
    )
    candidates = {"text": iter(texts), "response": iter(answers)}
    return [next(candidates["text" if "text" in row else "response"]) for row in rows]


def context_length(model_config: Any) -> int:
    """The most tokens a model takes."""
    return int(model_config.max_position_embeddings)
