"""Files that people give a run: brought into the store under their content.

Among them is a person's review of labels that came while a run waited: it is checked first.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.infra.access import AccessError
from trimtab.infra.store.fetch import FetchError, digest_of, fetch, is_stored
from trimtab.infra.store.manifest import Provenance
from trimtab.models.data.external_votes import read_review
from trimtab.models.data.files import KINDS, SUFFIXES
from trimtab.models.data.readers import Source
from trimtab.models.data.records import ArtifactRef
from trimtab.models.judge.constitutions import PACKAGED, load_constitution
from trimtab.tasks.access import access_of_run
from trimtab.tasks.context import base_context
from trimtab.tasks.execution import manifest_of

_IS_REVIEW = "is_review"  # in the provenance of a file
REVIEW_NAME = "review.jsonl"  # of verdicts that came as text: as the audit page's download
SPLITS = ("train", "validation", "test")
_LINE_END = re.compile(r"[\r\n]")
_WORD = re.compile(r"\S")


def import_source(source: str, check: Callable[[Path], object] | None = None) -> ArtifactRef:
    """Publish a source's bytes as an artifact of stage `raw`, once.

    Only what the run may read (`trimtab.tasks.access`) is published: files of data of known kinds,
    or with `check`, which takes the folder, other files that pass it. Raises
    trimtab.infra.store.fetch.FetchError where nothing of the kind is there,
    trimtab.infra.access.AccessError, and what `check` raises.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        folder = Path(scratch)
        copy = fetch(source, folder, access_of_run(), is_data if check is None else lambda _: True)
        if check is not None:
            check(folder)
        elif copy.is_file() and not is_data(copy.name):
            raise FetchError(f"{source}: found {copy.suffix!r}; allowed: {KINDS}")
        return _publish(copy, digest_of(copy), {"name": copy.name})


def publish_digest(folder: Path) -> ArtifactRef:
    """Publish, once, the sha256 over what a folder holds, and nothing of the folder itself."""
    return publish_text(f"{digest_of(folder)}\n")


def publish_text(digest: str) -> ArtifactRef:
    """Publish, once, the sha256 of something that itself is not published, as a file `sha256`."""
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        path = Path(scratch) / "sha256"
        path.write_text(digest, "utf-8")
        return _publish(path, digest_of(path), {"name": path.name})


def publish_review(path: Path) -> ArtifactRef:
    """Publish a file or folder that has been checked to be a review, once: every run may read it.

    Its key is not that of the same file given as data, which has no such mark.
    """
    key = hashlib.sha256(f"review {digest_of(path)}".encode()).hexdigest()
    return _publish(path, key, {"name": path.name, _IS_REVIEW: True})


def _publish(path: Path, key: str, config: Mapping[str, Any]) -> ArtifactRef:
    """Publish a file or folder that is alone in its folder."""
    store = base_context().store
    manifest = store.find("raw", key) or store.publish(
        "raw", key, path.parent, Provenance(config=config)
    )
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def import_review(source: str) -> ArtifactRef:
    """A review's file as an artifact, also one that the store has already (`raw:`).

    A worker's run may read only those that `publish_review` has published. Raises what
    `import_source` raises; FetchError where the store does not have it.
    """
    if not is_stored(source):
        return import_source(source)
    store, key = base_context().store, source.removeprefix("raw:").partition("/")[0]
    manifest = store.find("raw", key)
    if access_of_run() is not None and not (manifest and manifest.config.get(_IS_REVIEW)):
        raise AccessError(
            f"{source!r} may not be read; allowed are addresses of reviews that were given to a "
            "suspended run"
        )
    if manifest is None:
        raise FetchError(f"{source}: found no such file in the store {store.url}")
    return ArtifactRef(manifest.stage, manifest.key, manifest.digest)


def require_review(source: str | None) -> None:
    """Raise what `import_review` raises for a review that the store should have already."""
    if source is not None and is_stored(source):
        import_review(source)


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
        folder = Path(scratch) / "review"
        folder.mkdir()
        if text:
            (folder / REVIEW_NAME).write_text(put_one_object_a_line(text), "utf-8")
        else:
            _materialise(import_review(file), folder)
        (path,) = folder.iterdir()
        read_review(Source(str(path), name=path.name), _ids(pairs, Path(scratch) / "pairs"))
        return f"raw:{publish_review(path).key}/{path.name}"


def put_one_object_a_line(text: str) -> str:
    """JSON objects a line each, as a form's field of one line loses the ends of lines.

    Text that is not only JSON stays as it is, for the reader to say what is wrong.
    """
    decoder, lines, at = json.JSONDecoder(), [], 0
    while word := _WORD.search(text, at):
        try:
            _, at = decoder.raw_decode(text, word.start())
        except (ValueError, RecursionError):
            return text
        lines.append(_LINE_END.sub(" ", text[word.start() : at]) + "\n")
    return "".join(lines)


def _ids(pairs: ArtifactRef, folder: Path) -> set[str]:
    """The ids of an artifact's pairs, of all splits."""
    _materialise(pairs, folder)
    ids: set[str] = set()
    for split in SPLITS:
        with (folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
            ids |= {json.loads(line)["id"] for line in lines}
    return ids


def _materialise(ref: ArtifactRef, folder: Path) -> None:
    store = base_context().store
    store.materialise(manifest_of(store, ref), folder)


def import_constitution(name: str | None) -> dict[str, ArtifactRef]:
    """The user's constitution as an input of the stage; no input for a packaged one.

    Raises trimtab.models.judge.constitutions.ConstitutionError, and as above.
    """
    if name is None or name in PACKAGED:
        return {}
    return {"constitution": import_source(name, lambda folder: load_constitution(name, folder))}


def is_data(name: str) -> bool:
    """Whether a file's name is one of data."""
    return name.lower().endswith(SUFFIXES)
