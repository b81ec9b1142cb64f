"""One more MetaRM round from the registry's champion."""

from __future__ import annotations

import re
from typing import Any

from prefect.states import Completed

from trimtab.flows.config.config import ConfigError, load_config
from trimtab.flows.config.names import NUM_HEX, GivenName, name_run, registered_model_name
from trimtab.flows.config.overrides import RoundChanges, apply_changes
from trimtab.flows.config.recipes import RECIPES
from trimtab.flows.pipeline.rounds import run_round
from trimtab.flows.pipeline.run import Run, roles_of_round
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import completed_state, finish_run, tracked_flow
from trimtab.flows.runs.suspension import other_that_waits, require_resumable
from trimtab.tasks.registry import (
    KEY,
    REPORT,
    TRIED,
    LineageError,
    Registered,
    model_name,
    registered,
)

_DIGEST = re.compile(rf"-[0-9a-f]{{{NUM_HEX}}}(?=-|$)")

__all__ = ["LineageError", "NoChampionError", "champion_of", "rounds"]


class NoChampionError(ConfigError):
    """No policy was promoted yet, so there is no champion to continue from."""


@flow(name="rounds")
def rounds(recipe: GivenName = "default", changes: RoundChanges | None = None) -> dict[str, Any]:
    """One more round of MetaRM and PPO-max from a recipe's champion, promoted if it wins.

    Data, scorers and judges are those of the champion's run, so that all rounds are comparable. If
    there is no champion yet, this round was already tried with these settings and lost, or a run of
    it waits for approval, the run ends as `Idle`. Returns the report's key numbers and where the
    report lies.

    Args:
        recipe: The recipe or registered model whose champion to continue from
        changes: Settings to change in the champion's run; empty fields keep its values
    """
    try:
        champion = champion_of(recipe)
    except NoChampionError as error:
        return _idle(str(error))
    config = apply_changes(load_config(champion.config), changes, RoundChanges)
    require_resumable(config, "rounds")
    if config.reward is not None:
        raise ConfigError(
            f"reward: found {config.reward.label}, which the champion's run was given; allowed in "
            "the flow rounds: none, as a round trains its scorer"
        )
    number = champion.round + 1
    if champion.version.tags.get(TRIED) == config.fingerprint:
        return _idle(
            f"Nothing new: round {number} from version {champion.version.number} of "
            f"{champion.version.name} was judged no better, or rejected, and the settings are the "
            "same"
        )
    if config.suspend.for_champion_approval and (other := other_that_waits()):
        return _idle(f"Nothing new: the run {other} waits for a person to approve its round")
    name = name_run(config, "rounds")
    run = Run(config, dict(champion.artifacts), name.name)
    with tracked_flow(config, name) as tracked:
        is_promoted = run_round(run, number)
        last = number if is_promoted else champion.round
        numbers = finish_run(run, tracked, last, name, champion.version.name)
    state: dict[str, object] = completed_state(numbers)
    return state


def _idle(message: str) -> Any:
    """The state that Prefect makes the run's own; its data is what the flow returns."""
    state: Any = Completed(name="Idle", message=message, data={"idle": message})
    return state


def champion_of(recipe: str) -> Registered:
    """The champion of a recipe, or of a registered model, with its run.

    Raises NoChampionError where there is none yet, ConfigError where no recipe could have one, and
    LineageError where it is no policy of a run that competes for it.
    """
    champion = registered(recipe, "champion")
    if champion is not None:
        _require_competitor(champion)
        return champion
    name = model_name(recipe)
    known = [r for r in RECIPES if f"{name}-".startswith(f"{model_name(r)}-")]
    if not known:
        raise ConfigError(
            f"unknown recipe or registered model {recipe!r}; recipes: {', '.join(RECIPES)}"
        )
    raise NoChampionError(
        f"{name} has no champion to continue from: first run `trimtab run {max(known, key=len)}` "
        "(deployment rlhf) on its data; its policy becomes champion if it wins on the "
        "validation prompts"
    )


def _require_competitor(champion: Registered) -> None:
    """Raise LineageError unless the report of its run says that the policy is of that round, and
    competes under that model's name.

    Whoever may write in MLflow's registry can give the alias to a version with any tags; the report
    is in the store. Digests in the name are left out: recipes change, and so do files of data.
    """
    config, version = load_config(champion.config), champion.version
    model = registered_model_name(config)
    role = roles_of_round(champion.round, config.rounds.meta_rm_from).policy
    policy = champion.artifacts.get(role)
    if policy is None or policy.ref.key != version.tags[KEY]:
        fault = f"its policy is not that of round {champion.round}"
    elif _DIGEST.sub("", version.name) != _DIGEST.sub("", model):
        fault = f"its policies compete as {model}"
    else:
        return
    raise LineageError(
        f"version {version.number} of {version.name} is of the run of report "
        f"{version.tags[REPORT][:16]}, and {fault}: no round continues from it. Give the alias "
        f"champion to another version: `trimtab rollback {version.name} NUMBER`"
    )
