"""Registering models: aliases `candidate` and `champion` in MLflow's registry."""

from __future__ import annotations

import shutil

from prefect import task

from infra.tracking import TrackedRun
from tasks.perform import base_context
from tasks.stage import StageResult

MODEL_NAME = "trimtab-policy"


@task(name="register", task_run_name="register {recipe} {aliases}", tags=["cpu"])
def register_policy(
    run_id: str | None, policy: StageResult, recipe: str, aliases: tuple[str, ...]
) -> str | None:
    """Register a policy under `aliases`; returns the version.

    A policy that is registered already is not copied again.
    """
    context = base_context()
    tracked: TrackedRun = context.tracking.attach(run_id)
    manifest = context.store.find(policy.ref.stage, policy.ref.key)
    if manifest is None:
        raise LookupError(f"policy {policy.ref} vanished from {context.store.url}")
    folder = context.settings.work / f"register-{policy.ref.key[:16]}"
    try:
        context.store.materialise(manifest, folder)
        return tracked.register_model(
            f"{MODEL_NAME}-{recipe}",
            folder / "model",
            aliases=aliases,
            tags={"trimtab.digest": policy.ref.digest, "trimtab.key": policy.ref.key},
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
