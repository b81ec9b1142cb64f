"""Find artifacts and checkpoints of a store that are no longer needed, and remove them.

Needed are reports that are young enough or pinned (a registered policy names them), all artifacts
that they were made of, everything written recently, as a run may be using it, and the newest
checkpoints of an unfinished stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from trimtab.infra.store.manifest import MANIFEST_NAME, Manifest
from trimtab.infra.store.objects import ObjectInfo
from trimtab.infra.store.store import Store

_Artifact = tuple[str, str]
REPORT_STAGES = ("report", "study", "compare")  # the stages that people read the output of


@dataclass(frozen=True)
class Unneeded:
    """Objects below one root that can go, and why; sizes in bytes."""

    root: str
    why: str
    names: tuple[str, ...]
    size: int


def unneeded(
    store: Store, *, reports_since: float, written_before: float, pinned: Collection[str] = ()
) -> list[Unneeded]:
    """The objects that can go; nothing is removed.

    Times are in seconds of the epoch by the store's clock: reports written since the first keep
    what they were made of, only objects written before the second can go. `pinned` are keys of
    reports that are kept whatever their age.
    """
    artifacts = _group_by_root(store, "artifacts", 3)
    checkpoints = _group_by_root(store, "checkpoints", 2)
    manifests = {at: store.find(*at) for at in map(_stage_and_key, artifacts)}
    reports = {
        at
        for at, objects in zip(manifests, artifacts.values(), strict=True)
        if at[0] in REPORT_STAGES and (at[1] in pinned or _is_young(objects, reports_since))
    }
    needed = _reachable(manifests, reports)
    finished = {key for (_, key), manifest in manifests.items() if manifest}
    folders = [
        *_unneeded_artifacts(artifacts, manifests, needed, written_before),
        *_unneeded_checkpoints(checkpoints, finished, written_before),
    ]
    return sorted(folders, key=lambda folder: folder.root)


def remove(store: Store, folder: Unneeded) -> None:
    """Remove it, the manifest first, so that no reader takes what is left for whole."""
    for name in sorted(folder.names, key=lambda name: not name.endswith(f"/{MANIFEST_NAME}")):
        store.objects.delete(name)


def _group_by_root(store: Store, prefix: str, depth: int) -> dict[str, dict[str, ObjectInfo]]:
    """The objects below a prefix, by the first `depth` parts of their names."""
    groups: dict[str, dict[str, ObjectInfo]] = defaultdict(dict)
    for name, info in store.objects.list(prefix).items():
        groups["/".join(name.split("/")[:depth])][name] = info
    return groups


def _stage_and_key(root: str) -> _Artifact:
    _, stage, key = root.split("/")
    return stage, key


def _reachable(
    manifests: Mapping[_Artifact, Manifest | None], reports: Collection[_Artifact]
) -> set[_Artifact]:
    """Reports and all that they were made of."""
    waiting = list(reports)
    needed: set[_Artifact] = set()
    while waiting:
        at = waiting.pop()
        manifest = manifests.get(at)
        if at in needed or manifest is None:
            continue
        needed.add(at)
        waiting += [(parent["stage"], parent["key"]) for parent in manifest.parents.values()]
    return needed


def _unneeded_artifacts(
    artifacts: Mapping[str, Mapping[str, ObjectInfo]],
    manifests: Mapping[_Artifact, Manifest | None],
    needed: Collection[_Artifact],
    before: float,
) -> Iterator[Unneeded]:
    for root, objects in artifacts.items():
        at = _stage_and_key(root)
        manifest = manifests[at]
        if _is_young(objects, before):
            continue
        if manifest is None:
            yield _unneeded(root, "never finished", objects)
        elif at not in needed:
            yield _unneeded(root, "no kept report was made of it", objects)
        else:
            parts = (f"{root}/{MANIFEST_NAME}", f"{root}/{manifest.full_digest[:16]}/")
            strays = {name: info for name, info in objects.items() if not name.startswith(parts)}
            if strays:
                yield _unneeded(root, "left by a publisher that came second", strays)


def _unneeded_checkpoints(
    checkpoints: Mapping[str, Mapping[str, ObjectInfo]], finished: Collection[str], before: float
) -> Iterator[Unneeded]:
    for root, objects in checkpoints.items():
        is_finished = root.rpartition("/")[2] in finished
        if not _is_young(objects, before):
            why = "its stage has finished" if is_finished else "its stage was not continued"
            yield _unneeded(root, why, objects)


def _is_young(objects: Mapping[str, ObjectInfo], before: float) -> bool:
    return any(info.modified >= before for info in objects.values())


def _unneeded(root: str, why: str, objects: Mapping[str, ObjectInfo]) -> Unneeded:
    return Unneeded(root, why, tuple(objects), sum(info.size for info in objects.values()))
