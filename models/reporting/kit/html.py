"""How pages are filled in and numbers written: escaping templates, intervals, minus signs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jinja2 import DictLoader, Environment, StrictUndefined

from models.statistics.estimates import Estimate


def new_environment(templates: Mapping[str, str]) -> Environment:
    """Templates by name, autoescaped, with this module's filters."""
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": number, "points": points, "tidy": tidy}
    return environment


def tidy(text: str) -> str:
    """Real minus signs, and intervals that do not break across lines."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return re.sub(r"\[[^\]]*\]", lambda found: found.group().replace(" ", "\u00a0"), text)


def percent(estimate: Estimate | None) -> str:
    """A share in percent with its interval."""
    if estimate is None:
        return "–"
    low, high = 100 * estimate.low, 100 * estimate.high
    return tidy(f"{100 * estimate.value:.1f}\u00a0% [{low:.1f}, {high:.1f}]")


def number(estimate: Estimate | None, form: str = ".3f") -> str:
    """A number with its interval."""
    if estimate is None:
        return "–"
    return tidy(f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]")


def points(estimate: Estimate | None) -> str:
    """A difference of shares in percentage points with its interval."""
    if estimate is None:
        return "–"
    low, high = 100 * estimate.low, 100 * estimate.high
    return tidy(f"{100 * estimate.value:+.1f} points [{low:+.1f}, {high:+.1f}]")
