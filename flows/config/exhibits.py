"""The exhibits that a study is asked for; loads neither Prefect nor torch."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.flows.config.config import ConfigError
from trimtab.flows.config.errors import unknown_name
from trimtab.models.studies.registry import TITLES, Exhibit, exhibits_of


def find_exhibits(paper: str, exhibit: str, seeds: Sequence[int]) -> list[Exhibit]:
    """The exhibits asked for; ConfigError for one that no paper has, and for repeated seeds."""
    if paper not in TITLES:
        raise ConfigError(unknown_name("paper", paper, TITLES))
    wanted = exhibits_of(paper, exhibit)
    if not wanted:
        known = ["all", *(each.name for each in exhibits_of(paper, "all"))]
        raise ConfigError(unknown_name(f"exhibit of {paper}", exhibit, known))
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must differ, found {', '.join(map(str, seeds))}")
    return wanted
