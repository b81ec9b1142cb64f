"""A person's review of labels that came while a run waited: checked, and then kept in the store."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from trimtab.infra.store.manifest import Manifest
from trimtab.models.data import Source, read_review
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.context import base_context
from trimtab.tasks.sources import import_review, publish_review

NAME = "review.jsonl"  # of verdicts that came as text: as the audit page's download
SPLITS = ("train", "validation", "test")
_LINE_END = re.compile(r"[\r\n]")
_WORD = re.compile(r"\S")


def keep_review(text: str, file: str, pairs: ArtifactRef) -> str | None:
    """Check a review against the pairs it is of; its address in the store, for `relabel.review`.

    It is the text of the file that the audit page downloads, or a path or s3:// address of one;
    None where neither is given. Raises ValueError for both, trimtab.models.data.ReviewError with
    all that is wrong with it, and what `import_review` raises.
    """
    text, file = text.strip(), file.strip().rstrip("/")
    if text and file:
        raise ValueError(f"found verdicts and the file {file!r}; allowed: one of them")
    if not text and not file:
        return None
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        given = Path(scratch) / "given"
        given.mkdir()
        if text:
            (given / NAME).write_text(one_a_line(text), "utf-8")
        else:
            base_context().store.materialise(_found(import_review(file)), given)
        (path,) = given.iterdir()
        read_review(Source(str(path), name=path.name), _ids(pairs, Path(scratch) / "pairs"))
        kept = publish_review(path)
    return f"raw:{kept.key}/{path.name}"


def one_a_line(text: str) -> str:
    """JSON objects a line each, as a form's field of one line loses the ends of lines.

    Text that is not only JSON stays as it is, for the reader to say what is wrong.
    """
    decoder, found, at = json.JSONDecoder(), [], 0
    while word := _WORD.search(text, at):
        try:
            _, at = decoder.raw_decode(text, word.start())
        except (ValueError, RecursionError):
            return text
        found.append(_LINE_END.sub(" ", text[word.start() : at]) + "\n")
    return "".join(found)


def _ids(pairs: ArtifactRef, folder: Path) -> set[str]:
    """The ids of an artifact's pairs, of all splits."""
    base_context().store.materialise(_found(pairs), folder)
    found: set[str] = set()
    for split in SPLITS:
        with (folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
            found |= {json.loads(line)["id"] for line in lines}
    return found


def _found(ref: ArtifactRef) -> Manifest:
    store = base_context().store
    manifest = store.find(ref.stage, ref.key)
    if manifest is None:
        raise LookupError(f"artifact {ref} vanished from {store.url}")
    return manifest
