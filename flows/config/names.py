"""Names of runs: recipe and seed, data, and the settings that differ from the recipe.

    default-seed0                                a recipe as it is
    default-seed1-ppo.kl_coef=0.05               one setting changed
    hh-smollm2-seed0-my-3f2a9c12                 your own files: name, sha256 of their contents
    smoke-seed0-ensemble.size=5-4e07408c         too much to say: the first changes, sha256 of all
    default-seed0-label-audit                    another flow than `rlhf`
    audit-my-3f2a9c12-columns.prompt=Question    a recipe for one flow, whose subject is the files:
                                                 no flow, no usual seed, no `preferences.`

Reports and the runs of MLflow and Prefect have this name. It stands for the configuration: two that
differ do not share one, and one configuration always has the same. What policies compete for has a
name as well, the registered model of all runs on the same data (`registered_model_name`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trimtab.flows import FLOWS
from trimtab.flows.config.config import NOT_COUNTED, NUM_JUDGES, ConfigError, RunConfig
from trimtab.flows.config.overrides import format_overrides
from trimtab.flows.config.paths import leaves, value_at
from trimtab.flows.config.recipes import ONLY_FLOW, RECIPES
from trimtab.infra.reports import NameTakenError, check_owner
from trimtab.infra.settings import Settings
from trimtab.infra.store.fetch import digest_of, is_remote
from trimtab.models.config.base import last_part
from trimtab.models.judge.constitutions import PACKAGED

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$"
MAX_NAME = 150
GivenName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME)]

MAX_CHANGES = 60  # characters of a name that say what is changed
MAX_STEM = 24  # of a file's name
NUM_HEX = 8  # of a sha256
# Options of commands on files that stand for settings; --columns stands for those that begin so.
COLUMNS = "preferences.columns."
AUDIT_OPTIONS = {
    "ensemble.scores": "--votes",
    "relabel.review": "--apply",
}
OPTIONS = {"audit": AUDIT_OPTIONS, "reward": {"sft.model.base": "--base"}}
# Settings that name files, whose contents count and not where they lie.
FILES = ("sources", "demonstrations", "scores", "review", "constitution")
DATA = ("preferences.sources", "preferences.demonstrations")
# Settings that decide the pairs, the SFT policy and who judges; the rest is what competes.
JUDGED_ON = ("world", "comparisons", "preferences", "sft", "constitution", "ai_labels", "evaluate")


@dataclass(frozen=True)
class RunName:
    """A run's name, and what it stands for.

    configuration: the name that it has by default. settings: all of them by path, files by their
    contents. files: by path, as the command line has them, the settings that name files. command:
    makes the run again, with its files where they were; empty for a run that is not of `trimtab
    run`, `trimtab audit` or `trimtab reward`.
    """

    name: str
    configuration: str
    flow: str
    settings: Mapping[str, Any]
    files: Mapping[str, Any]
    command: str

    @property
    def about(self) -> dict[str, Any]:
        """The part of it that the report's folder keeps."""
        return {name: value for name, value in vars(self).items() if name != "command"}


def name_run(config: RunConfig, flow: str, name: str | None = None) -> RunName:
    """The name of a run of one configuration: `name`, by default that of the configuration."""
    changes, usual = _changes(config), _recipe(config)
    changes.pop("seed", None)
    seed = f"seed{config.seed}"
    if config.recipe in ONLY_FLOW:
        changes = {path.removeprefix("preferences."): value for path, value in changes.items()}
        seed = seed if config.seed != usual.seed else ""
    part = "" if flow in ("rlhf", ONLY_FLOW.get(config.recipe)) else flow
    usual_name = _joined(_safe(config.recipe), seed, data_name(config), _shortened(changes), part)
    return _named(usual_name, name, flow, config, settings_of(config))


def name_run_over_seeds(
    config: RunConfig,
    flow: str,
    chosen: Mapping[str, Any],
    usual: Mapping[str, Any],
    name: str | None = None,
    base: RunConfig | None = None,
) -> RunName:
    """The name of a run over several seeds, and arms: those that are not `usual` show in it, and
    settings that are not as in `base`, by default the recipe."""
    changes = {key: value for key, value in chosen.items() if list(value) != list(usual[key])}
    changes |= {k: v for k, v in _changes(config, base).items() if k not in ("arms", "seed")}
    settings = {k: v for k, v in settings_of(config).items() if k not in ("arms", "seed")}
    usual_name = _joined(flow, config.recipe, data_name(config), _shortened(changes))
    return _named(usual_name, name, flow, config, {**settings, **chosen})


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _named(
    usual_name: str, name: str | None, flow: str, config: RunConfig, settings: dict[str, Any]
) -> RunName:
    if name is not None and not (re.fullmatch(NAME_PATTERN, name) and len(name) <= MAX_NAME):
        raise ConfigError(
            f"name: found {name!r}, allowed are up to {MAX_NAME} letters, digits and . _ = + -, "
            "the first a letter or a digit"
        )
    # The settings that name files of this machine.
    values, contents = _values(config), settings_of(config)
    files = {path: values[path] for path, value in contents.items() if values[path] != value}
    run_name = RunName(name or usual_name, usual_name, flow, settings, files, "")
    return dataclasses.replace(run_name, command=_command(config, run_name))


def check_free(name: RunName, settings: Settings) -> None:
    """Raise ConfigError where the name has the report of another configuration already."""
    try:
        check_owner(settings.home / "reports" / name.name, name.configuration)
    except NameTakenError as error:
        raise ConfigError(str(error)) from None


def registered_model_name(config: RunConfig) -> str:
    """The registered model that a run's policies are versions of, and may become champion of.

    `trimtab-policy-<recipe>`; with another seed, data, or settings of what the policies are judged
    on, these too: pairs, SFT and judges must be the same for one champion to follow another.
    """
    usual = _recipe(config)
    seed = f"seed{config.seed}" if config.seed != usual.seed else ""
    ours = _judged_on(config)
    digest = _digest(ours) if ours != _judged_on(usual) else ""
    return _joined("trimtab-policy", _safe(config.recipe), seed, data_name(config), digest)


def _judged_on(config: RunConfig) -> dict[str, Any]:
    """The settings that decide how policies are judged, without seed and data."""
    plain = _plain(config)
    values, ensemble = {name: plain[name] for name in JUDGED_ON}, plain["ensemble"]
    values["preferences"] = {
        name: value
        for name, value in plain["preferences"].items()
        if f"preferences.{name}" not in DATA
    }
    if config.held_out_rewards:
        values["held_out_rewards"] = plain["held_out_rewards"]
    return values | {
        "labels": plain["judge_preferences"] if config.ai_labels else None,
        "judges": [ensemble["member"], ensemble["votes"][0]],
        "num_judges": min(NUM_JUDGES, config.ensemble.size - 1),
    }


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All settings that count for results by dotted path; a file is `<name> <sha256>`."""
    plain = _plain(config)
    return dict(leaves({name: plain[name] for name in plain if name not in NOT_COUNTED}))


def _values(config: RunConfig, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """All settings by dotted path, as they are written."""
    return dict(leaves(config.model_dump(mode="json", exclude_defaults=exclude_defaults)))


def reviewed_name(name: RunName, config: RunConfig) -> RunName:
    """The name of a run whose configuration has come to hold a person's review."""
    name = dataclasses.replace(name, settings=settings_of(config))
    return dataclasses.replace(name, command=_command(config, name))


def _command(config: RunConfig, name: RunName) -> str:
    """The command that makes a run of this configuration again."""
    if name.flow not in FLOWS:
        return ""
    # The brief ones are without the defaults of sections in a list, such as judges.
    usual, values, brief = (
        settings_of(_recipe(config)),
        _values(config),
        _values(config, exclude_defaults=True),
    )
    changes = {
        path: brief.get(path, values[path])
        for path, value in name.settings.items()
        if path in values and path != "recipe" and usual.get(path, ...) != value
    }
    options = [] if name.name == name.configuration else ["--name", name.name]
    if ONLY_FLOW.get(config.recipe) == name.flow:
        words = _words_on_files(changes, OPTIONS[config.recipe])
        return shlex.join(["trimtab", config.recipe, *words, *options])
    flow = [] if name.flow == "rlhf" else ["--flow", name.flow]
    if name.flow == "compare":
        for option in ("arms", "seeds"):
            flow += [f"--{option}", ",".join(map(str, name.settings[option]))]
        changes.pop("arms", None)
    overrides = format_overrides(changes)
    return shlex.join(["trimtab", "run", config.recipe, *flow, *options, *overrides])


def _words_on_files(changes: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """Files, options and settings of a command on files of pairs, of changes by path."""
    rest = dict(changes)
    words = [*map(str, rest.pop("preferences.sources", ()))]
    columns = {path: name for path, name in changes.items() if path.startswith(COLUMNS)}
    if columns and not any("," in name for name in columns.values()):
        pairs = [f"{path.removeprefix(COLUMNS)}={rest.pop(path)}" for path in columns]
        words += ["--columns", ",".join(pairs)]
    for path, option in options.items():
        values = rest.pop(path, ())
        for value in [values] if isinstance(values, str) else values:
            words += [option, str(value)]
    return words + format_overrides(rest)


def data_name(config: RunConfig) -> str:
    """Names and sha256 of the run's data; nothing where it is the recipe's.

    A file is never the recipe's, whatever its name: a recipe does not know its contents.
    """
    ours, usual = (
        [value_at(plain, path)[1] for path in DATA]
        for plain in (_plain(config), _plain(_recipe(config)))
    )
    sources = [*config.preferences.sources, *config.preferences.demonstrations]
    if ours == usual and not any(map(_is_local, sources)):
        return ""
    if not sources:
        return "synthetic"
    more = f"+{len(sources) - 1}" if len(sources) > 1 else ""
    stem = _safe(last_part(sources[0]).partition(".")[0]) or "data"
    return f"{stem}{more}-{_digest(ours)}"


def _recipe(config: RunConfig) -> RunConfig:
    return RECIPES.get(config.recipe, RunConfig)()


def _changes(config: RunConfig, base: RunConfig | None = None) -> dict[str, Any]:
    """Settings by path that are not as in `base`, the recipe, but data, which is named apart.

    Of a section that the recipe does not have only what differs from the section's defaults.
    """
    ours, usual = (
        dict(leaves(_plain(run, exclude_defaults=True)))
        for run in (config, base or _recipe(config))
    )
    plain, changes = _plain(config), {}
    for path in dict.fromkeys([*ours, *usual]):
        if path not in (*DATA, "recipe") and (
            path not in ours or ours[path] != usual.get(path, ...)
        ):
            place, value = (path, ours[path]) if path in ours else value_at(plain, path)
            changes[place] = value
    return changes


def _plain(config: RunConfig, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """The configuration as plain values, files as `<name> <sha256>`."""
    values = config.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return {name: _digest_files(value, name) for name, value in values.items()}


def _digest_files(values: Any, name: str) -> Any:
    if isinstance(values, dict):
        return {key: _digest_files(value, key) for key, value in values.items()}
    if isinstance(values, list):
        return [_digest_files(value, name) for value in values]
    if name in FILES and isinstance(values, str) and _is_local(values):
        path = Path(values).expanduser()
        return f"{path.name} {_content(path)[:16]}"
    return values


def _is_local(source: str) -> bool:
    if is_remote(source) or source in PACKAGED:
        return False
    path = Path(source).expanduser()
    return path.is_file() or path.is_dir()


def _content(path: Path) -> str:
    """sha256 of a file, read again only if it has changed; of a folder, read always."""
    if path.is_dir():
        return digest_of(path)
    status = path.stat()
    return _content_of_version(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache
def _content_of_version(path: Path, _size: int, _changed: int) -> str:
    return digest_of(path)


def _shortened(changes: Mapping[str, Any]) -> str:
    """The changes as text, up to MAX_CHANGES characters; with a digest if some are left out."""
    shown, is_complete = "", True
    for path, value in changes.items():
        text, is_exact = _text(value)
        longer = _joined(shown, f"{path}={text}")
        if len(longer) > MAX_CHANGES:
            is_complete = False
            break
        shown, is_complete = longer, is_complete and is_exact
    return shown if is_complete else _joined(shown, _digest(changes))


def _text(value: Any) -> tuple[str, bool]:
    """A value as part of a file name, and whether the text identifies the value uniquely."""
    if isinstance(value, list) and value and not any(isinstance(v, list | dict) for v in value):
        texts = [_text(item) for item in value]
        return "+".join(text for text, _ in texts), all(is_exact for _, is_exact in texts)
    if isinstance(value, str):
        is_exact = bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9._]*", value))
        is_word = value in ("true", "false", "null")
        return _safe(value.split(" ")[0].rpartition("/")[2]), is_exact and not is_word
    if value == []:
        return "none", True
    if isinstance(value, list | dict):
        return "other", False
    return json.dumps(value), True


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:MAX_STEM].strip("_")


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:NUM_HEX]
