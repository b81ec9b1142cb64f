"""`trimtab ui`: Prefect's and MLflow's own servers on the embedded files, until interrupted."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from trimtab.flows.config.errors import CommandError
from trimtab.infra.settings import Settings
from trimtab.infra.stack.programs import StackError
from trimtab.infra.stack.services import mlflow_server, prefect_server, url
from trimtab.infra.stack.supervisor import Supervisor
from trimtab.infra.tracking.mlflow_calls import VIEW, follow_move


def serve_pages(settings: Settings, host: str, port: int, mlflow_port: int) -> None:
    """Run both servers, with this process's environment and with logs in the home folder.

    Raises CommandError where a port is taken or a server does not start, and then leaves neither.
    """
    artifacts = settings.home / "mlartifacts"
    if settings.embedded_mlflow:
        try:
            follow_move(artifacts)
        except OSError as error:
            raise CommandError(str(error)) from error
    services = [
        replace(service, secrets=os.environ)
        for service in (
            prefect_server((host, port)),
            mlflow_server((host, mlflow_port), settings.mlflow_uri, str(artifacts)),
        )
    ]
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trimtab.infra.stack").setLevel(logging.INFO)
    logs = settings.home / "logs"
    try:
        with Supervisor(services, logs) as running:
            print(
                f"Prefect: {url((host, port))}   "
                f"MLflow: {url((host, mlflow_port))}/#/experiments{VIEW}   "
                f"logs: {logs}   Ctrl-C stops both",
                flush=True,
            )
            running.watch()
    except StackError as error:
        raise CommandError(str(error)) from error
