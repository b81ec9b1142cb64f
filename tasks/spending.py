"""Spending limits of a whole run on judges: one ledger for each section of its configuration.

A section is a stage's name with an endpoint, such as that of `evaluate.harmless`. Its limits are
those of the whole run, whatever stages of it run at once, are tried again or go on after a kill.
The ledgers lie in the folder of TRIMTAB_ANSWERS, which hosts that work for one run must share.
"""

from __future__ import annotations

import hashlib
import json
import os

from pydantic import BaseModel

from trimtab.infra.settings import Settings
from trimtab.models.config.base import deciding
from trimtab.models.config.judge import endpoints_of
from trimtab.models.judge.budget import RUN_LEDGER_VARIABLE, RunLedger


class UnsharedLedgerError(ValueError):
    """Hosts of one run would each count by themselves what all of them may spend."""


def ledger_of_run(
    settings: Settings, stage: str, config: BaseModel, run: str | None
) -> dict[str, str]:
    """The variable that names the ledger of a stage's section in a run; none without a limit.

    Raises UnsharedLedgerError on a cluster whose hosts have no folder in common.
    """
    limited = next((each for each in endpoints_of(config) if each.is_limited), None)
    if run is None or limited is None:
        return {}
    if settings.dask is not None and "TRIMTAB_ANSWERS" not in os.environ:
        raise UnsharedLedgerError(
            "TRIMTAB_DASK is set, and a judge has max_cost or max_total_tokens: set "
            "TRIMTAB_ANSWERS to a folder that all hosts share, where they count what they spend"
        )
    what = json.dumps([getattr(config, "name", None), deciding(limited)], sort_keys=True)
    section = f"{stage}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    folder = settings.answers / "ledgers" / run / section
    RunLedger.create(folder, max_tokens=limited.max_total_tokens, max_cost=limited.max_cost)
    return {RUN_LEDGER_VARIABLE: str(folder)}
