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
    to_root = "../" * page.file.src_uri.count("/")
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(ROOT_PAGES)})", rf"]({to_root}\1", markdown)


def settings_page() -> str:
    """All settings in Markdown, a section for each of the configuration's."""
    settings = settings_of(RunConfig)
    parts = [SETTINGS, _table([setting for setting in settings if "." not in setting.path])]
    for name, field in RunConfig.model_fields.items():
        section = section_of(field)
        if section:
            table = _table([s for s in settings if s.path.startswith(f"{name}.")])
            parts.append(f"## {name}\n\n{_cell(section.__doc__)}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _table(settings: Sequence[Setting]) -> str:
    rows = [
        f"| `{setting.path}` | `{_cell(setting.default)}` | {_cell(setting.allowed)} | "
        f"{_cell(setting.description)} |"
        for setting in settings
    ]
    head = ["| setting | default | allowed | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
