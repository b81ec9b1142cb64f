"""Which arms each table and figure needs."""

from __future__ import annotations

from collections.abc import Callable

from flows.run import Run
from flows.studies import (
    advantage_model,
    constants,
    frontier,
    part_one,
    part_two,
    people,
    rlaif,
)

ARMS: dict[str, Callable[[Run], None]] = {
    "part-1-figure-4": part_one.vanilla_ppo,
    "part-1-figure-6": part_one.scores,
    "part-1-figure-7": part_one.constraints,
    "part-1-figure-8": part_one.starts,
    "part-1-figure-9": part_one.ppo_max,
    "part-2-figure-1": part_two.strength,
    "part-2-figure-2": part_two.strength,
    "part-2-figure-3": part_two.strength,
    "part-2-figure-4": part_two.tenths,
    "part-2-figure-5": part_two.weakest,
    "part-2-figure-6": part_two.strongest,
    "part-2-figure-7": part_two.margins,
    "part-2-figure-8": part_two.methods_by_step,
    "part-2-figure-9": part_two.free_policies,
    "part-2-figure-10": part_two.free_policies,
    "part-2-figure-11": part_two.features_of_scorers,
    "part-2-figure-12": part_two.contrastive_policies,
    "part-2-figure-13": part_two.contrastive_policies,
    "part-2-table-2": part_two.rounds,
    "part-2-table-3": part_two.rounds,
    "part-2-figure-15": part_two.rounds,
    "part-2-figure-16": part_two.rounds,
    "part-2-figure-17": part_two.rounds,
    "advantage-model-table-1": advantage_model.scorers,
    "advantage-model-table-2": advantage_model.policies,
    "advantage-model-figure-1": advantage_model.forgetting,
    "advantage-model-figure-2": advantage_model.scorers,
    "advantage-model-figure-3": advantage_model.scorers,
    "advantage-model-figure-4": advantage_model.scorers,
    "advantage-model-figure-5": advantage_model.policies,
    "advantage-model-figure-6": constants.num_clusters,
    "people-votes": people.votes,
    "people-planted-flips": people.planted_flips,
    "rlaif-alignment": rlaif.alignment,
    "optimisers-frontier": frontier.frontier,
    "constants-smoothing": constants.smoothing,
    "constants-margin-clip": constants.margin_clip,
    "constants-temperature": constants.temperature,
    "constants-num-policies": constants.num_policies,
    "constants-num-clusters": constants.num_clusters,
    "constants-per-cluster": constants.per_cluster,
    "constants-meta-step": constants.meta_step,
}
