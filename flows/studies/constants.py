"""The arms of sweeps: the recipe with one constant of other values, its own among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trimtab.flows.pipeline.data import prompts_for, trunk_for
from trimtab.flows.run import Run
from trimtab.flows.studies.advantage_model import add_rehearsal, scorers
from trimtab.flows.studies.part_two import DROPOUT
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import add_policy, add_scorer, add_strength, with_changes
from trimtab.models.config.reward import ContrastiveConfig
from trimtab.models.specs import ADVANTAGE_MODEL, META_RM

SMOOTHING = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
MARGIN_CLIPS = (0.25, 0.5, 1.0, 2.0)
TEMPERATURES = (0.02, 0.05, 0.1, 0.5)
NUM_POLICIES = (2.0, 4.0, 8.0, 16.0)  # of 1 nothing is left to learn where SFT wrote all
NUM_CLUSTERS = (5, 10, 20, 40)
PER_CLUSTER = (4, 8, 16, 32)
META_STEPS = (0.0, 5e-6, 5e-5, 5e-4, 5e-3, 5e-2)


def named_values(values: Sequence[float], own: float) -> Iterator[tuple[float, str]]:
    """Each value with its name in a role; the recipe's own is among them."""
    for value in sorted({*values, own}):
        yield value, f"{value:g}{'_recipe' * (value == own)}"


@arms("constants", "smoothing")
def smoothing(run: Run) -> None:
    """alpha, on the recipe's treatment of the labels."""
    add_strength(run)
    labels = run.config.relabel
    for value, name in named_values(SMOOTHING, labels.smoothing):
        add_scorer(run, f"smoothing_{name}", with_changes(labels, {"smoothing": value}))


@arms("constants", "margin-clip")
def margin_clip(run: Run) -> None:
    """The largest margin, where the margin is the strength itself."""
    add_strength(run)
    labels = with_changes(run.config.relabel, {"margin_scale": 1.0})
    for value, name in named_values(MARGIN_CLIPS, labels.margin_clip):
        add_scorer(run, f"margin_clip_{name}", with_changes(labels, {"margin_clip": value}))


@arms("constants", "temperature")
def temperature(run: Run) -> None:
    """tau of SimCSE on pairs."""
    train = with_changes(run.config.reward_model.train, {"dropout": DROPOUT})
    own = ContrastiveConfig(kind="simcse", on="pairs")
    for value, name in named_values(TEMPERATURES, own.temperature):
        contrastive = with_changes(own, {"temperature": value})
        add_scorer(run, f"temperature_{name}", train=train, contrastive=contrastive)


@arms("constants", "num-policies")
def num_policies(run: Run) -> None:
    """N of the Advantage Model, which counts where it weighs by who wrote the comparisons."""
    scorers(run)
    config = with_changes(run.config.advantage_model, {"use_importance_weights": True})
    for value, name in named_values(NUM_POLICIES, config.num_policies):
        run[f"scorer_num_policies_{name}"] = run.submit(
            ADVANTAGE_MODEL,
            run.seeded(with_changes(config, {"num_policies": value})),
            policy=run["sft"],
            preferences=run["preferences"],
            pairs=run["pairs_raw"],
            trunk=trunk_for(run, config.train),
            behaviour=run["sft"],
            data=prompts_for(run),
            label=f"Advantage Model, N = {value:g}",
        )


@arms("advantage-model", "figure-6")
@arms("constants", "num-clusters")
def num_clusters(run: Run) -> None:
    """c, with as many examples in all."""
    config = run.config.rehearsal
    kept = config.num_clusters * config.per_cluster
    for value, name in named_values(NUM_CLUSTERS, config.num_clusters):
        _rehearsed(run, f"num_clusters_{name}", int(value), max(1, kept // int(value)))


@arms("constants", "per-cluster")
def per_cluster(run: Run) -> None:
    """k."""
    config = run.config.rehearsal
    for value, name in named_values(PER_CLUSTER, config.per_cluster):
        _rehearsed(run, f"per_cluster_{name}", config.num_clusters, int(value))


def _rehearsed(run: Run, name: str, num_clusters: int, per_cluster: int) -> None:
    """`policy_<name>`: PPO-max on the Advantage Model with rehearsal of so many examples."""
    scorers(run)
    config = with_changes(
        run.config.rehearsal, {"num_clusters": num_clusters, "per_cluster": per_cluster}
    )
    add_rehearsal(run, name, config)
    add_policy(run, name, run.config.ppo, "advantage_raw", rehearsed=f"rehearsal_{name}")


@arms("constants", "meta-step")
def meta_step(run: Run) -> None:
    """eta of MetaRM on the SFT policy's answers; 0 is training on."""
    scorers(run)
    config = run.config.rounds.meta_rm
    for value, name in named_values(META_STEPS, config.meta_learning_rate):
        run[f"scorer_meta_step_{name}"] = run.submit(
            META_RM,
            run.seeded(with_changes(config, {"meta_learning_rate": value})),
            scorer=run["scorer_raw"],
            policy=run["sft"],
            data=run["data"],
            preferences=run["preferences"],
            pairs=run["pairs_raw"],
            trunk=trunk_for(run, run.config.reward_model.train, config.train),
            label=f"MetaRM, step {value:g}",
            resources=run.all_cores,
        )
