"""Stage `embeddings`: sentence embeddings of the answers of all pairs."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from trimtab.models.config.reward import EmbeddingsConfig
from trimtab.models.training.data import SPLITS, read_rows
from trimtab.models.training.embedding import embed
from trimtab.models.training.progress import Progress, write_json


def run(config: EmbeddingsConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`. Output: embeddings.safetensors, a tensor a split (N, 2, D), float16:
    the chosen and the rejected answer of each of its pairs, in their order, of unit length."""
    rows = {split: read_rows(inputs["preferences"] / f"{split}.jsonl") for split in SPLITS}
    texts = [
        row[answer] for own in rows.values() for row in own for answer in ("chosen", "rejected")
    ]
    found = torch.from_numpy(embed(texts, config.encoder, Progress(workdir))).half()
    parts = found.view(-1, 2, found.shape[-1]).split([len(own) for own in rows.values()])
    tensors = {split: part.contiguous() for split, part in zip(rows, parts, strict=True)}
    output = workdir / "output"
    output.mkdir(parents=True, exist_ok=True)
    save_file(tensors, output / "embeddings.safetensors")
    write_json(
        output / "summary.json",
        {
            "num_pairs": len(texts) // 2,
            "num_texts": len(set(texts)),
            "num_dimensions": found.shape[-1],
        },
    )
