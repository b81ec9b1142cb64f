"""Keys of judge endpoints that lie in Prefect's Secret blocks, for the environment of a trainer."""

from __future__ import annotations

from prefect.blocks.system import Secret
from pydantic import BaseModel

from models.config_endpoint import endpoints_of
from tasks.stage import StageInputError


def judge_keys(config: BaseModel) -> dict[str, str]:
    """Environment variable -> key, of the endpoints in a configuration that name a block.

    Raises StageInputError where there is no such block.
    """
    return {
        endpoint.key_variable: _value_of(endpoint.key_block)
        for endpoint in endpoints_of(config)
        if endpoint.key_block is not None
    }


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
