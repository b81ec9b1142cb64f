"""Registered policies: registering a run's policies, and loading one with its run.

A version names the report of its run; the report's manifest names every artifact by the role it
played. So nothing about a champion is kept anywhere but in its lineage.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.artifacts import create_link_artifact

from trimtab.infra.tracking.registry import Registry, Version
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.context import base_context, flow_run_tags
from trimtab.tasks.events import PROMOTED, emit
from trimtab.tasks.execution import StageResult, result_of
from trimtab.tasks.retries import is_transient

# Tags of a version: which policy it is, of which round, the report of its run, and the settings
# under which another round did not take its place.
PREFIX = "trimtab-policy-"
KEY, DIGEST = "trimtab.key", "trimtab.digest"
ROUND, REPORT, TRIED = "trimtab.round", "trimtab.report", "trimtab.tried"

logger = logging.getLogger("trimtab")


class LineageError(RuntimeError):
    """A registered policy whose run cannot be found again."""


@dataclass(frozen=True)
class Registered:
    """A registered policy with the run that made it: its configuration, its artifacts by role."""

    version: Version
    round: int
    config: dict[str, Any]
    artifacts: dict[str, StageResult]


def _as_now(config: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration without settings that are gone (0.2.0: one that nothing read)."""
    meta_rm = {**config["rounds"]["meta_rm"]}
    meta_rm.pop("num_policies", None)
    return {**config, "rounds": {**config["rounds"], "meta_rm": meta_rm}}


def model_name(recipe: str) -> str:
    """The registered model of a recipe's policies; a registered model's own name stays."""
    return recipe if recipe.startswith(PREFIX) else f"{PREFIX}{recipe}"


def registry() -> Registry:
    """The registry of the MLflow that the environment names."""
    return Registry(base_context().tracking)


@task(
    name="register",
    task_run_name="register",
    tags=["cpu"],
    retries=5,
    retry_delay_seconds=[5, 10, 20, 40, 60],  # a server that is restarted is back by then
    retry_condition_fn=is_transient,
)
def register_policies(
    run_id: str | None,
    model: str,
    policies: dict[int, StageResult],
    champion: int | None,
    report: StageResult,
    settings: str,
) -> str | None:
    """Register policies by round: the last is the candidate, that of round `champion` the champion.

    What is registered already is not copied again. Where another version stays champion it is noted
    there that a round under these `settings` did not take its place. Nothing is done with tracking
    off. Returns in words what is registered.
    """
    if not base_context().tracking.uri or not policies:
        return None
    last, name = max(policies), model_name(model)
    register_overwritten_again(name, run_id)
    before = registry().find(name, "champion")
    numbers = {}
    for number, policy in policies.items():
        aliases = ("candidate",) * (number == last) + ("champion",) * (number == champion)
        tags = {ROUND: str(number), REPORT: report.ref.key, **flow_run_tags()}
        numbers[number] = _register(run_id, name, policy.ref, aliases, tags)
    now = registry().find(name, "champion")
    if now is not None and now.number != numbers[last]:
        registry().tag(now, {TRIED: settings})
    if now is not None and now.number != (before and before.number):
        emit(PROMOTED, name, version=now.number, report=report.ref.key)
    _link(name, numbers[last])
    holders = {"candidate": registry().find(name, "candidate"), "champion": now}
    said = [f"{alias} version {each.number}" for alias, each in holders.items() if each]
    return f"{name}: {', '.join(said)}"


def _register(
    run_id: str | None,
    name: str,
    policy: ArtifactRef,
    aliases: tuple[str, ...],
    tags: Mapping[str, str],
) -> str:
    """Make a policy a version; where MLflow was down when the run began, in a run of its own."""
    context = base_context()
    manifest = context.store.find(policy.stage, policy.key)
    if manifest is None:
        raise LookupError(f"policy {policy} vanished from {context.store.url}")
    folder = context.settings.work / f"register-{policy.key[:16]}"
    tracking = context.tracking
    run = (
        tracking.attach(run_id) if run_id else tracking.start_run("register", tags=flow_run_tags())
    )
    try:
        context.store.materialise(manifest, folder)
        version = registry().register(
            run,
            name,
            folder / "model",
            identity={DIGEST: policy.digest, KEY: policy.key},
            aliases=aliases,
            tags=tags,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if run_id is None:
            run.end()
    return version.number


def register_overwritten_again(name: str, run_id: str | None = None) -> None:
    """Register again, from the store, the versions whose folder holds other weights.

    One that the store does not have any more stays as it is, with a warning.
    """
    store = base_context().store
    for version in registry().overwritten(name):
        policy = _policy_of(version)
        if policy is not None:
            _register(run_id, name, policy, (), {})
        else:
            logger.warning(
                "version %s of %s holds the weights of a later version, and %s does not have its "
                "own any more",
                *(version.number, name, store.url),
            )


def _policy_of(version: Version) -> ArtifactRef | None:
    """The artifact that a version was made of, by its run's report; None if it is not there."""
    store, key = base_context().store, version.tags.get(REPORT)
    report = store.find("report", key) if key else None
    for made in report.parents.values() if report else ():
        if made["key"] == version.tags.get(KEY) and store.find(made["stage"], made["key"]):
            return ArtifactRef(made["stage"], made["key"], made["digest"])
    return None


def roll_back(recipe: str, to: str | None) -> Version:
    """Make the champion's predecessor, or version `to`, champion again; RegistryError if none."""
    name = model_name(recipe)
    register_overwritten_again(name)
    return registry().roll_back(name, "champion", to)


def _link(name: str, number: str) -> None:
    """A link to a version on the flow run's page, where MLflow is a server."""
    address = base_context().tracking.uri
    if address.startswith("http"):
        create_link_artifact(
            key="trimtab-policy",
            link=f"{address}/#/models/{name}/versions/{number}",
            link_text=f"{name}, version {number}",
        )


def reports_of_registered() -> set[str]:
    """Keys of the reports that registered policies name."""
    if not base_context().tracking.uri:
        return set()
    return registry().tag_values(model_name(""), REPORT)


def registered(recipe: str, which: str) -> Registered | None:
    """A policy by alias or version number, with its run; None where there is none.

    Raises LineageError where the store no longer has its run.
    """
    version = registry().find(model_name(recipe), which)
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
        _as_now(manifest.config["config"]),
        {name: result_of(made[name]) for name in in_order},
    )
