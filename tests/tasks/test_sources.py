"""Files that people give a run count by their content."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.infra.store.fetch import FetchError
from trimtab.infra.store.store import open_store
from trimtab.tasks import sources
from trimtab.tasks.sources import import_constitution, import_source


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(store=open_store(str(tmp_path / "store")))
    monkeypatch.setattr(sources, "base_context", lambda: context)


def test_where_a_file_lies_does_not_count_what_it_holds_does(tmp_path: Path) -> None:
    review = tmp_path / "review.jsonl"
    review.write_text("keep")
    first = import_source(str(review))
    assert import_source(str(review)) == first
    moved = tmp_path / "elsewhere" / "review.jsonl"
    moved.parent.mkdir()
    review.rename(moved)
    assert import_source(str(moved)) == first
    moved.write_text("flip")
    assert import_source(str(moved)).digest != first.digest


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="review.jsonl: found no file or folder"):
        import_source(str(tmp_path / "review.jsonl"))


def test_a_constitution_of_one_s_own_is_an_input_a_packaged_one_is_not(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("Be kind.")
    ref = import_source(str(mine), check=lambda folder: folder)
    assert import_constitution(str(mine)) == {"constitution": ref}
    assert import_constitution("harmlessness") == import_constitution(None) == {}
    with pytest.raises(FetchError, match="harmles: found no file or folder"):
        import_constitution("harmles")
