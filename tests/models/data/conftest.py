"""Small files of rows, written for one test each."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Write rows (dicts, or raw bytes as they are) one a line; return the path as text."""

    def write(rows: Sequence[dict[str, Any] | bytes], name: str = "rows.jsonl") -> str:
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(path)

    return write
