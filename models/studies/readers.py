"""Which function reads which exhibit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.reporting.kit.artifacts import Artifacts
from models.studies import (
    calibration,
    constants,
    frontier,
    labels,
    part_one,
    part_two,
    people,
    rehearsed,
    rlaif,
    rounds,
    scorers,
    validation_sets,
)
from models.studies.reading import Reading

READERS: dict[str, Callable[[Artifacts], Reading]] = {
    **{
        f"part-1-figure-{number}": reader
        for number, reader in {
            4: part_one.figure_4,
            6: part_one.figure_6,
            7: part_one.figure_7,
            8: part_one.figure_8,
            9: part_one.figure_9,
        }.items()
    },
    **{
        f"part-2-figure-{number}": reader
        for number, reader in {
            1: labels.figure_1,
            2: labels.figure_2,
            3: labels.figure_3,
            4: scorers.figure_4,
            5: scorers.figure_5,
            6: scorers.figure_6,
            7: scorers.figure_7,
            8: validation_sets.figure_8,
            9: part_two.figure_9,
            10: part_two.figure_10,
            11: part_two.figure_11,
            12: part_two.figure_12,
            13: part_two.figure_13,
            15: rounds.figure_15,
            16: rounds.figure_16,
            17: rounds.figure_17,
        }.items()
    },
    "part-2-table-2": rounds.table_2,
    "part-2-table-3": rounds.table_3,
    "advantage-model-table-1": calibration.table_1,
    "advantage-model-table-2": rehearsed.table_2,
    **{
        f"advantage-model-figure-{number}": reader
        for number, reader in {
            1: calibration.figure_1,
            2: calibration.figure_2,
            3: calibration.figure_3,
            4: calibration.figure_4,
            5: rehearsed.figure_5,
            6: rehearsed.figure_6,
        }.items()
    },
    "people-votes": people.votes,
    "people-planted-flips": people.planted_flips,
    "rlaif-alignment": rlaif.alignment,
    "optimisers-frontier": frontier.frontier,
    **{f"constants-{name.replace('_', '-')}": reader for name, reader in constants.READERS.items()},
}
# What is said of all seeds together, beside the parts of the claim.
REMARKS: dict[str, Callable[[Sequence[Reading]], str]] = {
    "optimisers-frontier": frontier.gains_most
}
