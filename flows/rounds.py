"""MetaRM rounds: those of the experiment, and one more from the registry's champion."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import Completed

from flows.changes import RoundChanges, changed
from flows.config import ConfigError, load_config, seeded
from flows.finish import finish, run_name, tracked_flow
from flows.run import RoundRoles, Run, roles_of_round
from flows.runner import task_runner
from flows.stages import compare_votes, measure, states_for
from tasks.judge import judge
from tasks.meta_rm import meta_rm
from tasks.perform import ALONE
from tasks.ppo_max import ppo_max
from tasks.registry import TRIED, LineageError, Registered, registered

__all__ = ["LineageError", "champion_of", "first_champion", "improve_in_rounds", "rounds"]


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


def first_champion(run: Run) -> int | None:
    """Round 1 is the arm `full`: 1 if it is promoted, `None` where it did not beat SFT."""
    if "full" not in run.config.arms or not _is_promoted(run, "judge_full"):
        return None
    return 1


def improve_in_rounds(run: Run) -> int | None:
    """MetaRM rounds from the arm `full` on; returns the champion's round, `None` without one.

    A round is promoted only if it beats the last promoted policy on held-out judgement; the loop
    stops at the first that does not. Where round 1 did not beat SFT there is nothing to go on from.
    The ensemble's other votes take the cores that a round's policy leaves idle.
    """
    champion = first_champion(run)
    while champion is not None and champion < run.config.rounds.max_rounds:
        judgement = _start_round(run, champion + 1)
        compare_votes(run)
        if not _is_promoted(run, judgement):
            break
        champion += 1
    compare_votes(run)
    return champion


def play_round(run: Run, number: int) -> bool:
    """MetaRM and PPO-max from the round before, judged; whether the round is promoted."""
    return _is_promoted(run, _start_round(run, number))


def _is_promoted(run: Run, judgement: str) -> bool:
    """The promotion rule; waits for the judgement."""
    verdict = run.result(judgement).summary["is_promoted"]
    return bool(verdict) or run.config.rounds.promote == "always"


def _start_round(run: Run, number: int) -> str:
    """MetaRM on the last policy's answers, PPO-max from that policy, its own answers, judged.

    Returns the role of the judgement that decides.
    """
    config, before, role = run.config, roles_of_round(number - 1), roles_of_round(number)
    _train_round(run, number, before, role)
    for judgement, opponent in (
        (f"judge_round_{number}", before.evaluation),
        (f"judge_round_{number}_sft", "eval_sft"),
    ):
        run[judgement] = run.submit(
            judge,
            seeded(config.evaluate, config.seed),
            run[role.evaluation],
            run[opponent],
            label=judgement.replace("_", " "),
        )
    return f"judge_round_{number}"


def _train_round(run: Run, number: int, before: RoundRoles, role: RoundRoles) -> None:
    config, seed = run.config, run.config.seed
    run[role.scorer] = run.submit(
        meta_rm,
        seeded(config.rounds.meta_rm, seed, number),
        run[before.scorer],
        run[before.policy],
        run["data"],
        run["preferences"],
        run["relabelled"],
        states_for(run, config.advantage_model.train, config.rounds.meta_rm.train),
        label=f"MetaRM round {number}",
    )
    run[role.policy] = run.submit(
        ppo_max,
        seeded(config.ppo, seed, number),
        run[before.policy],
        run["sft"],
        run[role.scorer],
        run["data"],
        run["rehearsal"],
        label=f"PPO round {number}",
        place=None if run.has_small_models else ALONE,
    )
    measure(run, f"round_{number}", run[role.policy], run[role.scorer], place=ALONE)
