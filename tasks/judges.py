"""Variables of a stage's trainer about the judges that it asks.

Their keys are in the environment or in Prefect's Secret blocks; a trainer has no other secrets.

Limits of what a whole run may spend on judges are kept by one ledger for each section of its
configuration. A section is a stage's name with an endpoint, such as that of `evaluate.harmless`.
Its limits are those of the whole run, whatever stages of it run at once, are tried again or go on
after a kill. The ledgers lie in the folder of TRIMTAB_ANSWERS, which hosts that work for one run
must share.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from prefect.blocks.system import Secret
from pydantic import BaseModel

from trimtab.infra.settings import Settings
from trimtab.models.config.base import values_in_key
from trimtab.models.config.external_reward import RewardConfig
from trimtab.models.config.judge import endpoints_of, servers_of
from trimtab.models.judge.addresses import CONFINED_VARIABLE, NETWORKS_VARIABLE
from trimtab.models.judge.budget import RUN_LEDGER_VARIABLE
from trimtab.models.specs import EXTERNAL_REWARD
from trimtab.tasks.access import access_of_run, key_name
from trimtab.tasks.execution import StageInputError


class UnsharedLedgerError(ValueError):
    """Hosts of one run would each count by themselves what all of them may spend."""


def judge_environment(
    settings: Settings,
    stage: str,
    config: BaseModel,
    run: str | None,
    rewards: Sequence[RewardConfig] = (),
) -> dict[str, str]:
    """Variables of a stage's trainer: keys, where judges may be, the ledger of the stage's section.

    rewards: those from outside that the stage scores by, each with one ledger for all stages.
    Raises StageInputError and UnsharedLedgerError as below.
    """
    env = judge_access_env()
    for reward in rewards:
        env |= judge_keys(reward) | ledger_of_run(settings, EXTERNAL_REWARD.name, reward, run)
    return env | judge_keys(config) | ledger_of_run(settings, stage, config, run)


def judge_keys(config: BaseModel) -> dict[str, str]:
    """Environment variable -> key, of the servers in a configuration.

    Raises StageInputError where there is no such block.
    """
    access, keys = access_of_run(), {}
    for endpoint in servers_of(config):
        name = key_name(endpoint, access)
        if access is not None and name is not None:
            access.demand_judge(endpoint.address, name)
        if endpoint.key_block is not None:
            keys[endpoint.key_variable] = _value_of(endpoint.key_block)
        elif name is not None and name in os.environ:
            keys[name] = os.environ[name]
    return keys


def _value_of(block: str) -> str:
    try:
        secret = Secret.load(block)
    except ValueError:  # Prefect's: also where no block of the kind was ever saved
        raise StageInputError(
            f"key_block is {block!r}, and Prefect's server has no Secret block of that name: make "
            "one on its page Blocks"
        ) from None
    assert isinstance(secret, Secret)
    return str(secret.get())


def judge_access_env() -> dict[str, str]:
    """Variables that tell a trainer where judges may be."""
    access = access_of_run()
    if access is None:
        return {}
    return {CONFINED_VARIABLE: "1", NETWORKS_VARIABLE: ",".join(access.allowed_networks)}


def ledger_of_run(
    settings: Settings, stage: str, config: BaseModel, run: str | None
) -> dict[str, str]:
    """The variable that names the ledger of a stage's section in a run; none without a limit.

    Raises UnsharedLedgerError on a cluster whose hosts have no folder in common.
    """
    limited = next((judge for judge in endpoints_of(config) if judge.is_limited), None)
    if run is None or limited is None:
        return {}
    if settings.dask is not None and "TRIMTAB_ANSWERS" not in os.environ:
        raise UnsharedLedgerError(
            "TRIMTAB_DASK is set, and a judge has max_cost or max_total_tokens: set "
            "TRIMTAB_ANSWERS to a folder that all hosts share, where they count what they spend"
        )
    endpoint = json.dumps([getattr(config, "name", None), values_in_key(limited)], sort_keys=True)
    section = f"{stage}-{hashlib.sha256(endpoint.encode()).hexdigest()[:16]}"
    folder = settings.answers / "ledgers" / run / section
    folder.mkdir(parents=True, exist_ok=True)
    return {RUN_LEDGER_VARIABLE: str(folder)}
