"""One more MetaRM round from the registry's champion."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.states import Completed

from flows.champions import play_round
from flows.changes import RoundChanges, changed
from flows.config import ConfigError, load_config
from flows.finish import finish, run_name, tracked_flow
from flows.judge_shares import share_limits
from flows.run import Run
from flows.runner import task_runner
from tasks.registry import TRIED, LineageError, Registered, registered

__all__ = ["LineageError", "champion_of", "rounds"]


@flow(name="rounds", flow_run_name=run_name, task_runner=task_runner())
def rounds(recipe: str = "default", changes: RoundChanges | None = None) -> dict[str, Any]:
    """MetaRM and PPO-max from the champion of a recipe, judged against it; promoted or not.

    Data, scorers and judges are those of the champion's run, so that all rounds so far compare.
    Where the champion's next round was tried already, and lost, the run ends as `Idle`. Returns the
    report's key numbers and where the report lies.

    Args:
        recipe: The recipe whose champion to go on from
        changes: What to do otherwise than the champion's run; what is left empty stays
    """
    champion = champion_of(recipe)
    config = changed(load_config(champion.config), changes, RoundChanges)
    number = champion.round + 1
    if champion.version.tags.get(TRIED) == config.fingerprint:
        message = (
            f"Nothing new: round {number} from version {champion.version.number} of "
            f"{champion.version.name} was judged no better, and the settings are the same"
        )
        # Prefect makes a returned state the run's own, and gives its data to the caller.
        idle: Any = Completed(name="Idle", message=message, data={"idle": message})
        return idle
    run = Run(config, dict(champion.artifacts))
    share_limits([run], partial(play_round, number=number))
    with tracked_flow(config, "rounds") as tracked:
        is_promoted = play_round(run, number)
        return finish(run, tracked, number if is_promoted else champion.round, suffix="-rounds")


def champion_of(recipe: str) -> Registered:
    """The champion of a recipe with its run; ConfigError where there is none."""
    champion = registered(recipe, "champion")
    if champion is None:
        raise ConfigError(
            f"recipe {recipe!r} has no champion to go on from: run it first; its policy becomes "
            "champion if held-out judgement promotes it"
        )
    return champion
