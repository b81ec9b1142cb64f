"""Lower layers' states of all preference pairs in files: written by one stage, read by many.

One safetensors file a split: `values` (T, H), all rows' states one after another, and `lengths`
(N, 3), the tokens of each pair's prompt and responses. Files are mapped, not read: trainers that
run side by side share the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.packing import Candidates, TrunkActivations
from trimtab.models.nets.trunk import trunk_digest


def write_trunk(
    path: Path,
    rows: Sequence[Candidates],
    states: Iterable[tuple[int, Tensor]],
    hidden_size: int,
    metadata: dict[str, str],
) -> None:
    """Write the states of `rows`, which come one by one: a row's index, its states (T, H)."""
    lengths = _lengths(rows)
    ends = lengths.sum(1).cumsum(0)
    values = torch.empty(int(ends[-1]), hidden_size, device="cpu")
    for index, own in states:
        end = int(ends[index])
        values[end - len(own) : end] = own
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"values": values, "lengths": lengths}, path, metadata)


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
            replace(row, lower=TrunkActivations(own, self.owner, self.depth))
            for row, own in zip(rows, parts, strict=True)
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
