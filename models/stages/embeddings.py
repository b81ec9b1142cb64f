"""Stage `embeddings`: a vector of each answer of all pairs.

A sentence encoder reads the answer alone. A language model reads the prompt too; an answer is the
mean of its tokens' hidden states and the last of them. A packaged model, which is taken as it is,
reads the dialogue as its chat template writes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trimtab.models.config.reward import POLICY, EmbeddingsConfig
from trimtab.models.data.messages import Message, chat_renderer, dialogue_of
from trimtab.models.data.words import UNKNOWN_TOKENS
from trimtab.models.nets import counts
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, encode
from trimtab.models.training.data import SPLITS, context_length
from trimtab.models.training.embedding import embed
from trimtab.models.training.progress import Progress
from trimtab.models.training.scoring import num_parts, part_states
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.trunk_cache import cached_trunk


def run(config: EmbeddingsConfig, stage: Stage) -> None:
    """Inputs: `preferences`; of the encoder `policy` also `policy`, and `trunk` if it is there.

    Output: embeddings.safetensors, a tensor a split (N, 2, D): the chosen and the rejected answer
    of each of its pairs, in their order, float16; sentence embeddings are of unit length. Raises
    ValueError for a layer that the policy does not have.
    """
    embed_pairs = hidden_states if config.is_language_model else sentence_embeddings
    vectors, summary = embed_pairs(config, stage)
    num_pairs, num_dimensions = sum(map(len, vectors.values())), vectors[SPLITS[0]].shape[-1]
    stage.write_summary({"num_pairs": num_pairs, "num_dimensions": num_dimensions, **summary})
    save_file(vectors, stage.output / "embeddings.safetensors")


def sentence_embeddings(
    config: EmbeddingsConfig, stage: Stage
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Vectors (N, 2, D) by split; each different answer is encoded once."""
    rows = {split: stage.rows("preferences", f"{split}.jsonl") for split in SPLITS}
    pairs = itertools.chain(*rows.values())
    texts = [row[answer] for row in pairs for answer in ("chosen", "rejected")]
    embedded = embed(texts, config.encoder, Progress(stage.workdir), np.float16)
    vectors = torch.from_numpy(embedded.vectors)
    parts = vectors.view(-1, 2, vectors.shape[-1]).split(list(map(len, rows.values())))
    return (
        {split: part.contiguous() for split, part in zip(rows, parts, strict=True)},
        {
            "num_texts": embedded.num_texts,
            "share_in_windows": embedded.share_in_windows,
            UNKNOWN_TOKENS: embedded.share_unknown,
        },
    )


def hidden_states(
    config: EmbeddingsConfig, stage: Stage
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Vectors (N, 2, 2 H) by split, from the cached trunk where it ends at the layer."""
    is_policy = config.encoder == POLICY
    source = stage.inputs["policy"] / "model" if is_policy else config.encoder
    tokenizer, model = load_tokenizer(source), load_policy(source, is_frozen=not is_policy).eval()
    count = len(layers_of(model))
    depth = counts.layer_of_vectors(config.layer, count)
    if depth > count:
        raise ValueError(f"layer must be in [1, {count}] (the model's layers), found {depth}")
    stored = cached_trunk(stage.inputs, model)
    if stored is not None and stored.depth != depth:
        stored = None
    limit = context_length(model.config)
    rows = {}
    for split in SPLITS:
        if is_policy:
            rows[split] = stage.pairs(split, model, tokenizer, stored).rows
        else:
            pairs = stage.rows("preferences", f"{split}.jsonl")
            rows[split] = encode(tokenizer, *_dialogues(pairs, tokenizer), limit)
    progress = Progress(stage.workdir, of=sum(map(num_parts, rows.values())))
    vectors = {}
    for split, candidates in rows.items():
        size = (len(candidates), 2, 2 * model.config.hidden_size)
        vectors[split] = torch.empty(size, dtype=torch.float16, device="cpu")
        states = (
            part_states(model, candidates, depth) if stored is None else _stored_states(candidates)
        )
        for index, part, values in progress.follow(states, num_parts(candidates)):
            if part > 0:
                vectors[split][index, part - 1] = answer_vector(values)
    return vectors, {"layer": depth}


def _dialogues(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[list[str]]]:
    """Prompts as the chat template writes them, and the answers to each."""
    write = chat_renderer(tokenizer)
    dialogues: dict[str, str] = {row["prompt"]: row["prompt"] for row in rows}
    if write is not None:
        dialogues = {prompt: write(_prompt_messages(prompt)) for prompt in dialogues}
    answers = [[row[name].strip() for name in ("chosen", "rejected")] for row in rows]
    return [dialogues[row["prompt"]] for row in rows], answers


def _prompt_messages(prompt: str) -> list[Message]:
    """The messages before the answer; of a prompt that is a mark alone its text."""
    return dialogue_of(prompt, "")[:-1] or [{"role": "user", "content": prompt}]


def _stored_states(rows: Sequence[Candidates]) -> Iterator[tuple[int, int, Tensor]]:
    """As `part_states`, of rows that have their states."""
    for index, row in enumerate(rows):
        for part, values in enumerate(row.lower_parts()):
            yield index, part, values


def answer_vector(states: Tensor) -> Tensor:
    """(2 H,) float16: the mean of an answer's states (T, H), and the last of them.

    What is out of the range of float16 is its largest number.
    """
    largest = torch.finfo(torch.float16).max
    return torch.cat([states.mean(0), states[-1]]).clamp(-largest, largest).half().cpu()
