"""The garbage collector while modules load."""

from __future__ import annotations

import gc

import pytest

from trimtab.infra.imports import quick_imports


def test_the_collector_rests_and_then_leaves_alone_what_was_loaded() -> None:
    before = gc.get_freeze_count()
    try:
        with quick_imports():
            assert not gc.isenabled()
            kept: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()


def test_the_collector_is_on_again_after_an_import_that_fails() -> None:
    try:
        with pytest.raises(ModuleNotFoundError), quick_imports():
            raise ModuleNotFoundError
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_one_within_another_leaves_the_collector_off() -> None:
    try:
        with quick_imports():
            with quick_imports():
                pass
            assert not gc.isenabled()
        assert gc.isenabled()
    finally:
        gc.unfreeze()
