"""Hooks of mkdocs: pages that are made when the site is built, and links to files of the root.

`CONTRIBUTING.md`, `CHANGELOG.md` and `SECURITY.md` are pages of the site too, and
reference/settings.md is made of the configuration's own descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trimtab.flows.config import RunConfig

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SETTINGS = """# All settings

Every field of a recipe, by path, with the default of the configuration. Recipes set values of their
own: `trimtab run RECIPE --print-config` prints them. A section whose default is `null` is off.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to pages of the root lead to their place in the site; widen the papers' table."""
    if page.file.src_uri == "papers.md":
        page.meta["hide"] = ["navigation", "toc"]
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(ROOT_PAGES)})", _to_root(page), markdown)


def _to_root(page: Page) -> str:
    return "](" + "../" * page.file.src_uri.count("/") + r"\1"


def settings_page() -> str:
    """All settings in Markdown, a section for each of the configuration's."""
    parts = [SETTINGS, _table(_leaves("", RunConfig, nested=False))]
    for name, field in RunConfig.model_fields.items():
        section = _section(field)
        if section:
            rows = _table(_leaves(f"{name}.", section, nested=True))
            parts.append(f"## {name}\n\n{_cell(section.__doc__)}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def _leaves(path: str, model: type[BaseModel], nested: bool) -> Iterator[tuple[str, FieldInfo]]:
    """Fields with a value of their own, by path."""
    for name, field in model.model_fields.items():
        section = _section(field)
        if section and nested:
            yield from _leaves(f"{path}{name}.", section, nested)
        elif not section:
            yield f"{path}{name}", field


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The configuration that a field holds, alone or beside None."""
    kinds = (field.annotation, *get_args(field.annotation))
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found[0] if found and get_args(field.annotation)[1:] in ((), (type(None),)) else None


def _table(fields: Iterator[tuple[str, FieldInfo]]) -> str:
    rows = [
        f"| `{path}` | {_default(field)} | {_cell(field.description)} |" for path, field in fields
    ]
    return "\n".join(["| setting | default | |", "| --- | --- | --- |", *rows])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    return f"`{json.dumps(value, default=str)}`".replace("|", "\\|")


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
