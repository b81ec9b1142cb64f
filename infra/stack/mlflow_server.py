"""`mlflow server` as one process: python -P -m trimtab.infra.stack.mlflow_server --host ...

MLflow starts uvicorn as another process, which outlives a kill of the first. This one becomes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from mlflow import server
from mlflow.cli import cli


def _become(command: list[str], *, extra_env: Mapping[str, str], **_: object) -> NoReturn:
    os.execvpe(command[0], command, {**os.environ, **extra_env})


if __name__ == "__main__":
    server._exec_cmd = _become
    sys.exit(cli(["server", *sys.argv[1:]]))
