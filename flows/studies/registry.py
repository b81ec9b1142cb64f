"""Which arms each table and figure needs: `@arms` on the function that submits them."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.flows.run import Run

Submit = Callable[[Run], None]
# By the exhibit's slug.
ARMS: dict[str, Submit] = {}


def arms(paper: str, *exhibits: str) -> Callable[[Submit], Submit]:
    """Declare that the decorated function submits what these exhibits of a paper are read from.

    Raises ValueError where another function does already.
    """

    def register(submit: Submit) -> Submit:
        for slug in (f"{paper}-{exhibit}" for exhibit in exhibits):
            if slug in ARMS:
                raise ValueError(f"two functions submit the arms of {slug}")
            ARMS[slug] = submit
        return submit

    return register
