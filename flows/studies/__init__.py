"""What the runs of a study have to make: the arms of every table and figure, a module a paper."""

from trimtab.flows.studies import (
    advantage_model,
    constants,
    frontier,
    human_votes,
    part_one,
    part_two,
    rlaif,
)

__all__ = [
    "advantage_model",
    "constants",
    "frontier",
    "human_votes",
    "part_one",
    "part_two",
    "rlaif",
]
