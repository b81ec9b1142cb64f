"""Stage `embeddings`: a vector of each answer of all pairs.

A sentence encoder reads the answer alone. A policy reads the prompt too; an answer is the mean of
its tokens' hidden states and the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models import counts
from trimtab.models.config.reward import POLICY, EmbeddingsConfig
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates
from trimtab.models.training.data import SPLITS, context_length, read_pairs, read_rows
from trimtab.models.training.embedding import embed
from trimtab.models.training.progress import Progress, write_json
from trimtab.models.training.scoring import distinct_rows, trunk_activations
from trimtab.models.training.trunk_cache import cached_trunk

NUM_REPORTS = 40

_Key = tuple[tuple[int, ...], tuple[int, ...]]


def run(config: EmbeddingsConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`; of the encoder `policy` also `policy`, and `trunk` if it is there.

    Output: embeddings.safetensors, a tensor a split (N, 2, D): the chosen and the rejected answer
    of each of its pairs, in their order, float16; sentence embeddings are of unit length. Raises
    ValueError for a layer that the policy does not have.
    """
    if config.encoder == POLICY:
        found, summary = hidden_states(config, inputs, Progress(workdir))
    else:
        found, summary = sentence_embeddings(config, inputs, Progress(workdir))
    output = workdir / "output"
    output.mkdir(parents=True, exist_ok=True)
    save_file(found, output / "embeddings.safetensors")
    write_json(
        output / "summary.json",
        {
            "num_pairs": sum(map(len, found.values())),
            "num_dimensions": found[SPLITS[0]].shape[-1],
            **summary,
        },
    )


def sentence_embeddings(
    config: EmbeddingsConfig, inputs: dict[str, Path], progress: Progress
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Vectors (N, 2, D) by split; each different answer is encoded once."""
    rows = {split: read_rows(inputs["preferences"] / f"{split}.jsonl") for split in SPLITS}
    texts = [
        row[answer] for own in rows.values() for row in own for answer in ("chosen", "rejected")
    ]
    found = torch.from_numpy(embed(texts, config.encoder, progress)).half()
    parts = found.view(-1, 2, found.shape[-1]).split([len(own) for own in rows.values()])
    return (
        {split: part.contiguous() for split, part in zip(rows, parts, strict=True)},
        {"num_texts": len(set(texts))},
    )


def hidden_states(
    config: EmbeddingsConfig, inputs: dict[str, Path], progress: Progress
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Vectors (N, 2, 2 H) by split, from the cached trunk where it ends at the layer."""
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    model = load_policy(inputs["policy"] / "model").eval()
    count = len(layers_of(model))
    depth = counts.layer_of_vectors(config.layer, count)
    if depth > count:
        raise ValueError(f"layer must be in [1, {count}] (the policy's layers), found {depth}")
    stored = cached_trunk(inputs, model)
    if stored is not None and stored.depth != depth:
        stored = None
    limit = context_length(model.config)
    rows = {
        split: read_pairs(inputs["preferences"] / f"{split}.jsonl", tokenizer, limit, stored).rows
        for split in SPLITS
    }
    known: dict[_Key, Tensor] = {}
    if stored is None:
        known = _vectors(model, [row for own in rows.values() for row in own], depth, progress)
    found = {}
    for split, own in rows.items():
        size = (len(own), 2, 2 * model.config.hidden_size)
        found[split] = torch.empty(size, dtype=torch.float16, device="cpu")
        for index, row in enumerate(own):
            if row.lower is not None:
                found[split][index] = answer_vectors(row, row.lower.values)
            else:
                found[split][index] = torch.stack([known[_key(row, r)] for r in row.responses])
    return found, {"layer": depth}


def _vectors(
    model: PreTrainedModel, rows: Sequence[Candidates], depth: int, progress: Progress
) -> dict[_Key, Tensor]:
    """By prompt and response; each different response to a prompt is passed once."""
    merged = distinct_rows(rows)
    found: dict[_Key, Tensor] = {}
    for done, (index, states) in enumerate(trunk_activations(model, merged, depth), start=1):
        row = merged[index]
        keys = [_key(row, response) for response in row.responses]
        found.update(zip(keys, answer_vectors(row, states), strict=True))
        if done % max(1, len(merged) // NUM_REPORTS) == 0 or done == len(merged):
            progress.advance(done, len(merged))
    return found


def _key(row: Candidates, response: Sequence[int]) -> _Key:
    return tuple(row.prompt), tuple(response)


def answer_vectors(row: Candidates, states: Tensor) -> Tensor:
    """(2, 2 H) of both responses: the mean of its tokens' states (T, H), and the last of them.

    float16, in which what is out of range is its largest number.
    """
    parts = states.split([len(row.prompt), *map(len, row.responses)])
    found = torch.stack([torch.cat([own.mean(0), own[-1]]) for own in parts[1:]])
    largest = torch.finfo(torch.float16).max
    return found.clamp(-largest, largest).half().cpu()
