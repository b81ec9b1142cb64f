"""Report folders, a folder a run's name. A file and the pages in it say which run it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
REPORT_FILES = ("report.html", "scorecard.json", "summary.json", "methods.md", "quarantine.jsonl")
AUDIT_FILES = ("audit.html", "audited.jsonl.gz", "audited.parquet")
PLOTS = "plots"
PAGES = ("report.html", "audit.html", "quarantine.jsonl")
# Where a page says when and how it was made. An artifact does not: its bytes depend on its inputs.
MADE = "<!--made-->"


class NameTakenError(ValueError):
    """A run's name that the report of another configuration has already."""


def read_run(folder: Path) -> dict[str, Any]:
    """What `write_run` left in a report folder; nothing in one of an earlier Trimtab."""
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


def stamp(page: Path, made: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Write into a page when, where and how it was made, and where to go from it.

    made: `at`, `version`, `host` and, where known, `commit` and `command`. links: words to a page
    of the folder, or to an address of http or https; nothing else becomes a link.
    """
    commit = f" (commit <code>{escape(made['commit'][:12])}</code>)" if made.get("commit") else ""
    by = f"Made {escape(made['at'])} by Trimtab {escape(made['version'])}{commit}"
    command = f": <code>{escape(made['command'])}</code>" if made.get("command") else "."
    lines = [f"{by} on {escape(made['host'])}{command}"]
    found = [
        f'<a href="{escape(address)}">{escape(words)}</a>'
        for words, address in links.items()
        if address in PAGES or address.startswith(("http://", "https://"))
    ]
    if found:
        lines.append(f"See also: {', '.join(found)}.")
    text = page.read_text("utf-8")
    told = "".join(f'<div class="meta made">{line}</div>' for line in lines)
    # The page may be a link to the store's own file, which stays as it is.
    stamped = page.with_name(f".{page.name}")
    stamped.write_text(text.replace(MADE, told, 1), "utf-8")
    stamped.replace(page)


def check_owner(folder: Path, configuration: str) -> None:
    """Raise NameTakenError where a folder has the report of another configuration.

    configuration: the name that a run of it has by default. Reports of an earlier Trimtab have
    theirs in the folder's name only.
    """
    if not folder.is_dir():
        return
    found = read_run(folder).get("configuration", folder.name)
    if found != configuration:
        raise NameTakenError(
            f"the name {folder.name!r} is taken: {folder} has the report of {found}, and this run "
            f"is {configuration}; give another --name, or remove that folder"
        )
