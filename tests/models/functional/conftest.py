"""Shared set-up of the formula tests: one thread, and random numbers that do not drift."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_fixed_seed() -> Iterator[None]:
    """Seed 0 and one torch thread for every test, the thread count restored afterwards."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(num_threads)
