"""Packages that Trimtab may need: the command that installs one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.models.config import packages
from trimtab.models.config.packages import installation_of


def test_in_a_checkout_an_extra_comes_from_it() -> None:
    assert installation_of("dask") == (
        "pip install -e '.[dask]' -c constraints.txt, in Trimtab's folder"
    )


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///x/trimtab-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'trimtab[dask] @ file:///x/trimtab-1-py3-none-any.whl'",
        ),
        (None, "pip install 'trimtab[dask]'"),  # from an index
    ],
)
def test_of_a_wheel_it_comes_from_where_the_wheel_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: Any, command: str
) -> None:
    text = json.dumps(origin) if origin else None
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    monkeypatch.setattr(
        packages, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text)
    )
    assert installation_of("dask") == command
