"""How many threads a stage gets."""

from __future__ import annotations

import pytest

from tasks.perform import ALONE, num_threads


@pytest.mark.parametrize(
    ("number", "cores", "threads"),
    [
        (5, 2, [1, 1, 1, 1, 2]),
        (4, 2, [1, 1, 1, 1]),
        (3, 8, [2, 2, 2]),
        (10, 4, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_like_stages_leave_no_core_idle(number: int, cores: int, threads: list[int]) -> None:
    assert [num_threads((index, number), cores) for index in range(number)] == threads


def test_one_alone_gets_all_and_one_among_others_gets_one() -> None:
    assert num_threads(ALONE, 6) == 6
    assert num_threads(None, 6) == 1
