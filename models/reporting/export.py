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

HEAD = "score.weight"


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


def cleaned_pairs(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of raw or relabelled pairs as TRL takes them: flipped ones turned round, without
    those of weight 0. All have the same fields, of the same types."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            if row.get("weight", 1.0) == 0:
                continue
            is_flipped = bool(row.get("is_flipped"))
            better, worse = ("rejected", "chosen") if is_flipped else ("chosen", "rejected")
            yield {
                "id": str(row["id"]),
                "prompt": row["prompt"],
                "chosen": row[better],
                "rejected": row[worse],
                "category": row.get("category") or "",
                "label": float(row.get("label", 1.0)),
                "margin": float(row.get("margin", 0.0)),
                "weight": float(row.get("weight", 1.0)),
                "is_flipped": is_flipped,
            }
