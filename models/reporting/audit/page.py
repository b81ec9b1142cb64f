"""Writing the page: the first screen, the index of all pairs, the script, then the texts.

The index holds what the page filters and sorts by; it is unpacked at once. Texts and votes are in
blocks, unpacked when shown. Both are gzip in base64, which cannot contain HTML markup.

Nothing of the data can become markup or script: the template escapes names, texts are in base64
until the script makes text nodes of them, and the page's content security policy lets no script and
no style run but its own, by their hashes, and nothing be requested.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.data.row_account import RowAccount
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.summary import Summary
from trimtab.models.reporting.kit.audit_words import changes_made, really_wrong, voters_warnings
from trimtab.models.reporting.kit.html import new_environment, read_text, stylesheet
from trimtab.models.reporting.static import audit as scripts

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
# What it shows of a pair in view, beside the votes.
CONTENT = (
    "prompt", "chosen", "rejected", "label", "margin", "weight", "review", "votes", "truth",
    "source", "repeats", "contradicts",
)  # fmt: skip
# Modules, in the order in which they run. The page may load nothing: there they are one script and
# share one scope, without what heads them (comments and imports) and without the word `export`.
SCRIPTS = ("data.js", "words.js", "pair.js", "histogram.js", "choose.js", "review.js", "start.js")
HEAD = re.compile(r"\A(//.*\n|import [^;]*;\n|\n)*")
EXPORT = re.compile(r"^export ", re.MULTILINE)


def write_page(
    path: Path,
    config: AuditConfig,
    summary: Summary,
    pairs: Sequence[AuditedPair],
    account: RowAccount | None = None,
) -> None:
    """Write the page of `pairs`, which stand in the order to show them.

    account: where the rows went that they were read from; None where they were made.
    """
    has_recipe = config.recipe and not config.voters
    name = f"Label audit: {config.recipe}, seed {config.seed}" if has_recipe else "Label audit"
    style, script = stylesheet("base.css", "audit.css"), page_script()
    numbers, template = summary.numbers(), new_environment().get_template("audit.html.j2")
    pieces = template.generate(
        title=name,
        config=config,
        summary=summary,
        overall=summary.overall,
        really_wrong=really_wrong(numbers, summary.overall.num_looks_wrong),
        account=account,
        warnings=voters_warnings(numbers),
        changes=list(changes_made(numbers)),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        index=packed_index(pairs, summary.voters),
        blocks=packed_blocks(pairs),
    )
    with path.open("w", encoding="utf-8") as page:
        page.writelines(pieces)
        page.write("\n")


def page_script() -> Markup:
    """The modules as one script."""
    modules = (EXPORT.sub("", HEAD.sub("", read_text(scripts, name), count=1)) for name in SCRIPTS)
    return Markup(
        '(() => {\n"use strict";' + "".join(f"\n{module}" for module in modules) + "})();"
    )


def _hash(text: str) -> str:
    """A source of the content security policy: what is inline may be just this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def weakest_first(pairs: Sequence[AuditedPair]) -> list[AuditedPair]:
    """Pairs by strength, those of equal strength by id."""
    return sorted(pairs, key=lambda pair: (pair.strength_mean, pair.id))


def packed_index(pairs: Sequence[AuditedPair], voters: Sequence[str] = ()) -> str:
    """What the page has of every one of `pairs`, in their order: a list for each property.

    voters: what the members are called; none: they are reward models, which have no names.
    `reach`: end of the vote axis, the 99th percentile of |difference|, so that outliers do not
    squeeze the rest.
    """
    categories = sorted({pair.category_name for pair in pairs})
    category_index = {category: index for index, category in enumerate(categories)}
    splits = list(dict.fromkeys(pair.split for pair in pairs))
    as_read = sorted(range(len(pairs)), key=lambda row: _file_and_line(pairs[row].source))
    order = {row: index for index, row in enumerate(as_read)}
    sizes = sorted(abs(d) for pair in pairs for d in pair.differences if d is not None) or [0.0]
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
            "category": [category_index[pair.category_name] for pair in pairs],
            "split": [splits.index(pair.split) for pair in pairs],
            "flags": [
                sum(1 << bit for bit, flag in enumerate(FLAGS) if getattr(pair, flag))
                for pair in pairs
            ],
            "deviation": [_rounded(pair.strength_std) for pair in pairs],
            "order": [order[row] for row in range(len(pairs))],
        }
    )


def packed_blocks(pairs: Sequence[AuditedPair]) -> Iterator[str]:
    """Texts, votes and treatment of `pairs`, in their order, BLOCK_SIZE in a block."""
    for start in range(0, len(pairs), BLOCK_SIZE):
        block = pairs[start : start + BLOCK_SIZE]
        yield _packed(
            [
                {name: getattr(pair, name) for name in CONTENT}
                | {"differences": [None if d is None else _rounded(d) for d in pair.differences]}
                for pair in block
            ]
        )


def _file_and_line(source: str) -> tuple[str, int]:
    """File and line of a source, to sort by."""
    file, _, line = source.rpartition(":")
    line = line.partition(",")[0]  # of several rows that made the pair, the first
    return (file, int(line)) if line.isdecimal() else (source, 0)


def _digest(pairs: Sequence[AuditedPair]) -> str:
    """Identifies the set of pairs, whatever the votes; the browser stores a review under it."""
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
