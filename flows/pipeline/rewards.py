"""The scorers that policies are optimised against, trained or from outside."""

from __future__ import annotations

from trimtab.flows.pipeline.data import prompts_for, scorer_base, strength_for, trunk_for
from trimtab.flows.pipeline.run import Future, Run
from trimtab.models import specs
from trimtab.models.config.external_reward import RewardConfig
from trimtab.tasks.resources import Resources, Slot


def bring_rewards(run: Run) -> None:
    """`reward` and `held_out_reward_<index>`: the rewards from outside, tried on the pairs."""
    config = run.config
    if config.reward is not None:
        run["reward"] = _bring(run, config.reward)
    for index, reward in enumerate(config.held_out_rewards):
        run[f"held_out_reward_{index}"] = _bring(run, reward)


def _bring(run: Run, reward: RewardConfig) -> Future:
    pairs = run["preferences"]
    return run.submit_to_reward(
        specs.EXTERNAL_REWARD, reward, preferences=pairs, label=reward.label
    )


def train_scorers(run: Run) -> None:
    """Train the reward model, the Advantage Model, and further scorers that the arms need; none
    where a reward from outside takes their place."""
    config = run.config
    if config.reward is not None:
        return
    trunk = trunk_for(run, config.reward_model.train)
    if "reward_model" in config.scorers:
        _train_reward_model(run, trunk)
    if "advantage_model" in config.scorers:
        _train_advantage_model(run)
        if "full" in config.arms and config.rounds.meta_rm_from == 1:
            train_meta_rm(run, 1, "advantage_model", "sft")
    if "ppo_max_safety" in config.arms:
        _train_safety_scorers(run, trunk)


def _train_reward_model(run: Run, trunk: Future | None) -> None:
    run["reward_model"] = run.submit(
        specs.REWARD_MODEL,
        run.seeded(run.config.reward_model),
        policy=scorer_base(run),
        preferences=run["preferences"],
        pairs=run["relabelled"],
        trunk=trunk,
        label="reward model",
        resources=Resources(Slot(0, 2)),
    )


def _train_advantage_model(run: Run) -> None:
    config = run.config.advantage_model
    # The answers compared in the synthetic world were sampled from SFT.
    behaviour = [run["sft"]] if config.use_importance_weights else None
    run["advantage_model"] = run.submit(
        specs.ADVANTAGE_MODEL,
        run.seeded(config),
        policy=scorer_base(run),
        preferences=run["preferences"],
        pairs=run["relabelled"],
        strength=strength_for(run, config),
        trunk=trunk_for(run, config.train),
        behaviour=behaviour,
        data=prompts_for(run),
        label="Advantage Model",
        resources=Resources(Slot(1, 2)),
    )


def train_meta_rm(run: Run, number: int, start: str, policy: str) -> None:
    """A round's MetaRM: from the scorer `start`, on answers of `policy`, each given by its role."""
    config = run.config.rounds.meta_rm
    run[f"meta_rm_{number}"] = run.submit(
        specs.META_RM,
        run.seeded(config, number),
        scorer=run[start],
        policy=run[policy],
        data=run["data"],
        preferences=run["preferences"],
        pairs=run["relabelled"],
        strength=strength_for(run, config),
        trunk=trunk_for(run, run.config.advantage_model.train, config.train),
        label=f"MetaRM round {number}",
        resources=run.all_cores,
    )


def _train_safety_scorers(run: Run, trunk: Future | None) -> None:
    """Llama 2's two reward models: of safety, on pairs of its categories, and of helpfulness."""
    categories = run.config.ppo.scoring.safety_categories
    fields = {"helpfulness_model": "without_categories", "safety_model": "categories"}
    for index, (role, field) in enumerate(fields.items()):
        config = run.config.reward_model.model_copy(update={field: categories})
        run[role] = run.submit(
            specs.REWARD_MODEL,
            run.seeded(config),
            policy=scorer_base(run),
            preferences=run["preferences"],
            pairs=run["relabelled"],
            trunk=trunk,
            label=role.replace("_", " "),
            resources=Resources(Slot(index, 2)),
        )
