"""A stage under way: what it reads, and where it writes what it makes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_policy, load_scorer, load_tokenizer, save_model
from trimtab.models.training.data import SPLITS, Pairs, context_length, read_pairs, write_rows
from trimtab.models.training.trunk_cache import CachedTrunk, cached_trunk

Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """inputs: folders of earlier stages' artifacts, by name.

    workdir: a folder with the stage's checkpoints and metrics.
    """

    inputs: dict[str, Path]
    workdir: Path

    @property
    def output(self) -> Path:
        """The folder that becomes the stage's artifact."""
        return self.workdir / "output"

    def several(self, name: str) -> list[Path]:
        """The input `name`, then all `name_<number>` in the order of their numbers."""
        split = [key.rpartition("_") for key in self.inputs]
        numbers = sorted(int(end) for stem, _, end in split if stem == name and end.isdecimal())
        names = (name, *(f"{name}_{number}" for number in numbers))
        return [self.inputs[key] for key in names if key in self.inputs]

    def roles_by_seed(self) -> dict[int, dict[str, Path]]:
        """The inputs named `<seed>.<role>`: by seed, in order, and role."""
        roles: dict[int, dict[str, Path]] = {}
        for name, path in self.inputs.items():
            seed, dot, role = name.partition(".")
            if dot:
                roles.setdefault(int(seed), {})[role] = path
        return dict(sorted(roles.items()))

    def rows(self, name: str, file: str) -> list[Row]:
        """The rows of an input's file of JSON lines."""
        return read_rows(self.inputs[name] / file)

    def rows_by_split(self) -> Iterator[tuple[str, Row]]:
        """Split and row of every pair of the input `preferences`."""
        for split in SPLITS:
            for row in self.rows("preferences", f"{split}.jsonl"):
                yield split, row

    def policy(
        self, name: str, *, is_frozen: bool = False
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """An input's language model and its tokenizer. is_frozen: as in `load_base_policy`."""
        folder = self.inputs[name] / "model"
        return load_policy(folder, is_frozen=is_frozen), load_tokenizer(folder)

    def scorer(self, name: str) -> PreTrainedModel:
        """An input's scorer, which is not trained."""
        return load_scorer(self.inputs[name] / "model", is_frozen=True)

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """The tokenizer of an input's model."""
        return load_tokenizer(self.inputs[name] / "model")

    def training_pairs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Pairs:
        """Those of `pairs`, else of `preferences`, with the states of `trunk` where it is given."""
        path = self.inputs.get("pairs", self.inputs["preferences"]) / "train.jsonl"
        states = cached_trunk(self.inputs, model)
        return read_pairs(path, tokenizer, context_length(model.config), states)

    def pairs(
        self,
        split: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        states: CachedTrunk | None = None,
    ) -> Pairs:
        """Those of a split of `preferences`, as long as the model takes them."""
        path = self.inputs["preferences"] / f"{split}.jsonl"
        return read_pairs(path, tokenizer, context_length(model.config), states)

    def write_rows(self, file: str, rows: Iterable[Row]) -> None:
        """Write rows to a file of the output, as JSON lines."""
        write_rows(self.output / file, rows)

    def write_json(self, file: str, value: object) -> None:
        """Write a file of the output, refusing NaN and infinities."""
        path = self.output / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")

    def write_text(self, file: str, text: str) -> None:
        """Write a file of the output."""
        (self.output / file).write_text(text, encoding="utf-8")

    def write_plots(self, plots: Iterable[tuple[str, bytes]]) -> None:
        """Write plots, SVG by name, to the output's folder `plots`."""
        (self.output / "plots").mkdir()
        for name, svg in plots:
            (self.output / "plots" / f"{name}.svg").write_bytes(svg)

    def write_model(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str = "model"
    ) -> None:
        """Write a model and its tokenizer to a folder of the output."""
        save_model(model, tokenizer, self.output / name)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the stage's key numbers, which go to MLflow too."""
        self.write_json("summary.json", summary)
