"""Exported models and pairs: folders that plain transformers, datasets and TRL load.

Trimtab's reward models read their score at the end token of a response. transformers reads it at
the last token that is no padding, so that an exported scorer's padding is never the end token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.numpy import save_file

from trimtab.models.data.messages import split_dialogue

HEAD = "score.weight"
TEXTS = ("prompt", "chosen", "rejected")


def export_scorer(folder: Path) -> tuple[list[str], bool]:
    """Make a scorer in a `save_pretrained` folder one for plain transformers.

    Returns its labels, and whether e(x) was left out.

    Of an Advantage Model the head of r(x, y) alone is kept: e(x) is the same for all responses to a
    prompt, and transformers reads one token only. Category heads stay, with their gate.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    labels = [config["id2label"][name] for name in sorted(config["id2label"], key=int)]
    has_expected = labels == ["reward", "expected_reward"]
    if has_expected:
        labels = labels[:1]
        _keep_first_row(folder)
        for name in ("advantage_scale", "learned_expected_reward", "num_labels"):
            config.pop(name, None)
    config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    config["label2id"] = {label: number for number, label in enumerate(labels)}
    config["pad_token_id"] = _padding(folder, config)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    return labels, has_expected


def _keep_first_row(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as opened:
            if HEAD not in opened.keys():  # noqa: SIM118 - it is no mapping
                continue
            metadata = opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        tensors[HEAD] = tensors[HEAD][:1].copy()
        save_file(tensors, file, metadata)
        return
    raise ValueError(f"{folder} has no {HEAD}: it is no scorer")


def _padding(folder: Path, config: Mapping[str, Any]) -> int | None:
    """The id of a special token other than the end token, made the tokenizer's padding.

    None without one: transformers then takes one text at a time.
    """
    end = config.get("eos_token_id")
    ends = end if isinstance(end, list) else [end]
    tokens = json.loads((folder / "tokenizer.json").read_text("utf-8")).get("added_tokens", [])
    if config.get("pad_token_id") not in (*ends, None):
        return int(config["pad_token_id"])
    for token in tokens:
        if token["special"] and token["id"] not in ends:
            path = folder / "tokenizer_config.json"
            settings = json.loads(path.read_text("utf-8"))
            settings["pad_token"] = token["content"]
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
            return int(token["id"])
    return None


def export_pairs(sources: Mapping[str, Path], target: Path, *, is_spaced: bool = False) -> int:
    """Write `<split>.jsonl` of the cleaned pairs of each split, as TRL takes them.

    sources: by split, the file of its raw or relabelled pairs. is_spaced: as in `cleaned_pairs`.
    If any pair came as messages, all are written as messages: a file has one form. Returns how
    many pairs were left out because one of their answers is empty.
    """
    as_messages = any("messages" in row for path in sources.values() for row in _rows(path))
    num_empty = 0
    for split, source in sources.items():
        path = target / f"{split}.jsonl"
        with path.open("w", encoding="utf-8") as stream:
            for row in cleaned_pairs(source, as_messages=as_messages, is_spaced=is_spaced):
                if row is None:
                    num_empty += 1
                else:
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        if not path.stat().st_size:  # `datasets` does not read an empty file
            path.unlink()
    return num_empty


def cleaned_pairs(
    path: Path, *, as_messages: bool = False, is_spaced: bool = False
) -> Iterator[dict[str, Any] | None]:
    """The rows of raw or relabelled pairs as TRL takes them: flipped ones turned round, without
    those of weight 0. All have the same fields, of the same types.

    `probability`, that `chosen` is better, is the pair's label: TRL takes a `label` for that of one
    answer, and refuses it beside two. None in place of a pair with an empty answer: only the end
    token behind it makes it one. as_messages: in TRL's conversational form; what came as text is
    split into messages. is_spaced: a space goes before answers in text, which TRL puts behind the
    prompt as they are.
    """
    for row in _rows(path):
        if row.get("weight", 1.0) == 0:
            continue
        is_flipped = bool(row.get("is_flipped"))
        better, worse = ("rejected", "chosen") if is_flipped else ("chosen", "rejected")
        if not (row["chosen"].strip() and row["rejected"].strip()):
            yield None
            continue
        said = {name: row[name] for name in TEXTS}
        if as_messages:
            split = dict(zip(TEXTS, split_dialogue(*said.values()), strict=True))
            said = row.get("messages") or split
        elif is_spaced:
            said |= {name: f" {said[name]}" for name in (better, worse)}
        yield {
            "id": str(row["id"]),
            "prompt": said["prompt"],
            "chosen": said[better],
            "rejected": said[worse],
            "category": row.get("category") or "",
            "probability": float(row.get("label", 1.0)),
            "margin": float(row.get("margin", 0.0)),
            "weight": float(row.get("weight", 1.0)),
            "is_flipped": is_flipped,
        }


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)
