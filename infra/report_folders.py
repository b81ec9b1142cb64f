"""Report folders, a folder a run's name: which configuration the report of each is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
REPORT_FILES = ("report.html", "scorecard.json", "summary.json", "methods.md", "quarantine.jsonl")
AUDIT_FILES = ("audit.html", "audited.jsonl.gz", "audited.parquet")
PLOTS = "plots"


class NameTakenError(ValueError):
    """A run's name that the report of another configuration has already."""


def read_run(folder: Path) -> dict[str, Any]:
    """What `write_run` left in a report folder; nothing in any other."""
    path = folder / RUN_FILE
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Say which run's a folder is: `name`, `configuration` and `settings`, for people and compare.

    Raises NameTakenError as below.
    """
    check_owner(folder, str(run["configuration"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_FILE).write_text(json.dumps(run, indent=1, ensure_ascii=False), "utf-8")


def check_owner(folder: Path, configuration: str) -> None:
    """Raise NameTakenError where a folder has the report of another configuration.

    configuration: the name that a run of it has by default. Of a folder that `write_run` has not
    written its own name counts.
    """
    if not folder.is_dir():
        return
    found = read_run(folder).get("configuration", folder.name)
    if found != configuration:
        raise NameTakenError(
            f"the name {folder.name!r} is taken: {folder} has the report of {found}, and this run "
            f"is {configuration}; give another --name, or remove that folder"
        )
