"""How pages are filled in: templates that escape, style sheets, numbers with their intervals.

Loads no torch: the orchestration stamps pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import resources
from itertools import count
from pathlib import Path
from types import ModuleType

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trimtab.models.reporting import static, templates
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SETS, STRENGTH_NAMES
from trimtab.models.statistics.measured import Estimate, Interval

FEW = 50  # below it a share is told as a count


def new_environment(**filters: Callable[..., str]) -> Environment:
    """The templates, autoescaped, with this module's filters and a page's own."""
    environment = Environment(
        loader=PackageLoader(templates.__name__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "next_number": count().__next__,
        "stylesheet": stylesheet,
        "sets": SETS,
        "measure_names": MEASURE_NAMES,
        "strength_names": STRENGTH_NAMES,
    }
    shared = (percent, share_of, counted, number, points, thousands, tidy)
    environment.filters |= {shown.__name__: shown for shown in shared} | filters
    return environment


# A heading of `macros.html.j2`, and where a page has room for a list of them.
_SECTION = re.compile(r'<h2 id="([\w-]+)">([^<]+) <a class="up"')
_CONTENTS = "<!--contents-->"


def render_page(name: str, filters: Mapping[str, Callable[..., str]], **values: object) -> str:
    """A template as HTML, with a list of its sections where it says so."""
    environment = new_environment(**filters)
    html = environment.get_template(name).render(**values)
    sections = [(section, Markup(title)) for section, title in _SECTION.findall(html)]
    contents = environment.get_template("contents.html.j2")
    return html.replace(_CONTENTS, contents.render(sections=sections) if sections else "", 1)


# Where a page has room to say how it was made.
MADE = "<!--made-->"


def stamp(page: Path, provenance: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Write into a page when, where and how it was made, and where to go from it.

    That is done as a report is laid out, not by its stage, as an artifact's bytes depend on its
    inputs alone.

    provenance: `at`, `version`, `host`, and `commit` and `command`, empty where they are not known;
    `reviewed`, what came of a person's review of the labels, if there was one.
    links: words to a file beside the page, or to an address of http or https; nothing else becomes
    a link.
    """
    safe = {
        words: address
        for words, address in links.items()
        if address.startswith(("http://", "https://")) or (page.parent / address).is_file()
    }
    text = new_environment().get_template("made.html.j2").render(made=provenance, links=safe)
    # The page may be a link to the store's own file, which stays as it is.
    stamped = page.with_name(f".{page.name}")
    stamped.write_text(page.read_text("utf-8").replace(MADE, text, 1), "utf-8")
    stamped.replace(page)


def read_text(package: ModuleType, name: str) -> str:
    """A text file of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def stylesheet(*names: str) -> Markup:
    """Style sheets by name, as one."""
    return Markup("".join(f"\n{read_text(static, name)}" for name in names))


def tidy(text: str) -> str:
    """Real minus signs, and intervals that do not break across lines."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return re.sub(r"\[[^\]]*\]", lambda ends: ends.group().replace(" ", "\u00a0"), text)


def thousands(value: float, digits: int = 0) -> str:
    """A number with commas between its thousands."""
    return f"{value:,.{digits}f}"


def percent(estimate: Estimate | None) -> str:
    """A share in percent with its interval."""
    return tidy(estimate.text(".1f", 100, "\u00a0%")) if estimate else "–"


def counted(estimate: Estimate | None) -> str:
    """A share in percent with its interval; of few examples how many of them."""
    if estimate is None or estimate.count >= FEW:
        return percent(estimate)
    return f"{estimate.value * estimate.count:.4g} of {estimate.count}"


def share_of(estimate: Estimate) -> str:
    """As `counted`, before the name of what was measured."""
    return counted(estimate) + (" of" if estimate.count >= FEW else "")


def number(estimate: Interval | None, form: str = ".3f", scale: float = 1) -> str:
    """A number, times `scale`, with its interval."""
    return tidy(estimate.text(form, scale)) if estimate else "–"


def points(estimate: Estimate | None) -> str:
    """A difference of shares in percentage points with its interval."""
    return tidy(estimate.text("+.1f", 100, " points")) if estimate else "–"
