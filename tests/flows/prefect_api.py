"""Calls to Prefect's API that make a deployment's runs in any state."""

from __future__ import annotations

import os
from typing import Any

import requests

TAG = "trimtab"


def ask(method: str, path: str, body: Any = None) -> Any:
    """The answer's JSON; HTTPError for one that refuses."""
    answer = requests.request(
        method, f"{os.environ['PREFECT_API_URL']}/{path}", json=body, timeout=30
    )
    answer.raise_for_status()
    return answer.json() if answer.content else None


def deployment(flow: str, pool: str = "process") -> str:
    """The id of a deployment in a pool of this type, whose name is its type."""
    requests.post(
        f"{os.environ['PREFECT_API_URL']}/work_pools/",
        json={"name": pool, "type": pool},
        timeout=30,
    )  # which there may be already
    made = {"flow_id": ask("POST", "flows/", {"name": flow})["id"], "name": f"{flow} on {pool}"}
    return str(ask("POST", "deployments/", {**made, "work_pool_name": pool, "tags": [TAG]})["id"])


def start(deployment: str, *states: str, **body: Any) -> str:
    """The id of a run of a deployment that has been in these states."""
    path = f"deployments/{deployment}/create_flow_run"
    run = ask("POST", path, {"state": {"type": states[0]}, **body})["id"]
    for state in states[1:]:
        force(run, state)
    return str(run)


def force(run: str, state: str) -> None:
    """Put a run into a state, whatever it is in."""
    ask("POST", f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})


def state_of(run: str) -> dict[str, Any]:
    """The state of a run."""
    return dict(ask("GET", f"flow_runs/{run}")["state"])
