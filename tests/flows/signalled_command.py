"""The command, for a run that a signal ends once a trainer of a stage has done so many steps.

Its arguments: the signal's name, the stage, the steps, and then the command's own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from unittest import mock

from tests.models import stopping
from trimtab.flows.cli import cli
from trimtab.tasks import context
from trimtab.tasks.cache_key import StageModules
from trimtab.tasks.execution import StageContext

_MODULES = StageModules(entry=stopping.__name__)


@dataclass(frozen=True)
class _Context(StageContext):
    modules: StageModules = _MODULES


def main(number: str, stage: str, step: str, *arguments: str) -> int:
    """Run the command until the signal comes; returns its exit status if none does."""
    with NamedTemporaryFile("w", delete=False) as orchestrator:
        orchestrator.write(str(os.getpid()))
    os.environ |= {
        stopping.SIGNAL: number,
        stopping.STAGE: stage,
        stopping.STEP: step,
        stopping.ORCHESTRATOR: orchestrator.name,
    }
    with mock.patch.object(context, "StageContext", _Context):
        return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
