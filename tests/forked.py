"""The fork server of the tests: one for all of a process, which has loaded what its children run.

A process has one fork server. Whoever starts it says what it loads; what later ones ask for is
ignored, and each of their children would load it anew, for seconds.
"""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "tests.infra.processes.test_locks",
        "tests.models.judge.test_ledger",
        "tests.models.nets.test_dropout",
        "tests.tasks.test_concurrent_runs",
        "tests.tasks.test_mlflow_outage",
        "mlflow.server",
    ]
)
