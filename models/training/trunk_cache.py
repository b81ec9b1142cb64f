"""Lower layers' states of all preference pairs in files: written by one stage, read by many.

One safetensors file a split: `values` (T, H), all rows' states one after another, and `lengths`
(N, 3), the tokens of each pair's prompt and responses. Files are mapped, not read: trainers that
run side by side share the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.packing import Candidates, TrunkActivations
from trimtab.models.nets.trunk import trunk_digest


def write_trunk(
    path: Path,
    rows: Sequence[Candidates],
    states: Iterable[tuple[int, int, Tensor]],
    hidden_size: int,
    metadata: dict[str, str],
) -> None:
    """Write the states of `rows`, which come part by part: a row's index, 0 for its prompt or the
    number of a response from 1, and its states (T, H).

    Each goes to its place in the file: all together can be more than the memory.
    """
    lengths = _lengths(rows)
    ends = lengths.flatten().cumsum(0).view(lengths.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = _new_file(path, lengths, hidden_size, metadata)
    for index, part, part_states in states:
        end = int(ends[index, part])
        values[end - len(part_states) : end] = part_states.cpu().numpy()
    values.flush()


def _new_file(
    path: Path, lengths: Tensor, hidden_size: int, metadata: dict[str, str]
) -> np.memmap[Any, Any]:
    """A safetensors file whose `lengths` are written; returns its `values`, mapped to be filled.

    Its layout: the header's size (8 bytes, little-endian), the header in JSON, the tensors' bytes.
    """
    stored, shape = lengths.numpy().astype("<i8").tobytes(), [int(lengths.sum()), hidden_size]
    end = len(stored) + 4 * shape[0] * shape[1]
    tensors = {
        "lengths": ("I64", list(lengths.shape), [0, len(stored)]),
        "values": ("F32", shape, [len(stored), end]),
    }
    header = json.dumps(
        {"__metadata__": metadata}
        | {
            name: {"dtype": dtype, "shape": size, "data_offsets": place}
            for name, (dtype, size, place) in tensors.items()
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + stored)
        start = file.tell()
        os.posix_fallocate(file.fileno(), start, end - len(stored))
    return np.memmap(path, "<f4", "r+", start, tuple(shape))


class CachedTrunk:
    """The stored states as `model` may use them: its own lower layers must have made them.

    Raises ValueError for states of other layers, or of none that the model has.
    """

    def __init__(self, folder: Path, model: PreTrainedModel) -> None:
        self.folder = folder
        metadata = self._open("train")[2]
        self.depth = int(metadata["depth"])
        layers = layers_of(model)
        if self.depth >= len(layers) or trunk_digest(model, self.depth) != metadata["digest"]:
            raise ValueError(
                f"{folder} holds the output of other lower layers ({self.depth} of them) than this "
                f"model of {len(layers)} has; they must come from the policy it was started from, "
                "and be frozen since"
            )
        self.owner = layers[self.depth - 1]

    def attach(self, split: str, rows: Sequence[Candidates]) -> list[Candidates]:
        """The pairs of a split, in the order and encoding they were written in, with states."""
        values, lengths, _ = self._open(split)
        if not torch.equal(lengths, _lengths(rows)):
            raise ValueError(
                f"{self.folder}/{split}.safetensors holds the states of other pairs: {len(lengths)}"
                f" pairs of {int(lengths.sum())} tokens, found {len(rows)} of "
                f"{sum(row.num_tokens for row in rows)}"
            )
        parts = values.split(lengths.sum(1).tolist())
        return [
            replace(row, lower=TrunkActivations(part, self.owner, self.depth))
            for row, part in zip(rows, parts, strict=True)
        ]

    def _open(self, split: str) -> tuple[Tensor, Tensor, dict[str, str]]:
        with safe_open(self.folder / f"{split}.safetensors", "pt") as file:
            return file.get_tensor("values"), file.get_tensor("lengths"), file.metadata()


def cached_trunk(inputs: dict[str, Path], model: PreTrainedModel) -> CachedTrunk | None:
    """The cached trunk output among a stage's inputs, if any."""
    return CachedTrunk(inputs["trunk"], model) if "trunk" in inputs else None


def _lengths(rows: Sequence[Candidates]) -> Tensor:
    lengths = [[len(row.prompt), *map(len, row.responses)] for row in rows]
    return torch.tensor(lengths, device="cpu")
