"""Stage `trunk_cache`: the frozen lower layers' output for every preference pair, computed once;
so is that of a response which several pairs have.

Every scorer that starts from the same policy and trains its upper layers only reads it, be it to
train or to score, and so passes its upper layers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from trimtab.models.config.reward import TrunkCacheConfig
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.trunk import trunk_digest
from trimtab.models.training.data import SPLITS, context_length, read_pairs
from trimtab.models.training.progress import Progress, write_json
from trimtab.models.training.scoring import distinct_rows, trunk_activations
from trimtab.models.training.trunk_cache import write_trunk

NUM_REPORTS = 40


def run(config: TrunkCacheConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `policy`, `preferences`. Output: train, validation and test.safetensors."""
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    model = load_policy(inputs["policy"] / "model").eval()
    depth = num_frozen_layers(model, config.trainable_layers)
    if depth == 0:
        raise ValueError(
            f"trainable_layers is {config.trainable_layers}, as many as the model has: no frozen "
            "layer is left whose output could be cached; leave trainable_layers out to train all"
        )
    limit = context_length(model.config)
    pairs = {
        split: read_pairs(inputs["preferences"] / f"{split}.jsonl", tokenizer, limit).rows
        for split in SPLITS
    }
    progress = Progress(workdir)
    metadata = {"depth": str(depth), "digest": trunk_digest(model, depth)}
    merged = {split: distinct_rows(rows) for split, rows in pairs.items()}
    done, total = 0, sum(map(len, merged.values()))

    def counted(states: Iterator[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        nonlocal done
        for state in states:
            yield state
            done += 1
            if done % max(1, total // NUM_REPORTS) == 0 or done == total:
                progress.advance(done, total)

    for split, rows in pairs.items():
        states = counted(trunk_activations(model, merged[split], depth))
        path = workdir / "output" / f"{split}.safetensors"
        parts = _parts(rows, merged[split], states)
        write_trunk(path, rows, parts, model.config.hidden_size, metadata)
    tokens = sum(row.num_tokens for rows in merged.values() for row in rows)
    write_json(workdir / "output" / "summary.json", {"num_layers": depth, "num_tokens": tokens})


def _parts(
    rows: Sequence[Candidates],
    merged: Sequence[Candidates],
    states: Iterable[tuple[int, Tensor]],
) -> Iterator[tuple[int, int, Tensor]]:
    """The states of `merged` for every one of `rows` that has its prompt, or one of its responses:
    index, part (0 the prompt, from 1 the responses) and states (T, H)."""
    prompts: dict[tuple[int, ...], list[int]] = {}
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        prompts.setdefault(tuple(row.prompt), []).append(index)
        for part, response in enumerate(row.responses, start=1):
            places.setdefault((tuple(row.prompt), tuple(response)), []).append((index, part))
    for number, own in states:
        row = merged[number]
        parts = own.split([len(row.prompt), *map(len, row.responses)])
        for index in prompts.pop(tuple(row.prompt), []):
            yield index, 0, parts[0]
        for response, part_states in zip(row.responses, parts[1:], strict=True):
            for index, part in places[tuple(row.prompt), tuple(response)]:
                yield index, part, part_states
