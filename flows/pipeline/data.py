"""Preference pairs, prompts, the SFT policy, what scorers start from, caches of frozen trunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.flows.pipeline.run import Future, Run
from trimtab.models import specs
from trimtab.models.config.arms import ARMS
from trimtab.models.config.reward import AdvantageModelConfig, MetaRMConfig, TrunkCacheConfig
from trimtab.models.config.training import TrainConfig
from trimtab.tasks.resources import ALL_CORES


def prepare(run: Run) -> None:
    """Preference pairs, prompts, the SFT policy, and the scorers' base where that is another."""
    config = run.config
    if config.is_synthetic:
        run["data"] = run.submit(specs.WORLD, run.seeded(config.world))
        _fine_tune(run)
        run["preferences"] = run.submit(
            specs.COMPARISONS,
            run.seeded(config.comparisons),
            data=run["data"],
            policy=run["sft"],
            resources=run.all_cores,
        )
    else:
        read_pairs(run)
        _fine_tune(run)
    if config.scorer_base is not None and config.needs_votes:
        run["scorer_base"] = run.submit(
            specs.SFT,
            run.seeded(config.scorer_base),
            data=run["data"],
            label="scorer base",
            resources=run.all_cores,
        )


def scorer_base(run: Run) -> Future:
    """The language model that scorers start from."""
    return run.get("scorer_base") or run["sft"]


def read_pairs(run: Run) -> None:
    """People's preference pairs; token counts and chat template are the base model's, if any."""
    config = run.config
    files = run.seeded(config.preferences)
    run["data"] = run["preferences"] = run.submit(
        specs.PREFERENCES, files.model_copy(update={"tokenizer": config.sft.model.base})
    )


def _fine_tune(run: Run) -> None:
    """The SFT policy; under a constitution, one that has learned its own revised answers."""
    config, constitution = run.config, run.config.constitution
    policy = run.submit(
        specs.SFT, run.seeded(config.sft), data=run["data"], resources=run.all_cores
    )
    if constitution is None:
        run["sft"] = policy
        return
    run["helpful_sft"] = policy
    run["revisions"] = run.submit(
        specs.REVISE,
        run.seeded(constitution.revise),
        data=run["data"],
        policy=policy,
        resources=ALL_CORES,
    )
    learn = constitution.learn
    learn = learn.model_copy(update={"train": learn.train or config.sft.train})
    run["sft"] = run.submit(
        specs.CONSTITUTIONAL_SFT,
        run.seeded(learn),
        data=run["data"],
        policy=policy,
        revisions=run["revisions"],
        resources=ALL_CORES,
    )


def cache_trunk(run: Run) -> None:
    """Compute once the output of the layers that all trainers on pairs leave frozen: `trunk`, and
    `scorer_trunk` where scorers have another base."""
    config = run.config
    scorers = (
        config.ensemble.member,
        config.reward_model,
        config.advantage_model,
        config.rounds.meta_rm,
    )
    learners = [getattr(config, arm) for arm in config.arms if ARMS[arm].trained_by == "pairs"]
    if config.scorer_base is None:
        _cache_trunk(run, "trunk", run["sft"], [*scorers, *learners])
    else:
        _cache_trunk(run, "scorer_trunk", run["scorer_base"], scorers)
        _cache_trunk(run, "trunk", run["sft"], learners)


def _cache_trunk(run: Run, role: str, policy: Future, readers: Sequence[Any]) -> None:
    trained = [
        (reader.train.trainable_layers, reader.train.precision)
        for reader in readers
        if reader.train.trainable_layers is not None
    ]
    if trained and run.config.cache_trunk:
        precisions = {precision for _, precision in trained}
        cached = TrunkCacheConfig(
            trainable_layers=max(upper for upper, _ in trained),
            precision=precisions.pop() if len(precisions) == 1 else "float32",
        )
        run[role] = submit_trunk(run, cached, policy)


def submit_trunk(run: Run, config: TrunkCacheConfig, policy: Future) -> Future:
    """The output of a policy's frozen layers for all pairs."""
    return run.submit(
        specs.TRUNK_CACHE,
        config,
        policy=policy,
        preferences=run["preferences"],
        resources=ALL_CORES,
    )


def strength_for(run: Run, config: AdvantageModelConfig | MetaRMConfig) -> Future | None:
    """The vote on the pairs, for a scorer whose bounds go by it."""
    return run["strength"] if config.margin_by == "strength" else None


def prompts_for(run: Run) -> Future | None:
    """The data whose prompts an Advantage Model's expected reward is learned on, if it is."""
    return run["data"] if run.config.advantage_model.expected_reward is not None else None


def trunk_for(run: Run, *trained: TrainConfig, is_scorer: bool = True) -> Future | None:
    """The cached trunk of the scorers' base, or of SFT; None if one of the trainers `trained`
    trains all layers."""
    if any(train.trainable_layers is None for train in trained):
        return None
    return run.get("scorer_trunk" if is_scorer and "scorer_base" in run.roles else "trunk")
