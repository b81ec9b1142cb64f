"""Exported models and pairs: folders that plain transformers, datasets and TRL load.

Trimtab's reward models read their score at the end token of a response. transformers reads it at
the last token that is no padding: an exported scorer's tokenizer ends every text with the end token
(`score_token`), and its padding is never that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.data.messages import split_dialogue
from trimtab.models.data.records import read_rows
from trimtab.models.reporting.score_token import MARK, end_texts, end_token, write

Array = NDArray[Any]
HEAD, EXPECTED = "score.weight", "expected_reward"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
TEXTS = ("prompt", "chosen", "rejected")
# Of `rope_parameters`, and by what names transformers 4 has them, GPT-NeoX by the second.
POSITIONS = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}


class NoProbabilityError(ValueError):
    """A label that no format of pairs has a place for."""


class ExportedScorer(NamedTuple):
    """labels: of its columns. had_expected: whether e(x) was left out. score_token: where the score
    is read, as the exported config.json has it."""

    labels: list[str]
    had_expected: bool
    score_token: dict[str, Any]


def known_answers(scores: Path, digest: str) -> dict[str, Any]:
    """Mean and standard deviation (logits) of a scorer's scores on the validation pairs' answers.

    scores: its scores.jsonl. digest: of the pairs' artifact, by which it is known whether two
    scorers were measured on the same answers. Empty where it scored none.
    """
    rows = (row for row in read_rows(scores) if row["split"] == "validation")
    values = [row[name] for row in rows for name in ("chosen_score", "rejected_score")]
    values = [value for value in values if value is not None]
    if not values:
        return {}
    mean, std = float(np.mean(values)), float(np.std(values))
    return {"mean": mean, "std": std, "count": len(values), "preferences": digest}


def form_of_prompts(pairs: Path, config: RewardModelConfig) -> str:
    """How the prompts of the pairs that a scorer learns from came: `text`, `messages`, `both`."""
    forms = {"messages" in row for row in read_rows(pairs) if config.takes(row.get("category"))}
    return "both" if len(forms) > 1 else "messages" if True in forms else "text"


def export_scorer(
    folder: Path, known: Mapping[str, Any] | None = None, prompts: str | None = None
) -> ExportedScorer:
    """Rewrite the scorer in a `save_pretrained` folder so that plain transformers loads it.

    known, prompts: its `known_answers` (of an Advantage Model left out: they are of r - e) and the
    `form_of_prompts` that it learned from. Files are replaced: they may be links into the store.

    An Advantage Model's head e(x) is left out: it is the same for all responses to a prompt, and
    transformers reads one token only. Category heads stay, with their gate.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    labels = [config["id2label"][name] for name in sorted(config["id2label"], key=int)]
    has_expected = EXPECTED in labels
    if has_expected:
        column = labels.index(EXPECTED)
        labels.remove(EXPECTED)
        if not _change_tensor(folder, (HEAD,), lambda heads: np.delete(heads, column, 0)):
            raise ValueError(f"{folder} has no {HEAD}: it is no scorer")
        for name in ("advantage_scale", "learned_expected_reward", "num_labels"):
            config.pop(name, None)
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    config["problem_type"] = "regression"  # a pipeline then gives the score, not its sigmoid
    _give_padding(folder, config)
    config[MARK] = end_texts(folder) | ({"prompts": prompts} if prompts else {})
    if known and not has_expected:
        config[MARK]["known_answers"] = dict(known)
    write(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    name_for_transformers_4(folder)
    return ExportedScorer(labels, has_expected, config[MARK])


def name_for_transformers_4(folder: Path) -> None:
    """Write what transformers 5 names anew in a `save_pretrained` folder under its former name too.

    transformers 4, which vLLM, verl and others still run, passes over `rope_parameters`: it would
    turn positions by a base of 10,000 and say nothing. Files are replaced, not edited.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    for name, former in POSITIONS.items():
        if name in rope:
            config |= dict.fromkeys(former, rope[name])
    scaling = {name: value for name, value in rope.items() if name not in POSITIONS}
    if scaling:
        config["rope_scaling"] = scaling if scaling.get("rope_type") != "default" else None
    if "rope_theta" in local:
        config["rope_local_base_freq"] = local["rope_theta"]
    config["torch_dtype"] = config.get("dtype")
    write(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    if isinstance(tokens := settings.pop("extra_special_tokens", None), list):
        settings["additional_special_tokens"] = tokens
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    write(path, json.dumps(settings, indent=2, ensure_ascii=False))


def _change_tensor(folder: Path, names: tuple[str, ...], change: Callable[[Array], Array]) -> bool:
    """Change the tensor whose name ends with one of `names`; whether there is one."""
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as opened:
            tensor = next((name for name in opened.keys() if name.endswith(names)), None)  # noqa: SIM118
            if tensor is None:
                continue
            metadata = opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        tensors[tensor] = np.ascontiguousarray(change(tensors[tensor]))
        scratch = file.with_name(f".{file.name}")
        save_file(tensors, scratch, metadata)
        os.replace(scratch, file)
        return True
    return False


def _give_padding(folder: Path, config: dict[str, Any]) -> None:
    """Set the pad token to a special token that is no end token; add one if there is none.

    If the embedding matrix is not found, pad_token_id is None: the model then takes one text at a
    time.
    """
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokens = tokenizer.setdefault("added_tokens", [])
    ends = config.get("eos_token_id")
    ends = [*(ends if isinstance(ends, list) else [ends]), None]
    ends += [token["id"] for token in tokens if token["content"] == end_token(settings)]
    known = {token["id"]: token for token in tokens if token["special"]}
    candidates = [config.get("pad_token_id"), *known]
    pad_id = next((token for token in candidates if token not in ends and token in known), None)
    if pad_id is None and config.get("pad_token_id") not in ends:
        return
    if pad_id is None:
        pad_id = (
            max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokens)]) + 1
        )
        if pad_id >= config["vocab_size"]:
            if not _change_tensor(folder, EMBEDDINGS, lambda rows: np.vstack([rows, 0 * rows[:1]])):
                config["pad_token_id"] = None
                return
            config["vocab_size"] = pad_id + 1
        known[pad_id] = {"id": pad_id, "content": "<|padding|>", "special": True}
        known[pad_id] |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokens.append(known[pad_id])
        write(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False))
    config["pad_token_id"] = pad_id
    settings["pad_token"] = known[pad_id]["content"]
    write(folder / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False))


def export_pairs(sources: Mapping[str, Path], target: Path, *, is_spaced: bool = False) -> int:
    """Write `<split>.jsonl` of the cleaned pairs of each split, as TRL takes them.

    sources: by split, the file of its raw or relabelled pairs. is_spaced: as in `cleaned_pairs`.
    If any pair came as messages, all are written as messages: a file has one form. Returns how
    many pairs were left out because one of their answers is empty.
    """
    as_messages = any("messages" in row for path in sources.values() for row in read_rows(path))
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
    """The rows of raw or relabelled pairs as TRL takes them: flipped ones swapped, without
    those of weight 0. All have the same fields, of the same types.

    `probability`, that `chosen` is better, is the pair's label: TRL takes a `label` for that of one
    answer, and refuses it beside two. None in place of a pair with an empty answer: only the end
    token behind it makes it one. as_messages: in TRL's conversational form; what came as text is
    split into messages. is_spaced: text answers get a leading space, as TRL joins prompt and answer
    without one. Raises NoProbabilityError for a label above 1.
    """
    for row in read_rows(path):
        if row.get("weight", 1.0) == 0:
            continue
        label = float(row.get("label", 1.0))
        if label > 1:
            raise NoProbabilityError(
                f"pair {row['id']!r} has the label {label:.2f} of an unbiased loss, which only "
                "trimtab's trainers read: `probability` is in [0, 1]; allowed: relabel.noise=none "
                "or posterior"
            )
        is_flipped = bool(row.get("is_flipped"))
        better, worse = ("rejected", "chosen") if is_flipped else ("chosen", "rejected")
        if not (row["chosen"].strip() and row["rejected"].strip()):
            yield None
            continue
        texts = {name: row[name] for name in TEXTS}
        if as_messages:
            split = dict(zip(TEXTS, split_dialogue(*texts.values()), strict=True))
            texts = row.get("messages") or split
        elif is_spaced:
            texts |= {name: f" {texts[name]}" for name in (better, worse)}
        yield {
            "id": str(row["id"]),
            "prompt": texts["prompt"],
            "chosen": texts[better],
            "rejected": texts[worse],
            "category": row.get("category") or "",
            "probability": label,
            "margin": float(row.get("margin", 0.0)),
            "weight": float(row.get("weight", 1.0)),
            "is_flipped": is_flipped,
        }
