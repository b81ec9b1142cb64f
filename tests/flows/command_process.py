"""A process that runs command after command, and so loads Prefect, MLflow and torch once for all.

Its trainers are forked by a server that has loaded what few stages need, too.

Each comes as a line of JSON on standard input, with its environment and the file that takes what it
prints; its exit status goes back. That PREFECT_HOME and PREFECT_API_URL are the same for all is for
the caller to see to: Prefect reads them as it is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

from trimtab.flows.cli.cli import main
from trimtab.infra.processes import launch

launch.PRELOAD = "tests.flows.preload_all"  # before tasks read it


def run(arguments: Sequence[str]) -> int:
    """The exit status of a command, as that of a process of its own would be."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        _forget()


def _forget() -> None:
    """Leave nothing of a command to the next one, and nothing unsent to Prefect's server."""
    if "trimtab.tasks.context" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        from trimtab.tasks.context import base_context

        base_context.cache_clear()
        EventsWorker.drain_all()
        APILogWorker.drain_all()
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        command = json.loads(line)
        os.environ.clear()
        os.environ.update(command["environment"])
        output = os.open(command["output"], os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        print(run(command["arguments"]), file=answers, flush=True)
