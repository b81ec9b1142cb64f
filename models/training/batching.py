"""Batches of packed rows: seeded order, similar lengths together, bounded tokens per forward."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from trimtab.models.nets import counts
from trimtab.models.nets.packing import Candidates
from trimtab.models.training import distributed


def epoch_batches(
    lengths: Sequence[int],
    batch_size: int,
    seed: int,
    epoch: int,
    most_tokens: int | None = None,
    least: int = 1,
) -> list[list[int]]:
    """Indices of one epoch's batches.

    Shuffled, then sorted by length within pools of 16 batches, then the batches shuffled: an order
    that the seed and the epoch alone determine. Every index comes once.

    most_tokens: of a batch, which then has `least` to `batch_size` rows; None: `batch_size`.
    """
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    pools = counts.spans(len(order), batch_size * 16)
    order = [
        index
        for pool in pools
        for index in sorted(order[pool.start : pool.stop], key=lambda index: lengths[index])
    ]
    spans: Iterable[range] = counts.spans(len(order), batch_size)
    if most_tokens is not None:
        spans = counts.token_spans([lengths[i] for i in order], most_tokens, least, batch_size)
    batches = [[order[place] for place in span] for span in spans]
    rng.shuffle(batches)
    return batches


def micro_batches(rows: Sequence[Candidates], max_tokens: int) -> Iterator[list[int]]:
    """Split a batch into parts of at most `max_tokens` tokens (a longer row goes alone)."""
    return counts.micro_batches([row.num_tokens for row in rows], max_tokens)


def local_micro_batches(rows: Sequence[Candidates], max_tokens: int) -> Iterator[list[int]]:
    """This rank's share of rows as micro batches of indices.

    Fewer rows than ranks are everybody's; `distributed.replication` says how often each is.
    """
    order = sorted(range(len(rows)), key=lambda index: rows[index].num_tokens)
    mine = distributed.rank_batch(order)
    for part in micro_batches([rows[index] for index in mine], max_tokens):
        yield [mine[place] for place in part]


def endless_batches(count: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Batches of indices for ever, epoch after epoch, each epoch in a new seeded order."""
    epoch = 0
    while True:
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        size = counts.num_taken(count, batch_size)
        for index in range(max(count // batch_size, 1)):
            yield order[index * size : (index + 1) * size]
        epoch += 1
