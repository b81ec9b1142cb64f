"""Keys of judge endpoints, for the environment of a trainer, which has no other secrets.

They are in the environment or in Prefect's Secret blocks.
"""

from __future__ import annotations

import os

from prefect.blocks.system import Secret
from pydantic import BaseModel

from trimtab.models.config.judge import endpoints_of
from trimtab.tasks.access import access_of_run, key_name
from trimtab.tasks.execution import StageInputError


def judge_keys(config: BaseModel) -> dict[str, str]:
    """Environment variable -> key, of the endpoints in a configuration.

    Raises StageInputError where there is no such block.
    """
    access, found = access_of_run(), {}
    for endpoint in endpoints_of(config):
        name = key_name(endpoint, access)
        if access is not None and name is not None:
            access.demand_judge(endpoint.base_url, name)
        if endpoint.key_block is not None:
            found[endpoint.key_variable] = _value_of(endpoint.key_block)
        elif name is not None and name in os.environ:
            found[name] = os.environ[name]
    return found


def _value_of(block: str) -> str:
    try:
        found = Secret.load(block)
    except ValueError:  # Prefect's: also where no block of the kind was ever saved
        raise StageInputError(
            f"key_block is {block!r}, and Prefect's server has no Secret block of that name: make "
            "one on its page Blocks"
        ) from None
    assert isinstance(found, Secret)
    return str(found.get())
