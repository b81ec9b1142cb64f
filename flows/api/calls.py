"""The calls `trimtab.audit`, `trimtab.train_reward` and `trimtab.run`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.flows.api.process import call
from trimtab.flows.api.results import AuditResult, RewardResult, RunResult
from trimtab.flows.cli.environment import make_home
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.overrides import format_overrides
from trimtab.flows.config.paths import merge_changes, nested, short
from trimtab.infra.settings import Settings
from trimtab.models.statistics.measured import Estimate

PathLike = str | os.PathLike[str]
Pairs = PathLike | Sequence[PathLike] | Iterable[Mapping[str, Any]] | Any
"""Preference pairs: rows, or where they lie."""
ALLOWED = "a list of dict, a DataFrame, a datasets.Dataset, a path, or a list of paths"


def audit(
    pairs: Pairs,
    *,
    columns: Mapping[str, str] | None = None,
    votes: Sequence[PathLike] = (),
    reward_models: Sequence[PathLike] = (),
    judges: Sequence[str] = (),
    judge_pairs: int | None = None,
    encoder: str | None = None,
    budget: str | None = None,
    name: str | None = None,
    review: PathLike | None = None,
    baseline: PathLike | None = None,
    progress: bool = True,
    **changes: Any,
) -> AuditResult:
    """Find the labels that look wrong in preference pairs, as `trimtab audit` does.

    >>> result = trimtab.audit([{"prompt": ..., "chosen": ..., "rejected": ...}, ...])
    >>> result.to_pandas()

    pairs: rows (a list of dict, a pandas DataFrame, a datasets.Dataset), or a path, hub id or s3://
    address or a list of such, in any form that `trimtab look` reads. Rows are written to
    `pairs/<sha256>/pairs.jsonl` in the home folder (`TRIMTAB_HOME`).
    columns: names of the rows' columns by ours, such as {"chosen": "better", "rejected": "worse"}.
    votes, reward_models, judges: voters that you have, as the options `--votes`, `--reward-model`
    and `--judge MODEL@URL`; judge_pairs: let judges compare only so many pairs.
    encoder: sentence encoder in place of MiniLM.
    budget: a time, such as "20m", in which more voters have room.
    name: of the run; by default made of pairs and changes.
    review: a file of a person's verdicts, as the page downloads them.
    baseline: audited.parquet of an earlier audit, to compare with.
    progress: show how far it is.
    changes: settings, `preferences={"max_pairs": 5000}` or `**{"preferences.max_pairs": 5000}`.

    Raises ConfigError for what is wrong in the pairs or settings, SettingsError for the
    environment, and CommandError for an audit that fails. Interrupted, it goes on from there when
    it is called again, and what was computed is found.
    """
    options = {
        "votes": [os.fspath(path) for path in votes],
        "reward_models": [os.fspath(path) for path in reward_models],
        "judges": list(judges),
        "judge_pairs": judge_pairs,
        "encoder": encoder,
        "budget": budget,
        "name": name,
        "review": _path(review),
        "baseline": _path(baseline),
    }
    settings = Settings.from_env()
    arguments = _arguments(pairs, columns, changes, options, settings)
    numbers = call("audit", arguments, progress=progress)
    return AuditResult(numbers["name"], _report(numbers["name"], settings), numbers)


def train_reward(
    pairs: Pairs,
    base: str | None = None,
    *,
    to: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    progress: bool = True,
    **changes: Any,
) -> RewardResult:
    """Train a reward model on preference pairs, as `trimtab reward` does.

    >>> result = trimtab.train_reward("pairs.jsonl", "Qwen/Qwen2.5-0.5B")
    >>> result.accuracy
    >>> result.load().score([("What is two and two?", "Four.")])

    The labels are audited first. They are changed only where asked for, such as by
    `relabel={"flip_below": 0}`.

    base: language model that it starts from, a folder, hub id or packaged model; None:
    smollm2-135m-instruct.
    to: a new folder for the model, which any transformers reads; None: one below `exports` in the
    home folder, which is written anew.
    pairs, columns, name, progress, changes, and what is raised: as of `audit`.
    """
    options = {"base": _path(base), "to": _path(to), "name": name}
    settings = Settings.from_env()
    arguments = _arguments(pairs, columns, changes, options, settings)
    numbers = call("reward", arguments, progress=progress)
    accuracy, error = (
        Estimate(**numbers[measure]) if numbers[measure] else None
        for measure in ("accuracy", "calibration_error")
    )
    return RewardResult(
        numbers["name"],
        _report(numbers["name"], settings),
        Path(numbers["model"]),
        accuracy,
        error,
        numbers["num_trained_pairs"],
    )


def run(
    recipe: str | None = None,
    *,
    flow: str = "rlhf",
    config: PathLike | None = None,
    name: str | None = None,
    progress: bool = True,
    **changes: Any,
) -> RunResult:
    """Run a recipe, as `trimtab run` does.

    >>> result = trimtab.run("default", seed=1, ppo={"kl_coef": 0.1})
    >>> result.verdict

    recipe: one that `trimtab recipes` lists; the file of settings may name it.
    flow: rlhf, or a part of it: policy, reward, label-audit; or compare, with `arms=[...]` and
    `seed=[...]`.
    config: a file of settings.
    name, progress, changes, and what is raised: as of `audit`.
    """
    settings = Settings.from_env()
    arguments = {
        "recipe": recipe,
        "overrides": _overrides(changes),
        "config": _path(config),
        "flow": flow,
        "name": name,
    }
    finished = call("run", arguments, progress=progress)["name"]
    return RunResult(finished, _report(finished, settings))


def _arguments(
    pairs: Pairs,
    columns: Mapping[str, str] | None,
    changes: Mapping[str, Any],
    options: Mapping[str, Any],
    settings: Settings,
) -> dict[str, Any]:
    """What a command on files is told: sources, settings to change, options."""
    if columns is not None:
        changes = {"preferences.columns": dict(columns), **changes}
    overrides = _overrides(changes)
    return {"sources": _sources(pairs, settings), "overrides": overrides, "options": options}


def _report(name: str, settings: Settings) -> Path:
    return settings.home / "reports" / name


def _path(path: PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)


def _overrides(changes: Mapping[str, Any]) -> list[str]:
    """Changes by section or by path as the command line has them; ConfigError for others."""
    merged: dict[str, Any] = {}
    for path, value in changes.items():
        try:
            plain = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: found {short(value)}; allowed: plain values") from error
        merged = merge_changes(merged, nested(path, plain))
    return format_overrides(merged)


def _sources(pairs: Any, settings: Settings) -> list[str]:
    """Where pairs lie; of rows a file of the home folder, named by its content."""
    if isinstance(pairs, str | os.PathLike):
        return [os.fspath(pairs)]
    if isinstance(pairs, Mapping):
        parts = f" of {', '.join(map(str, pairs))}"
        raise ConfigError(f"pairs: found {type(pairs).__name__}{parts}; allowed: {ALLOWED}")
    # Of a DataFrame empty cells are no numbers.
    if hasattr(pairs, "notna") and hasattr(pairs, "columns"):
        pairs = pairs.astype(object).where(pairs.notna(), None).to_dict("records")
    if not isinstance(pairs, Iterable):
        raise ConfigError(f"pairs: found {type(pairs).__name__}; allowed: {ALLOWED}")
    rows = list(pairs)
    if not rows:
        raise ConfigError(f"pairs: found no row; allowed: {ALLOWED}")
    if all(isinstance(row, str | os.PathLike) for row in rows):
        return list(map(os.fspath, rows))
    make_home(settings)
    return [str(_written(rows, settings.home / "pairs"))]


def _written(rows: Sequence[Any], folder: Path) -> Path:
    """The file of these rows; ConfigError for one that is none."""
    digest = hashlib.sha256()
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".") as scratch:
        written = Path(scratch) / "pairs.jsonl"
        with written.open("wb") as stream:
            for place, row in enumerate(rows):
                line = _line(place, row)
                digest.update(line)
                stream.write(line)
        file = folder / digest.hexdigest()[:16] / written.name
        file.parent.mkdir(exist_ok=True)
        written.replace(file)
    return file


def _line(place: int, row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise ConfigError(f"pairs[{place}]: found {short(row)}; allowed: a dict; pairs: {ALLOWED}")
    try:
        values = {str(name): value for name, value in row.items() if not _is_missing(value)}
        return json.dumps(values, default=_plain).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"pairs[{place}]: {error}; allowed: text, numbers, lists, dict"
        ) from error


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, paths and times as JSON has them; TypeError for the rest."""
    for method in ("tolist", "isoformat", "__fspath__"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"found {type(value).__name__}")
