"""Attention over short packed rows: in a few products, beside a call for each row and response.

    python -m tests.bench.short_rows

Sixteen pairs of so many tokens on average, half of them the prompt's; one core, one layer. Prints
milliseconds of the pass and of pass and gradient, medians of five turns in which one runs right
after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trimtab.models.nets.attention import _attend_rows, further_mask
from trimtab.models.nets.short_rows import attend_short_rows

TOKENS = (16, 27, 48, 64, 96)
HEADS = ((4, 32), (9, 64))
NUM_ROWS, TURNS, TIMES = 16, 5, 20


def main() -> None:
    """Measure each size, print."""
    torch.set_num_threads(1)
    print("| heads, features | tokens | a call a row: pass, with gradient | products: the same |")
    print("|---|---|---|---|")
    for heads, width in HEADS:
        for tokens in TOKENS:
            cells = [f"{one:.2f}, {both:.2f}" for one, both in seconds(heads, width, tokens)]
            print(f"| {heads}, {width} | {tokens} | {' | '.join(cells)} |")


def seconds(heads: int, width: int, tokens: int) -> list[tuple[float, float]]:
    """Milliseconds of a pass, and of one with gradient, of either way."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(NUM_ROWS, 3, generator=generator).mul(0.4).add(0.8)
    sizes = sizes.mul(torch.tensor([0.5, 0.25, 0.25]) * tokens).int()
    lengths = tuple(map(tuple, sizes.tolist()))
    shape = (1, int(sizes.sum()), heads, width)
    query, key, value = states = [
        torch.randn(shape, generator=generator).transpose(1, 2).requires_grad_() for _ in range(3)
    ]
    mask = further_mask(lengths, torch.float32, torch.device("cpu"))

    def by_row() -> Tensor:
        attended = _attend_rows(query, key, value, mask, 0.0, None, lengths)
        return attended.transpose(1, 2).contiguous()

    ways = by_row, partial(attend_short_rows, query, key, value, lengths, width**-0.5)
    torch.testing.assert_close(*(way() for way in ways))
    turns = [[(_time(way, []), _time(way, states)) for way in ways] for _ in range(TURNS)]
    return [
        (statistics.median(one for one, _ in way), statistics.median(both for _, both in way))
        for way in zip(*turns, strict=True)
    ]


def _time(way: Callable[[], Tensor], states: list[Tensor]) -> float:
    start = time.perf_counter()
    for _ in range(TIMES):
        with torch.set_grad_enabled(bool(states)):
            output = way()
        if states:
            torch.autograd.grad(output.sum(), states)
    return (time.perf_counter() - start) / TIMES * 1e3


if __name__ == "__main__":
    main()
