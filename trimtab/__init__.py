"""Stable RLHF as a workflow: noisy human preferences in, a steadier policy out.

From Python: `audit`, `train_reward` and `run` do what the commands do, `RewardModel` scores,
`functional` has the papers' formulas, and `trl` a trainer of TRL's with them
(docs/reference/python.md). What a name needs is loaded once the name is used.

The subpackages are the repository's top-level folders: `trimtab/flows` is a link to `flows`, and so
on. So the folders lie where readers look first, and what is installed is one package, `trimtab`.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

try:
    __version__ = metadata.version("trimtab")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "unknown"

# The names, by the modules that they are loaded from; __init__.pyi has them for type checkers.
_MODULES = {
    "trimtab.flows.api.calls": ("audit", "run", "train_reward"),
    "trimtab.flows.api.results": ("AuditResult", "RewardResult", "RunResult"),
    "trimtab.flows.config.errors": ("CommandError", "ConfigError"),
    "trimtab.infra.settings": ("SettingsError",),
    "trimtab.models.statistics.measured": ("Estimate",),
    "trimtab.models.training.reward_function": ("RewardModel",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("functional", "trl")
__all__ = sorted((*_MODULE_OF, "functional"))  # trl needs a package that may be missing


def __getattr__(name: str) -> Any:
    """A name of `__all__`, or `trl`, loaded when it is first used (PEP 562)."""
    if name in _SUBMODULES:
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{__name__}.{name}: {error}") from error
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, *_SUBMODULES})
