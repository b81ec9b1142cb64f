"""The parts of the experiment that flows share, as Prefect task submissions.

Every function returns futures, so that what does not depend on each other runs at once; `Run`
remembers each under the role it plays, which is what the report and the lineage are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.arms import train_safety_scorers
from flows.config import RunConfig, Vote, seeded
from flows.run import Future, Run
from models.config.reporting import AuditConfig
from models.config.reward import LowerStatesConfig, RewardModelConfig, StrengthConfig
from models.config.training import TrainConfig
from tasks.advantage_model import advantage_model
from tasks.ai_labels import ai_labels
from tasks.audit import audit
from tasks.comparisons import comparisons
from tasks.constitutional_sft import constitutional_sft
from tasks.evaluate import evaluate
from tasks.judge_preferences import judge_preferences
from tasks.lower_states import lower_states
from tasks.perform import ALONE, Place
from tasks.preferences import preferences
from tasks.relabel import relabel
from tasks.revise import revise
from tasks.reward_model import reward_model
from tasks.sft import sft
from tasks.strength import strength
from tasks.world import world


def prepare(run: Run) -> None:
    """Preference pairs, prompts and the SFT policy."""
    config, seed = run.config, run.config.seed
    if config.is_synthetic:
        run["data"] = run.submit(world, seeded(config.world, seed))
        _fine_tune(run)
        run["preferences"] = run.submit(
            comparisons,
            seeded(config.comparisons, seed),
            run["data"],
            run["sft"],
            by_ranks=run.has_small_models,
        )
    else:
        run["data"] = run["preferences"] = run.submit(
            preferences,
            seeded(config.preferences, seed).model_copy(
                update={"tokenizer": config.sft.model.base}
            ),
        )
        _fine_tune(run)


def _fine_tune(run: Run) -> None:
    """The SFT policy; under a constitution that which has learned its own answers, revised."""
    config, seed, constitution = run.config, run.config.seed, run.config.constitution
    policy = run.submit(sft, seeded(config.sft, seed), run["data"], by_ranks=run.has_small_models)
    if constitution is None:
        run["sft"] = policy
        return
    run["helpful_sft"] = policy
    run["revisions"] = run.submit(revise, seeded(constitution.revise, seed), run["data"], policy)
    learn = constitution.learn
    learn = learn.model_copy(update={"train": learn.train or config.sft.train})
    run["sft"] = run.submit(
        constitutional_sft, seeded(learn, seed), run["data"], policy, run["revisions"]
    )


def keep_lower_states(run: Run) -> None:
    """The output of the layers that all who learn from pairs leave frozen, once for all of them."""
    config = run.config
    readers = [
        config.ensemble.member,
        config.reward_model,
        config.advantage_model,
        config.rounds.meta_rm,
        *(arm for name, arm in (("dpo", config.dpo), ("cpl", config.cpl)) if name in config.arms),
    ]
    trained = [reader.train.trainable_layers for reader in readers]
    upper = max((number for number in trained if number is not None), default=None)
    if upper is not None and config.keep_lower_states:
        run["lower_states"] = run.submit(
            lower_states,
            LowerStatesConfig(trainable_layers=upper),
            run["sft"],
            run["preferences"],
        )


def states_for(run: Run, *trained: TrainConfig) -> Future | None:
    """What was kept of the lower layers, where `trained` leave them frozen one after another."""
    if any(train.trainable_layers is None for train in trained):
        return None
    return run.roles.get("lower_states")


def audit_labels(run: Run) -> None:
    """The ensemble, its votes, the relabelled pairs, and all of it for a person to look at."""
    config = run.config
    run["strength"] = _vote(run, config.ensemble.votes[0])
    run["relabelled"] = run.submit(relabel, config.relabel, run["preferences"], run["strength"])
    run["audit"] = run.submit(
        audit,
        AuditConfig(recipe=config.recipe, seed=config.seed),
        run["preferences"],
        [run[f"member_{index}"] for index in range(config.ensemble.size)],
        run["strength"],
        run["relabelled"],
    )


def ask_judge(run: Run) -> None:
    """A judge model's view of the pairs: beside all else or, with `ai_labels`, their labels."""
    config, labels = run.config.judge_preferences, run.config.ai_labels
    if config is not None:
        is_local = config.judge.local_model is not None
        run["judged"] = run.submit(
            judge_preferences.with_options(tags=["gpu"]) if is_local else judge_preferences,
            seeded(config, run.config.seed),
            run["preferences"],
            place=ALONE if is_local else None,
        )
    if labels is not None:
        run["pairs_as_given"] = run["preferences"]
        run["preferences"] = run.submit(
            ai_labels, labels, run["pairs_as_given"], run["judged"], label="AI labels"
        )


def compare_votes(run: Run) -> None:
    """The ensemble's other votes, unless they are under way: only the report needs them.

    Beside policies they let all else go first, and until one trains alone no core is idle for long.
    """
    has_policies = any(role.startswith("policy_") for role in run.roles)
    before = ("reward_model", "advantage_model", "rehearsal", "meta_rm_2")
    wait_for = [run[role] for role in before if role in run.roles]
    for vote in run.config.ensemble.votes[1:]:
        if f"strength_{vote}" not in run.roles:
            run[f"strength_{vote}"] = _vote(run, vote, f"{vote}_", wait_for, has_policies)


def _vote(
    run: Run,
    vote: Vote,
    prefix: str = "",
    wait_for: Sequence[Future] = (),
    is_patient: bool = False,
) -> Future:
    """An ensemble, whose members play the roles `<prefix>member_<index>`, and its vote."""
    config = run.config
    members = [
        run.submit(
            reward_model,
            _member(config, vote, index),
            run["sft"],
            run["preferences"],
            states=states_for(run, config.ensemble.member.train),
            label=f"{vote} member {index}",
            place=None if is_patient else (index, config.ensemble.size),
            by_ranks=run.has_small_models,
            is_patient=is_patient,
            wait_for=wait_for,
        )
        for index in range(config.ensemble.size)
    ]
    for index, member in enumerate(members):
        run[f"{prefix}member_{index}"] = member
    return run.submit(strength, StrengthConfig(mode=vote), members, label=f"strength {vote}")


def _member(config: RunConfig, vote: Vote, index: int) -> RewardModelConfig:
    """Member `index` of a vote: its own seed and, cross-fitted, its own fold."""
    member: RewardModelConfig = seeded(config.ensemble.member, config.seed, index + 1)
    if vote == "cross_fitted":
        member = member.model_copy(update={"fold": index % member.num_folds})
    return member


def train_scorers(run: Run) -> None:
    """The reward model and the Advantage Model on relabelled pairs, and what arms need besides."""
    config, seed = run.config, run.config.seed
    run["reward_model"] = run.submit(
        reward_model,
        seeded(config.reward_model, seed),
        run["sft"],
        run["preferences"],
        run["relabelled"],
        states_for(run, config.reward_model.train),
        label="reward model",
        place=(0, 2),
    )
    # What the synthetic world compares, SFT has written.
    behaviour = [run["sft"]] if config.advantage_model.use_importance_weights else None
    run["advantage_model"] = run.submit(
        advantage_model,
        seeded(config.advantage_model, seed),
        run["sft"],
        run["preferences"],
        run["relabelled"],
        states_for(run, config.advantage_model.train),
        behaviour,
        place=(1, 2),
    )
    train_safety_scorers(run, states_for(run, config.reward_model.train))


def measure(
    run: Run,
    name: str,
    policy: Future,
    scorer: Future,
    *,
    place: Place | None = None,
    offset: int = 0,
    **changes: Any,
) -> None:
    """Let a policy answer the evaluation prompts; another `offset` gives other answers.

    `changes`: what its evaluation is configured otherwise than that of others.
    """
    config = run.config.evaluate.model_copy(update=changes)
    run[f"eval_{name}"] = run.submit(
        evaluate,
        seeded(config, run.config.seed, offset),
        policy,
        run["sft"],
        run["data"],
        scorer,
        run.judges,
        label=f"evaluate {name}",
        place=place,
        by_ranks=run.has_small_models,
    )
