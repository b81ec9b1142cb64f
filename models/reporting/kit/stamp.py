"""When, where and how a page was made: written into it as a report is laid out, not by its stage.

The bytes of an artifact depend on its inputs. Loads no torch: the orchestration uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from trimtab.models.reporting import templates

# Where a page has room for it.
MADE = "<!--made-->"


def stamp(page: Path, made: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Write into a page when, where and how it was made, and where to go from it.

    made: `at`, `version`, `host`, and `commit` and `command`, empty where they are not known;
    `reviewed`, what came of a person's review of the labels, if there was one.
    links: words to a file beside the page, or to an address of http or https; nothing else becomes
    a link.
    """
    environment = Environment(
        loader=PackageLoader(templates.__name__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kept = {
        words: address
        for words, address in links.items()
        if address.startswith(("http://", "https://")) or (page.parent / address).is_file()
    }
    told = environment.get_template("made.html.j2").render(made=made, links=kept)
    # The page may be a link to the store's own file, which stays as it is.
    stamped = page.with_name(f".{page.name}")
    stamped.write_text(page.read_text("utf-8").replace(MADE, told, 1), "utf-8")
    stamped.replace(page)
