"""The arms: how each makes a policy of the SFT policy, and how it is judged against that.

All but PPO's are what PPO-max is compared with. Each has a function that submits its stages and
returns its policy; what comes in between plays roles that begin with the arm's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flows.arms import ppo_of, rehearses, scorer_of, start_of
from flows.config import Arm, seeded
from flows.run import Future, Run
from flows.stages import measure, states_for
from models.config.policy import AnswersConfig
from tasks.answers import answers
from tasks.cpl import cpl
from tasks.dpo import dpo
from tasks.hir import hir
from tasks.judge import judge
from tasks.perform import ALONE, Place
from tasks.ppo_max import ppo_max
from tasks.rehearsal import rehearsal
from tasks.rejection_sampling import rejection_sampling
from tasks.rest import rest

# How an arm's stages are submitted: place, by_ranks, wait_for.
How = dict[str, Any]


def train_policies(run: Run) -> None:
    """Every arm from the SFT policy, and its answers to the evaluation prompts."""
    config, seed = run.config, run.config.seed
    if any(rehearses(config, arm) for arm in config.arms):
        run["rehearsal"] = run.submit(
            rehearsal,
            seeded(config.rehearsal, seed),
            run["data"],
            run["sft"],
            run["advantage_model"],
        )
    measure(run, "sft", run["sft"], run["advantage_model"])
    # An arm that could start earlier would hold up what the last one needs.
    wait_for = [run["rehearsal" if "rehearsal" in run.roles else "advantage_model"]]
    for index, arm in enumerate(config.arms):
        place = (index, len(config.arms))
        how = {"place": place, "by_ranks": run.has_small_models, "wait_for": wait_for}
        # The rounds wait for the arm `full`: all cores are for its answers.
        train_policy(run, arm, how, ALONE if arm == "full" else place)


def train_policy(run: Run, arm: Arm, how: How, of_answers: Place | None = None) -> None:
    """An arm from the SFT policy, and at the place `of_answers` its answers."""
    policy = run["sft"] if arm == "best_of_n" else _trained(run, arm, how)
    scorer = scorer_of(run, arm)
    first = scorer[0] if isinstance(scorer, list) else scorer
    measure(run, arm, policy, first, place=of_answers, **_answering(run, arm))


def judge_policies(run: Run) -> None:
    """Every arm's answers against those of SFT."""
    for arm in run.config.arms:
        run[f"judge_{arm}"] = run.submit(
            judge,
            seeded(run.config.evaluate, run.config.seed),
            run[f"eval_{arm}"],
            run["eval_sft"],
            label=f"judge {arm}",
        )


def _trained(run: Run, arm: Arm, how: How) -> Future:
    """An arm's policy; one that another arm has gone on from is not trained again."""
    if f"policy_{arm}" not in run.roles:
        run[f"policy_{arm}"] = TRAINERS.get(arm, _ppo)(run, arm, how)
    return run[f"policy_{arm}"]


def _answering(run: Run, arm: Arm) -> dict[str, Any]:
    """How an arm answers the evaluation prompts otherwise than SFT."""
    if arm == "best_of_n":
        return {"num_candidates": run.config.best_of_n.num_responses}
    if arm == "hir":
        return {"instruction": run.config.hir.learn.instructions[-1]}
    return {}


def _ppo(run: Run, arm: Arm, how: How) -> Future:
    """From where `flows.arms` says or, as in Llama 2, from where rejection sampling has come to."""
    start = reference = start_of(run, arm)
    if arm == "rejection_sampling_ppo":
        start = _trained(run, "rejection_sampling", how)
    return run.submit(
        ppo_max,
        seeded(ppo_of(run, arm), run.config.seed),
        start,
        reference,
        None if arm == "rlaif_direct" else scorer_of(run, arm),
        run["data"],
        run["rehearsal"] if arm == "full" else None,
        run["safety_model"] if arm == "ppo_max_safety" else None,
        label=f"PPO {arm}",
        **how,
    )


def _rehearsed(run: Run, arm: Arm) -> Future | None:
    """What an arm learns again of what SFT said best, if anything."""
    return run["rehearsal"] if rehearses(run.config, arm) else None


def _dpo(run: Run, arm: Arm, how: How) -> Future:
    config = run.config.dpo
    return run.submit(
        dpo,
        seeded(config, run.config.seed),
        run["sft"],
        run["sft"],
        run["preferences"],
        run["relabelled"],
        states_for(run, config.train),
        _rehearsed(run, arm),
        label="DPO",
        **how,
    )


def _cpl(run: Run, arm: Arm, how: How) -> Future:
    config = run.config.cpl
    return run.submit(
        cpl,
        seeded(config, run.config.seed),
        run["sft"],
        run["preferences"],
        run["relabelled"],
        states_for(run, config.train),
        _rehearsed(run, arm),
        label="CPL",
        **how,
    )


def _rejection_sampling(run: Run, arm: Arm, how: How) -> Future:
    loop = run.config.rejection_sampling

    def learn(number: int, policy: Future, sampled: Sequence[Future]) -> Future:
        return run.submit(
            rejection_sampling,
            seeded(loop.fine_tune, run.config.seed, number),
            policy,
            list(sampled if loop.from_all_iterations else sampled[-1:]),
            _rehearsed(run, arm),
            label=f"rejection sampling {number}",
            **how,
        )

    configs = [loop.answers] * loop.num_iterations
    return _in_turns(run, arm, configs, learn, how)


def _rest(run: Run, arm: Arm, how: How) -> Future:
    loop = run.config.rest

    def improve(number: int, policy: Future, sampled: Sequence[Future]) -> Future:
        return run.submit(
            rest,
            seeded(loop.improve, run.config.seed, number),
            policy,
            [sampled[-1]],
            _rehearsed(run, arm),
            label=f"ReST improve {number}",
            **how,
        )

    return _in_turns(run, arm, [loop.answers] * loop.num_grow_steps, improve, how)


def _hir(run: Run, arm: Arm, how: How) -> Future:
    loop = run.config.hir
    best = loop.answers.model_copy(update={"instruction": loop.learn.instructions[-1]})

    def learn(number: int, policy: Future, sampled: Sequence[Future]) -> Future:
        return run.submit(
            hir,
            seeded(loop.learn, run.config.seed, number),
            policy,
            list(sampled),
            _rehearsed(run, arm),
            label=f"HIR {number}",
            **how,
        )

    configs = [loop.answers, *[best] * (loop.num_iterations - 1)]
    return _in_turns(run, arm, configs, learn, how)


def _in_turns(
    run: Run,
    arm: Arm,
    configs: Sequence[AnswersConfig],
    learn: Callable[[int, Future, Sequence[Future]], Future],
    how: How,
) -> Future:
    """Sample the policy, let it learn from all samples so far, and again; the last policy."""
    policy, sampled = run["sft"], []
    for number, config in enumerate(configs, start=1):
        run[f"{arm}_answers_{number}"] = run.submit(
            answers,
            seeded(config, run.config.seed, number),
            run["data"],
            policy,
            run["advantage_model"],
            label=f"answers for {arm} {number}",
            **how,
        )
        sampled.append(run[f"{arm}_answers_{number}"])
        policy = learn(number, policy, sampled)
        if number < len(configs):
            run[f"{arm}_policy_{number}"] = policy
    return policy


TRAINERS: dict[Arm, Callable[[Run, Arm, How], Future]] = {
    "dpo": _dpo,
    "cpl": _cpl,
    "rejection_sampling": _rejection_sampling,
    "rest": _rest,
    "hir": _hir,
}
