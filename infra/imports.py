"""Importing many modules without searching what they hold for garbage, again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Keep the garbage collector off within, and away from what is there by then for good.

    Prefect and MLflow leave a third of a million objects that live as long as the process: while
    they load, the collector looks through all of them several times, and again as the process ends,
    which takes a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
