"""The page's data: an index of all pairs and their texts in blocks, each gzipped, in base64.

What is filtered and sorted by is in the index, which the page unpacks at once; texts and votes are
in blocks of which it unpacks those it shows. Base64 holds nothing that HTML could take for markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from trimtab.models.reporting.audit.pairs import AuditedPair

BLOCK_SIZE = 400
# What the page filters by, in the order of its bits in data.js.
FLAGS = (
    "looks_wrong",
    "is_disputed",
    "is_flipped",
    "is_smoothed",
    "is_flip_unsupported",
    "repeats",
    "contradicts",
    "is_explained_by_length",
    "is_divided",
)
NO_CATEGORY = "no category"  # as data.js has it


def weakest_first(pairs: Sequence[AuditedPair]) -> list[AuditedPair]:
    """Pairs by strength, those of equal strength by id."""
    return sorted(pairs, key=lambda pair: (pair.strength_mean, pair.id))


def packed_index(pairs: Sequence[AuditedPair], voters: Sequence[str] = ()) -> str:
    """What the page has of every one of `pairs`, in their order: a list for each property.

    voters: what the members are called; none: they are reward models, which have no names.
    `reach` is where its scale of votes ends; the outermost hundredth would squeeze all others.
    """
    categories = sorted({category_of(pair) for pair in pairs})
    place = {category: number for number, category in enumerate(categories)}
    splits = list(dict.fromkeys(pair.split for pair in pairs))
    as_read = sorted(range(len(pairs)), key=lambda row: _place(pairs[row].source))
    order = {row: number for number, row in enumerate(as_read)}
    sizes = sorted(abs(d) for pair in pairs for d in pair.differences if d is not None)
    return _packed(
        {
            "digest": _digest(pairs),
            "block_size": BLOCK_SIZE,
            "voters": list(voters),
            "categories": categories,
            "splits": splits,
            "reach": _rounded(sizes[int(0.99 * (len(sizes) - 1))]) or 1.0,
            "ids": [pair.id for pair in pairs],
            "strength": [_rounded(pair.strength_mean) for pair in pairs],
            "category": [place[category_of(pair)] for pair in pairs],
            "split": [splits.index(pair.split) for pair in pairs],
            "flags": [_flags(pair) for pair in pairs],
            "deviation": [_rounded(pair.strength_std) for pair in pairs],
            "order": [order[row] for row in range(len(pairs))],
        }
    )


def packed_blocks(pairs: Sequence[AuditedPair]) -> Iterator[str]:
    """Texts, votes and treatment of `pairs`, in their order, BLOCK_SIZE in a block."""
    for start in range(0, len(pairs), BLOCK_SIZE):
        yield _packed([_content(pair) for pair in pairs[start : start + BLOCK_SIZE]])


def category_of(pair: AuditedPair) -> str:
    """A pair's category as a word."""
    return pair.category or NO_CATEGORY


def _content(pair: AuditedPair) -> dict[str, Any]:
    same = ("prompt", "chosen", "rejected", "label", "margin", "weight", "review", "votes", "truth")
    return {name: getattr(pair, name) for name in (*same, "source")} | {
        "repeats": pair.repeats,
        "contradicts": pair.contradicts,
        "differences": [None if d is None else _rounded(d) for d in pair.differences],
    }


def _flags(pair: AuditedPair) -> int:
    return sum(1 << bit for bit, name in enumerate(FLAGS) if getattr(pair, name))


def _place(source: str) -> tuple[str, int]:
    """File and line of a source, to sort by."""
    file, _, line = source.rpartition(":")
    line = line.partition(",")[0]  # of several rows that made the pair, the first
    return (file, int(line)) if line.isdecimal() else (source, 0)


def _digest(pairs: Sequence[AuditedPair]) -> str:
    """Names the pairs, whatever was voted on them: the browser keeps a review under it."""
    digest = hashlib.sha256()
    for pair in sorted(pairs, key=lambda pair: pair.id):
        for text in (pair.id, pair.prompt, pair.chosen, pair.rejected):
            digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]


def _rounded(value: float) -> float:
    return round(value, 4)


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")
