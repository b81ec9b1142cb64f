"""Hooks of mkdocs: pages that are made when the site is built, and links to files of the root.

`CONTRIBUTING.md`, `CHANGELOG.md` and `SECURITY.md` are pages of the site too, and
reference/settings.md is made of the configuration's own descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from trimtab.flows.cli.fields import Setting, settings_of
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.paths import section_of

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SETTINGS = """# All settings

Every field of a recipe, by path, with the default of the configuration. Recipes set values of their
own, which `trimtab fields WORD --recipe RECIPE` and `trimtab run RECIPE --print-config` print. A
section whose default is `null` is off.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to pages of the root lead to their place in the site."""
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(ROOT_PAGES)})", _to_root(page), markdown)


def _to_root(page: Page) -> str:
    return "](" + "../" * page.file.src_uri.count("/") + r"\1"


def settings_page() -> str:
    """All settings in Markdown, a section for each of the configuration's."""
    settings = list(settings_of(RunConfig))
    parts = [SETTINGS, _table([each for each in settings if "." not in each.path])]
    for name, field in RunConfig.model_fields.items():
        section = section_of(field)
        if section:
            rows = _table([each for each in settings if each.path.startswith(f"{name}.")])
            parts.append(f"## {name}\n\n{_cell(section.__doc__)}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def _table(settings: Sequence[Setting]) -> str:
    rows = [
        f"| `{each.path}` | `{_cell(each.default)}` | {_cell(each.allowed)} | "
        f"{_cell(each.description)} |"
        for each in settings
    ]
    head = ["| setting | default | allowed | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
