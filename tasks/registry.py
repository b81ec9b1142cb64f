"""Registered policies: how a run's end becomes a version, and how a later run finds it again.

A version names the report of its run; the report's manifest names every artifact by the role it
played. So nothing about a champion is kept anywhere but in its lineage.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from prefect import task

from infra.registry import Registry, Version
from tasks.perform import base_context
from tasks.stage import StageResult, result_of

ROUND, REPORT, TRIED = "trimtab.round", "trimtab.report", "trimtab.tried"


class LineageError(RuntimeError):
    """A registered policy whose run cannot be found again."""


@dataclass(frozen=True)
class Registered:
    """A registered policy with the run that made it: its configuration, its artifacts by role."""

    version: Version
    round: int
    config: dict[str, Any]
    artifacts: dict[str, StageResult]


def model_name(recipe: str) -> str:
    """The registered model of a recipe's policies."""
    return f"trimtab-policy-{recipe}"


def registry() -> Registry:
    """The registry of the MLflow that the environment names."""
    return Registry(base_context().tracking)


@task(name="register", task_run_name="register round {number}", tags=["cpu"])
def register_policy(
    run_id: str | None,
    recipe: str,
    number: int,
    policy: StageResult,
    report: StageResult,
    aliases: tuple[str, ...],
) -> str | None:
    """Register a round's policy under `aliases`; returns the version, None with tracking off.

    A policy that is registered already is not copied again.
    """
    context = base_context()
    manifest = context.store.find(policy.ref.stage, policy.ref.key)
    if manifest is None:
        raise LookupError(f"policy {policy.ref} vanished from {context.store.url}")
    folder = context.settings.work / f"register-{policy.ref.key[:16]}"
    try:
        context.store.materialise(manifest, folder)
        version = registry().register(
            context.tracking.attach(run_id),
            model_name(recipe),
            folder / "model",
            identity={"trimtab.digest": policy.ref.digest, "trimtab.key": policy.ref.key},
            aliases=aliases,
            tags={ROUND: str(number), REPORT: report.ref.key},
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return version.number if version else None


def registered(recipe: str, alias: str) -> Registered | None:
    """The policy that holds an alias, with its run; None where no policy does.

    Raises LineageError where the store no longer has its run.
    """
    version = registry().holder(model_name(recipe), alias)
    if version is None:
        return None
    store = base_context().store
    key = version.tags.get(REPORT, "")
    manifest = store.find("report", key) if key else None
    if manifest is None:
        raise LineageError(
            f"version {version.number} of {version.name} was made by a run whose report {key!r} is "
            f"not in the store {store.url}; open the store it was published to, or run the recipe"
        )
    made = {}
    for name, parent in manifest.parents.items():
        found = store.find(parent["stage"], parent["key"])
        if found is None or found.digest != parent["digest"]:
            raise LineageError(
                f"version {version.number} of {version.name}: its {name} ({parent['stage']} "
                f"{parent['key'][:16]}) is not in the store {store.url} any more; run the recipe"
            )
        made[name] = found
    in_order = sorted(made, key=lambda name: made[name].created)
    return Registered(
        version,
        int(version.tags[ROUND]),
        dict(manifest.config["config"]),
        {name: result_of(made[name]) for name in in_order},
    )


def mark_tried(recipe: str, candidate: str | None, settings: str) -> None:
    """Note at the champion that a round under these settings did not take its place.

    `candidate` is the round's version, None with tracking off.
    """
    if candidate is None:
        return
    champion = registry().holder(model_name(recipe), "champion")
    if champion is not None and champion.number != candidate:
        registry().tag(champion, {TRIED: settings})
