"""Everything a Prefect server needs to run Trimtab: `trimtab deploy`. Safe to repeat.

A work pool, the GPU slots (a global concurrency limit that every GPU stage takes one of), the
deployments of prefect.yaml, and the automations that tell people what happened. What takes a run
up again whose worker died is `trimtab.infra.prefect.reconciler`.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

import trimtab
from trimtab.flows.config.config import ConfigError
from trimtab.infra.prefect.reconciler import TAG
from trimtab.tasks.events import ADVANCED, COLLAPSED, PROMOTED
from trimtab.tasks.resources import GPU_SLOTS

POOL = "trimtab"
PACKAGE = Path(trimtab.__file__).parent
JOB_TEMPLATE = PACKAGE / "infra" / "kubernetes" / "job-template.json"
# The command of Prefect's workers; `python` is the first of the worker's PATH.
# -P: no file of a working directory stands in for a module of Prefect or Trimtab.
ENGINE = "python -P -m prefect.engine"
# With this one Python reads the files of its working folder first.
UNSAFE_ENGINE = "python -m prefect.engine"
# In pools of processes; other workers need it in their environment.
HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
# Stages say once a minute that they get on; one that waits for a GPU says nothing.
STILL = timedelta(hours=1)
STUCK = "trimtab.run.stuck"
# The reconciler has a crashed run go on within half a minute: it is not there, or not heard.
CRASHED_FOR = timedelta(minutes=10)
LEFT = "trimtab.run.left"

# Parameters that a person chooses in any case; the deployments of prefect.yaml have values of them.
REQUIRED = ("recipe", "paper", "exhibit")


def deploy(gpus: int, pool_type: str, notify: str | None, image: str | None) -> None:
    """Make or update all of it; ConfigError for what cannot be, e.g. an unknown block.

    image: that of flow runs on Kubernetes; None leaves the pool's.
    """
    if image and pool_type != "kubernetes":
        raise ConfigError(f"--image is {image!r}, but runs of a {pool_type!r} pool have no image")
    with get_client(sync_client=True) as client:
        channel = _channel(client, notify) if notify else None
        _work_pool(client, pool_type, image)
        client.upsert_global_concurrency_limit_by_name(GPU_SLOTS, gpus)
        _prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(PACKAGE / "prefect.yaml"))
        _serve_forms(client)
        for automation in notices(channel):  # in place of those of an earlier deployment
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            client.create_automation(automation)


def _events(states: str) -> set[str]:
    return {f"prefect.flow-run.{state}" for state in states.split()}


_STATES = _events(
    "Scheduled AwaitingRetry AwaitingConcurrencySlot Late Pending Running "
    "Paused Suspended Crashed Completed Failed Cancelled"
)
# The events of our deployments' runs, by the tag that these have.
_OURS = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}


def notices(channel: ActionTypes | None) -> list[AutomationCore]:
    """Automations that report failures, runs that stand still or wait, collapses and promotions.

    None without a channel.
    """
    if channel is None:
        return []
    failed = EventTrigger(expect=_events("Failed"), match_related=_OURS, posture=Posture.Reactive)
    waiting = failed.model_copy(update={"expect": _events("Suspended")})
    collapse, promotion = (
        EventTrigger(expect={event}, posture=Posture.Reactive) for event in (COLLAPSED, PROMOTED)
    )
    still = _silence(_events("Running") | {ADVANCED}, STILL)
    actions = {
        "failed runs": (failed, channel),
        "runs that wait for a person": (waiting, channel),
        "collapses": (collapse, channel),
        "promotions": (promotion, channel),
        "runs in which nothing moves": (still, _notice_of_silence(channel, STUCK)),
        "crashed runs that do not go on": (
            _silence(_events("Crashed"), CRASHED_FOR),
            _notice_of_silence(channel, LEFT),
        ),
    }
    return [
        AutomationCore(name=f"trimtab: tell of {name}", trigger=trigger, actions=[action])
        for name, (trigger, action) in actions.items()
    ]


def _silence(after: set[str], within: timedelta) -> EventTrigger:
    """Fires for each run of our deployments that has one of `after` and then no change of state.

    One more of `after` starts the time anew: only an event in both sets does so for Prefect, which
    would otherwise not watch a second one that comes `within` the time of the first.
    """
    return EventTrigger(
        after=after,
        expect=_STATES | after,
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=_OURS,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=within,
    )


def _work_pool(client: SyncPrefectClient, pool_type: str, image: str | None) -> None:
    try:
        pool = client.read_work_pool(POOL)
    except ObjectNotFound:
        ours = ["--base-job-template", str(JOB_TEMPLATE)] if pool_type == "kubernetes" else []
        _prefect("work-pool", "create", POOL, "--type", pool_type, *ours)
        pool = client.read_work_pool(POOL)
    if pool.type != pool_type:
        raise ConfigError(
            f"work pool {POOL!r} is of type {pool.type!r}, not {pool_type!r}: delete it first "
            f"(prefect work-pool delete {POOL})"
        )
    template = pool.base_job_template
    if pool_type == "process":
        template = close_template(template)
    elif image:
        template = set_image(template, image)
    client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=template))


def set_image(template: Mapping[str, Any], image: str) -> dict[str, Any]:
    """A pool's template of Kubernetes jobs whose flow runs have this image."""
    changed = copy.deepcopy(dict(template))
    try:
        pod = changed["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        pod["containers"][0]["image"] = image  # others serve it
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"--image is {image!r}, but the pool's template has no container at "
            "job_manifest.spec.template.spec.containers"
        ) from error
    return changed


def close_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """A pool of processes in which who starts a run chooses nothing of how it is started.

    With Prefect's own template each run could bring its command and environment. Here the command
    is the pool's; one that it has already stays, and so do its environment and working folder.
    With a command no other process looks for a run's code first: Trimtab is installed where a
    worker is, and loading it once more takes seconds. Its environment has HEARTBEATS, too.
    """
    fixed: dict[str, Any] = {}
    known = template["variables"].get("properties", {})
    for name, value in template["job_configuration"].items():
        is_variable = value == f"{{{{ {name} }}}}"
        setting = known.get(name, {}).get("default") if is_variable else value
        if setting not in (None, {}, UNSAFE_ENGINE):
            fixed[name] = setting
    fixed["env"] = {**HEARTBEATS, **fixed.get("env", {})}
    return {
        "job_configuration": {"command": ENGINE, **fixed},
        "variables": {"type": "object", "properties": {}, "additionalProperties": False},
    }


def _serve_forms(client: SyncPrefectClient) -> None:
    """Give the deployments the schemas of which Prefect's pages make their forms."""
    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    for deployment in client.read_deployments(deployment_filter=ours):
        schema = serve_schema(deployment.parameter_openapi_schema or {})
        client.request(
            "PATCH",
            "/deployments/{id}",
            path_params={"id": deployment.id},
            json={"parameter_openapi_schema": schema},
        )


def serve_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a flow's parameters as its deployment has it.

    Prefect's own lets a misspelt parameter pass, which would then fail the run; it says of no
    parameter with a default that a run needs it; and it draws what may be none as folded.
    """
    served = copy.deepcopy(dict(schema))
    parameters = served.get("properties", {})
    served["additionalProperties"] = False
    served["required"] = [name for name in REQUIRED if name in parameters]
    for name in ("name", "changes"):
        parameter = parameters.get(name, {})
        if "anyOf" in parameter:
            kind, _none = parameter.pop("anyOf")
            parameter |= kind
            del parameter["default"]
    if "changes" in parameters:  # the longest comes last
        parameters["changes"]["position"] = len(parameters)
    return served


def _channel(client: SyncPrefectClient, block: str) -> ActionTypes:
    """The action by which a block, named as `type/name`, sends a notice."""
    kind, _, name = block.partition("/")
    try:
        document = client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        raise ConfigError(
            f"no block {block!r} on this Prefect server: make one on its page Blocks, and name it "
            "as type/name, e.g. slack-webhook/alerts or webhook/alerts"
        ) from None
    if kind == "webhook":
        return CallWebhook(block_document_id=document.id, payload=NOTICE)
    subject = "Trimtab: {{ event.event }}"
    return SendNotification(block_document_id=document.id, subject=subject, body=NOTICE)


def _notice_of_silence(channel: ActionTypes, event: str) -> ActionTypes:
    """A channel's notice that events stay away, which is no event of Prefect's."""
    text = NOTICE.replace(_EVENT, json.dumps(event))
    if isinstance(channel, CallWebhook):
        return channel.model_copy(update={"payload": text})
    return channel.model_copy(update={"body": text, "subject": f"Trimtab: {event}"})


_EVENT = "{{ event.event | tojson }}"
# A run has any name: it is written as a JSON text, and so are the other values.
NOTICE = """{
 "event": {{ event.event | tojson }},
 "resource": {{ (event.resource.name or '') | tojson }},
 "occurred": "{{ event.occurred }}",
 "payload": {{ event.payload | tojson }},
 "run": {{ ((flow_run | ui_url if flow_run else '') or '') | tojson }}
}"""


def _prefect(*arguments: str) -> None:
    command = [sys.executable, "-P", "-m", "prefect", *arguments]
    env = {**os.environ, "TRIMTAB_VERSION": trimtab.__version__}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise ConfigError(f"prefect {' '.join(arguments)} failed: {output}")
