"""Batches of packed rows: seeded order, similar lengths together, bounded tokens per forward."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from models.nets.packing import Candidates
from models.training import distributed


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int
) -> list[list[int]]:
    """Indices of one epoch's batches.

    Shuffled, then sorted by length within pools of 16 batches, then the batches shuffled: an order
    that the seed and the epoch alone determine. Every index comes once.
    """
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    batches: list[list[int]] = []
    pool = batch_size * 16
    for start in range(0, len(order), pool):
        chunk = sorted(order[start : start + pool], key=lambda index: lengths[index])
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    rng.shuffle(batches)
    return batches


def micro_batches(rows: Sequence[Candidates], max_tokens: int) -> Iterator[list[int]]:
    """Split a batch into parts of at most `max_tokens` tokens (a longer row goes alone)."""
    part: list[int] = []
    tokens = 0
    for index, row in enumerate(rows):
        if part and tokens + row.num_tokens > max_tokens:
            yield part
            part, tokens = [], 0
        part.append(index)
        tokens += row.num_tokens
    if part:
        yield part


def my_parts(rows: Sequence[Candidates], max_tokens: int) -> Iterator[list[int]]:
    """This rank's share of rows as micro batches of indices.

    Fewer rows than ranks are everybody's; `ranks.times_counted` says how often each is.
    """
    order = sorted(range(len(rows)), key=lambda index: rows[index].num_tokens)
    mine = distributed.share(order)
    for part in micro_batches([rows[index] for index in mine], max_tokens):
        yield [mine[place] for place in part]


def endless(count: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Batches of indices for ever, epoch after epoch, each epoch in a new seeded order."""
    epoch = 0
    while True:
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        usable = max(count // batch_size, 1)
        for index in range(usable):
            yield order[index * batch_size : (index + 1) * batch_size]
        epoch += 1
