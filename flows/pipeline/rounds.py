"""MetaRM rounds and the champion: the last policy that beat its predecessor, the first one SFT."""

from __future__ import annotations

from trimtab.flows.pipeline.labels import compare_votes
from trimtab.flows.pipeline.policies import held_out_of, judge, measure
from trimtab.flows.pipeline.rewards import train_meta_rm
from trimtab.flows.pipeline.run import Run, judgement_of_round, roles_of_round
from trimtab.models import specs
from trimtab.tasks.resources import ALL_CORES, ALONE, ONE_CORE


def first_champion(run: Run) -> int | None:
    """Round 1 is the arm `full`: 1 if it is promoted, `None` where it did not beat SFT."""
    if "full" not in run.config.arms or not _is_promoted(run, judgement_of_round(1)):
        return None
    return 1


def improve_in_rounds(run: Run) -> int | None:
    """MetaRM rounds from the arm `full` on; returns the champion's round, `None` without one.

    A round is promoted only if it beats the last promoted policy on held-out judgement; the loop
    stops at the first that does not. If round 1 did not beat SFT, there are no further rounds.
    compare_votes is called while the last policy that is certain trains, as that leaves cores idle.
    """
    # A reward from outside is not adapted to the policy, which is what a round is.
    last = 1 if run.config.reward is not None else run.config.rounds.max_rounds
    if last == 1:
        compare_votes(run)
    champion = first_champion(run)
    while champion is not None and champion < last:
        judgement = _start_round(run, champion + 1)
        compare_votes(run)
        if not _is_promoted(run, judgement):
            break
        champion += 1
    compare_votes(run)
    return champion


def run_round(run: Run, number: int) -> bool:
    """Run MetaRM and PPO-max from the previous round and judge it; returns if it is promoted."""
    return _is_promoted(run, _start_round(run, number))


def _is_promoted(run: Run, judgement: str) -> bool:
    """The promotion rule; waits for the judgement, if that decides."""
    if run.config.rounds.promote == "always":
        return True
    return bool(run.result(judgement).summary["is_promoted"])


def _start_round(run: Run, number: int) -> str:
    """Submit one round: MetaRM on the previous policy's answers, PPO-max from that policy,
    evaluation, judging. Returns the role of the judgement that decides.
    """
    config = run.config
    first = config.rounds.meta_rm_from  # round with MetaRM
    previous, current = roles_of_round(number - 1, first), roles_of_round(number, first)
    starts_from_am = config.rounds.meta_rm_start == "advantage_model"
    start = "advantage_model" if starts_from_am else previous.scorer
    train_meta_rm(run, number, start, previous.policy)
    run[current.policy] = run.submit(
        specs.PPO_MAX,
        run.seeded(config.ppo, number),
        policy=run[previous.policy],
        reference=run["sft"],
        scorer=run[current.scorer],
        held_out_scorer=held_out_of(run, run[current.scorer]),
        data=run["data"],
        rehearsal=run["rehearsal"],
        label=f"PPO round {number}",
        resources=ONE_CORE if run.has_small_models else ALL_CORES,
    )
    measure(run, f"round_{number}", run[current.policy], run[current.scorer], slot=ALONE)
    judge(run, judgement_of_round(number), current.evaluation, previous.evaluation)
    judge(run, f"judge_round_{number}_sft", current.evaluation, "eval_sft")
    return judgement_of_round(number)
