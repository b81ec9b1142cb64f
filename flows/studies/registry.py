"""Which arms each table and figure needs: `@arms` on the function that submits them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trimtab.flows.config.errors import ConfigError
from trimtab.flows.pipeline.run import Run

Submit = Callable[[Run], None]
# By the exhibit's slug.
ARMS: dict[str, Submit] = {}


def arms(paper: str, *exhibits: str, in_world: bool = False) -> Callable[[Submit], Submit]:
    """Declare that the decorated function submits what these exhibits of a paper are read from.

    in_world: the run must be in the synthetic world; ConfigError where it reads people's
    preferences. Raises ValueError where another function submits an exhibit's arms already.
    """

    def register(submit: Submit) -> Submit:
        for slug in (f"{paper}-{exhibit}" for exhibit in exhibits):
            if slug in ARMS:
                raise ValueError(f"two functions submit the arms of {slug}")
            ARMS[slug] = partial(_submit_in_world, slug, submit) if in_world else submit
        return submit

    return register


def _submit_in_world(slug: str, submit: Submit, run: Run) -> None:
    if not run.config.is_synthetic:
        raise ConfigError(
            f"{slug} needs the synthetic world, found the recipe {run.config.recipe}; allowed: "
            "smoke, default, papers"
        )
    submit(run)
