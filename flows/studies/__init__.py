"""What the runs of a study have to make: the arms of every table and figure, a module a paper."""

from trimtab.flows.studies import (  # noqa: F401  (they register their arms)
    advantage_model,
    constants,
    frontier,
    human_votes,
    part_one,
    part_two,
    rlaif,
)
