"""Stage `trunk_cache`: the frozen lower layers' output for every preference pair, computed once;
so is that of a response which several pairs have.

Every scorer that starts from the same policy and trains its upper layers only reads it, be it to
train or to score, and so passes its upper layers alone.
"""

from __future__ import annotations

from trimtab.models.config.reward import TrunkCacheConfig
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.trunk import trunk_digest
from trimtab.models.training.data import splits_of
from trimtab.models.training.progress import Progress
from trimtab.models.training.scoring import num_parts, part_states
from trimtab.models.training.stage import Stage
from trimtab.models.training.trunk_cache import write_trunk


def run(config: TrunkCacheConfig, stage: Stage) -> None:
    """Inputs: `policy`, `preferences`. Output: train, validation and test.safetensors, of the
    splits that hold pairs."""
    model, tokenizer = stage.policy("policy")
    depth = num_frozen_layers(model, config.trainable_layers)
    if depth == 0:
        raise ValueError(
            f"trainable_layers is {config.trainable_layers}, as many as the model has: no frozen "
            "layer is left whose output could be cached; leave trainable_layers out to train all"
        )
    pairs = {
        split: stage.pairs(split, model, tokenizer).rows
        for split in splits_of(stage.inputs["preferences"])
    }
    metadata = {"depth": str(depth), "digest": trunk_digest(model, depth)}
    progress = Progress(stage.workdir, of=sum(map(num_parts, pairs.values())))
    for split, rows in pairs.items():
        states = progress.follow(part_states(model.eval(), rows, depth), num_parts(rows))
        path = stage.output / f"{split}.safetensors"
        write_trunk(path, rows, states, model.config.hidden_size, metadata)
    tokens = sum(row.num_tokens for rows in pairs.values() for row in rows)
    stage.write_summary({"num_layers": depth, "num_tokens": tokens})
