"""The cleaner removes what no report needs, and nothing else; in a folder and in S3."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trimtab.infra.store.cleaner import remove, unneeded
from trimtab.infra.store.manifest import Manifest, Provenance
from trimtab.infra.store.store import Store


def _publish(store: Store, folder: Path, stage: str, key: str, **parents: Manifest) -> Manifest:
    target = folder / f"{stage}-{key}"
    target.mkdir()
    (target / "weights").write_text(f"{stage} {key}")
    return store.publish(
        stage,
        key,
        target,
        Provenance(
            parents={
                name: {"stage": parent.stage, "key": parent.key, "digest": parent.digest}
                for name, parent in parents.items()
            }
        ),
    )


@pytest.fixture
def whole(store: Store, tmp_path: Path) -> dict[str, Manifest]:
    """A report over two stages in a row, and a stage that no report has."""
    sft = _publish(store, tmp_path, "sft", "a")
    ppo = _publish(store, tmp_path, "ppo_max", "b", policy=sft)
    report = _publish(store, tmp_path, "report", "c", policy_full=ppo)
    return {"report": report, "stray": _publish(store, tmp_path, "sft", "x", data=sft)}


def _later() -> float:
    return time.time() + 60


def _roots(store: Store, since: float, before: float, pinned: tuple[str, ...] = ()) -> list[str]:
    found = unneeded(store, reports_since=since, written_before=before, pinned=pinned)
    return [each.root for each in found]


def test_only_what_no_report_was_made_of_goes(store: Store, whole: dict[str, Manifest]) -> None:
    assert _roots(store, since=0, before=_later()) == ["artifacts/sft/x"]
    for found in unneeded(store, reports_since=0, written_before=_later()):
        remove(store, found)
    assert store.find("sft", "x") is None
    for stage, key in (("sft", "a"), ("ppo_max", "b"), ("report", "c")):
        assert store.find(stage, key)
    assert _roots(store, since=0, before=_later()) == []


@pytest.mark.parametrize("stage", ["study", "compare"])
def test_other_pages_keep_what_they_were_made_of(store: Store, tmp_path: Path, stage: str) -> None:
    sft = _publish(store, tmp_path, "sft", "a")
    matrix = _publish(store, tmp_path, "win_matrix", "b", sft=sft)
    _publish(store, tmp_path, stage, "c", win_matrix=matrix)
    assert _roots(store, since=0, before=_later()) == []


def test_an_old_report_goes_with_all_of_its_own_unless_it_is_pinned(
    store: Store, whole: dict[str, Manifest], tmp_path: Path
) -> None:
    everything = ["artifacts/ppo_max/b", "artifacts/report/c", "artifacts/sft/a", "artifacts/sft/x"]
    assert _roots(store, since=_later(), before=_later()) == everything
    assert _roots(store, since=_later(), before=_later(), pinned=("c",)) == ["artifacts/sft/x"]


def test_nothing_goes_that_was_written_lately(store: Store, whole: dict[str, Manifest]) -> None:
    assert _roots(store, since=_later(), before=time.time() - 3600) == []


def test_what_kills_left_behind_goes(
    store: Store, whole: dict[str, Manifest], tmp_path: Path
) -> None:
    store.objects.put_bytes("artifacts/sft/y/0123456789abcdef/weights", b"no manifest came")
    store.objects.put_bytes("artifacts/sft/a/0123456789abcdef/weights", b"came second")
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "state").write_text("at 1")
    store.save_checkpoint("a", 1, tmp_path / "step")
    store.save_checkpoint("z", 1, tmp_path / "step")
    found = unneeded(store, reports_since=0, written_before=_later())
    assert {each.root: each.why for each in found} == {
        "artifacts/sft/a": "left by a publisher that came second",
        "artifacts/sft/x": "no kept report was made of it",
        "artifacts/sft/y": "never finished",
        "checkpoints/a": "its stage has finished",
        "checkpoints/z": "its stage was not continued",
    }
    for each in found:
        assert each.size > 0
        remove(store, each)
    assert store.find("sft", "a")
    assert store.newest_checkpoint("z") is None
    assert _roots(store, since=0, before=_later()) == []
