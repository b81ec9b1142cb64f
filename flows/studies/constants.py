"""The arms of sweeps: the recipe with one constant of other values, its own among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from trimtab.flows.config.config import RunConfig
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.advantage_model import add_rehearsal, scorers
from trimtab.flows.studies.part_two import DROPOUT
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    add_meta_rm,
    add_policy,
    add_scorer,
    submit_advantage_model,
    with_changes,
)
from trimtab.models.config.reward import ContrastiveConfig
from trimtab.models.studies.variants import CONSTANTS

SIMCSE = ContrastiveConfig(kind="simcse", on="pairs")
# Adds the arm of a name with a value.
AddArm = Callable[[Run, str, float], None]


def named_values(values: Sequence[float], recipe: float) -> Iterator[tuple[float, str]]:
    """Each value with its name in a role; the recipe's own is among them."""
    for value in sorted({*values, recipe}):
        yield value, f"{value:g}{'_recipe' if value == recipe else ''}"


def _smoothing(run: Run, name: str, value: float) -> None:
    add_scorer(run, name, with_changes(run.config.relabel, {"smoothing": value}))


def _margin_clip(run: Run, name: str, value: float) -> None:
    """Of a margin that is the strength itself."""
    changes = {"margin_scale": 1.0, "margin_clip": value}
    add_scorer(run, name, with_changes(run.config.relabel, changes))


def _temperature(run: Run, name: str, value: float) -> None:
    contrastive = with_changes(SIMCSE, {"temperature": value})
    add_scorer(run, name, train={"dropout": DROPOUT}, contrastive=contrastive)


def _num_policies(run: Run, name: str, value: float) -> None:
    """N counts where the Advantage Model weighs by who wrote the comparisons."""
    scorers(run)
    changes = {"use_importance_weights": True, "num_policies": value}
    config = with_changes(run.config.advantage_model, changes)
    label = f"Advantage Model, N = {value:g}"
    submit_advantage_model(run, f"scorer_{name}", config, "pairs_raw", label)


def _num_clusters(run: Run, name: str, value: float) -> None:
    """With as many examples in all."""
    config = run.config.rehearsal
    kept = config.num_clusters * config.per_cluster
    _rehearsed(run, name, int(value), max(1, kept // int(value)))


def _per_cluster(run: Run, name: str, value: float) -> None:
    _rehearsed(run, name, run.config.rehearsal.num_clusters, int(value))


def _rehearsed(run: Run, name: str, num_clusters: int, per_cluster: int) -> None:
    """`policy_<name>`: PPO-max on the Advantage Model with rehearsal of so many examples."""
    scorers(run)
    changes = {"num_clusters": num_clusters, "per_cluster": per_cluster}
    add_rehearsal(run, name, with_changes(run.config.rehearsal, changes))
    add_policy(run, name, run.config.ppo, "advantage_raw", rehearsed=f"rehearsal_{name}")


def _meta_step(run: Run, name: str, value: float) -> None:
    """On the SFT policy's answers; 0 is training on."""
    scorers(run)
    config = with_changes(run.config.rounds.meta_rm, {"meta_learning_rate": value})
    add_meta_rm(run, f"scorer_{name}", config, "sft", f"MetaRM, step {value:g}")


# Of each constant the recipe's value, and the arm of another.
SWEEPS: dict[str, tuple[Callable[[RunConfig], float], AddArm]] = {
    "smoothing": (lambda config: config.relabel.smoothing, _smoothing),
    "margin-clip": (lambda config: config.relabel.margin_clip, _margin_clip),
    "temperature": (lambda _: SIMCSE.temperature, _temperature),
    "num-policies": (lambda config: config.advantage_model.num_policies, _num_policies),
    "num-clusters": (lambda config: config.rehearsal.num_clusters, _num_clusters),
    "per-cluster": (lambda config: config.rehearsal.per_cluster, _per_cluster),
    "meta-step": (lambda config: config.rounds.meta_rm.meta_learning_rate, _meta_step),
}


def sweep(constant: str, run: Run) -> None:
    """Scorers or policies `<constant>_<value>`."""
    recipe_value, add = SWEEPS[constant]
    for value, name in named_values(CONSTANTS[constant].values, recipe_value(run.config)):
        add(run, f"{constant.replace('-', '_')}_{name}", value)


for constant in SWEEPS:
    arms("constants", constant)(partial(sweep, constant))
arms("advantage-model", "figure-6")(partial(sweep, "num-clusters"))
