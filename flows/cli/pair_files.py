"""The commands on files of pairs: `look`, `audit` and `reward`; from Python `trimtab.audit` and
`trimtab.train_reward`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.flows.audit.budget import DEFAULT, seconds_of, voters_for
from trimtab.flows.audit.judges import judges_of
from trimtab.flows.cli.commands import RunRequest, parse_request, run_recipe
from trimtab.flows.cli.export import export, require_new_folder
from trimtab.flows.config.errors import CommandError, ConfigError
from trimtab.flows.config.names import AUDIT_OPTIONS
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.paths import merge_changes, nested, value_at
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.checks import check
from trimtab.infra.settings import Settings
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.baseline import BaselineError, compare, read_baseline
from trimtab.models.data.row_account import RowAccount
from trimtab.models.reporting.kit.audit_words import changes_made, really_wrong

# A setting to change: sections and a field, e.g. relabel.flip_below=0.
SETTING = re.compile(r"[a-z_]+(\.[a-z_0-9]+)*=")
OPTIONS = AUDIT_OPTIONS | {"ensemble.rewards": "--reward-model", "ensemble.judges": "--judge"}


@dataclass(frozen=True)
class AuditOptions:
    """What an audit may be told beside files and settings, as `trimtab audit --help` says it.

    columns: as `chosen=A,rejected=B`. votes, reward_models, judges: of the user's own voters.
    """

    columns: str | None = None
    votes: Sequence[str] = ()
    reward_models: Sequence[str] = ()
    judges: Sequence[str] = ()
    judge_pairs: int | None = None
    encoder: str | None = None
    budget: str | None = None
    name: str | None = None
    review: str | None = None
    baseline: str | None = None


def audit_files(
    sources: Sequence[str],
    overrides: Sequence[str],
    options: AuditOptions,
    settings: Settings,
    *,
    is_quiet: bool,
) -> dict[str, Any]:
    """Audit the labels of files; the numbers of its page, the run's name, and where its files lie.

    is_quiet: nothing but the log is printed. ConfigError and CommandError as `run_audit`.
    """
    by_path = {
        "relabel.review": options.review,
        "ensemble.scores": list(options.votes),
        "ensemble.rewards": [{"model": model} for model in options.reward_models],
        "ensemble.judges": judges_of(options.judges, options.judge_pairs),
    }
    changes = changes_of_audit(sources, overrides, options.columns, by_path)
    changes = add_budgeted_voters(changes, options.budget, settings)
    changes = change_encoder(changes, options.encoder)
    request = parse_request("audit", changes, "label-audit", None, None, options.name, settings)
    baseline = None if options.baseline is None else Path(options.baseline)
    return run_audit(request, settings, baseline, is_quiet=is_quiet)


def files_and_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files, and settings to change (`field=value`, unless there is a file of that name)."""
    overrides = [w for w in words if SETTING.match(w) and not Path(w).expanduser().exists()]
    return [word for word in words if word not in overrides], overrides


def changes_of_audit(
    sources: Sequence[str],
    overrides: Sequence[str],
    columns: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The changes of an audit of these files to its recipe; ConfigError where there is no file.

    columns: their names in the files, as `chosen=A,rejected=B`. options: settings by path that
    OPTIONS give.
    """
    changes = parse_overrides(overrides)
    for path, value in (options or {}).items():
        if value:
            if _is_changed(path, changes):
                raise ConfigError(f"found {OPTIONS[path]} and {path}; allowed: one of them")
            changes = merge_changes(nested(path, value), changes)
    preferences: dict[str, Any] = {"sources": list(sources)} if sources else {}
    if columns is not None:
        parts = [column.partition("=") for column in columns.split(",")]
        if not all(ours.strip() and theirs.strip() for ours, _, theirs in parts):
            raise ConfigError(f"--columns: found {columns!r}; allowed: chosen=A,rejected=B")
        preferences["columns"] = {ours.strip(): theirs.strip() for ours, _, theirs in parts}
    if preferences:
        changes = merge_changes({"preferences": preferences}, changes)
    if not changes.get("preferences", {}).get("sources"):
        raise ConfigError("found no file; allowed: files, folders, hub ids or s3:// addresses")
    return changes


def _is_changed(path: str, changes: Mapping[str, Any]) -> bool:
    place, value = value_at(changes, path)
    return place == path and value is not ...


def preferences_of(
    words: Sequence[str], columns: str | None, form: str | None
) -> PreferencesConfig:
    """The preferences of an audit of these files and settings; form: `preferences.format`."""
    sources, overrides = files_and_overrides(words)
    changes = changes_of_audit(sources, overrides, columns)
    if form is not None:
        changes = merge_changes(changes, {"preferences": {"format": form}})
    return apply_changes(recipe_named("audit"), changes).preferences


def add_budgeted_voters(
    changes: dict[str, Any], budget: str | None, settings: Settings
) -> dict[str, Any]:
    """The changes of an audit with the voters that fit into a time; says which on stderr.

    ConfigError for no time, and for one beside voters that are named.
    """
    for path in ("embedding_models", "ensemble.cross_fitted"):
        if _is_changed(path, changes):
            if budget is not None:
                raise ConfigError(f"found --budget {budget} and {path}; allowed: one of them")
            return changes
    seconds = seconds_of(DEFAULT if budget is None else budget)
    config = apply_changes(recipe_named("audit"), changes)
    added, line = voters_for(config, seconds, settings)
    if line is not None:
        print(f"trimtab: voters: {line}", file=sys.stderr)
    elif budget is not None and not check(config).mistakes:  # the run would print these
        print(
            "trimtab: found no pairs on this machine to estimate a time from: no voter is added",
            file=sys.stderr,
        )
    return merge_changes(changes, added)


def change_encoder(changes: dict[str, Any], encoder: str | None) -> dict[str, Any]:
    """The changes of an audit whose voters on sentence embeddings have another encoder."""
    if encoder is None:
        return changes
    models = apply_changes(recipe_named("audit"), changes).embedding_models
    changed = [
        model if model.is_language_model else model.model_copy(update={"encoder": encoder})
        for model in models
    ]
    values = [model.model_dump(mode="json", exclude_defaults=True) for model in changed]
    return changes | {"embedding_models": values}


@contextmanager
def _quiet_output(is_quiet: bool) -> Iterator[None]:
    """Inside, nothing is printed but the log if `is_quiet`."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nothing,
        redirect_stdout(nothing if is_quiet else sys.stdout),
    ):
        yield


def run_audit(
    request: RunRequest, settings: Settings, baseline: Path | None = None, *, is_quiet: bool
) -> dict[str, Any]:
    """Run a label audit; the numbers of its page, where its rows went, and where its files lie.

    baseline: what an earlier audit wrote, to compare with: under `baseline` are the numbers of
    `Comparison`, and how many of the labels that it does not have are wrong. is_quiet: nothing but
    the log is printed. ConfigError for a baseline that is none, CommandError for one without a pair
    of these.
    """
    try:  # before the run, which may write to that very file
        earlier = None if baseline is None else read_baseline(baseline)
    except BaselineError as error:
        raise ConfigError(f"--baseline: {error}") from error
    with _quiet_output(is_quiet):
        run_recipe(request, settings, as_option=True)
    folder = settings.home / "reports" / request.name
    card: dict[str, Any] = json.loads((folder / "scorecard.json").read_text("utf-8"))
    pages = {"page": "audit.html", "pairs": "audited.parquet", "report": "report.html"}
    files = {name: str(folder / file) for name, file in pages.items()}
    audit = {**card["audit"], "name": request.name, **files}
    if card["data"]["rows"] is not None:
        audit["rows"] = RowAccount.from_json(card["data"]["rows"]).numbers()
    lines = [f"annotated pairs: {audit['pairs']}"]
    if earlier is not None:
        audit["baseline"], differences = _compare_with_baseline(earlier, audit)
        lines += differences
    if changed := list(changes_made(audit)):
        command = f"trimtab export {request.name} pairs --to DIR"
        lines += [*changed, f"to write the cleaned pairs as TRL reads them, with a card: {command}"]
    if not is_quiet:
        print("\n".join(lines))
        print(f"to look through the labels: open {audit['page']} in a browser")
    return audit


def _compare_with_baseline(
    earlier: dict[bytes, bool], audit: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The differences of an audit from an earlier one, as numbers and in words."""
    try:
        comparison = compare(earlier, Path(audit["pairs"]))
    except BaselineError as error:
        raise CommandError(f"--baseline: {error}") from error
    numbers: dict[str, Any] = {**comparison.numbers}
    lines = comparison.lines()
    if audit.get("can_be_believed") and numbers["num_changed"]:
        import numpy as np

        from trimtab.models.statistics.wrong_labels import wrong_labels

        strength, is_changed = np.array(comparison.strengths), np.array(comparison.is_changed)
        wrong = wrong_labels(strength, audit["worth_of_a_pair"], is_changed)
        numbers |= wrong.numbers() if wrong else {}
        lines += filter(None, [really_wrong(numbers, numbers["num_changed_wrong"])])
    return numbers, lines


@dataclass(frozen=True)
class RewardOptions:
    """What training a reward model may be told beside files and settings.

    base: language model that it starts from; None: the recipe's. to: a new folder to write; None:
    one below `exports` in the home folder, which is written anew.
    """

    base: str | None = None
    columns: str | None = None
    to: str | os.PathLike[str] | None = None
    name: str | None = None


def train_reward(
    sources: Sequence[str],
    overrides: Sequence[str],
    options: RewardOptions,
    settings: Settings,
    *,
    is_quiet: bool,
) -> dict[str, Any]:
    """Train a reward model on the pairs of files, and write it as `trimtab export` does.

    Returns the run's name, the model's folder, and, measured on the test pairs as {value, low,
    high, count} or None, `accuracy` and `calibration_error`. is_quiet: nothing but the log is
    printed. ConfigError for a mistake, all before anything runs.
    """
    changes = changes_of_audit(sources, overrides, options.columns)
    if options.base is not None:
        if _is_changed("sft.model.base", changes):
            raise ConfigError("found --base and sft.model.base; allowed: one of them")
        changes = merge_changes(nested("sft.model.base", options.base), changes)
    request = parse_request("reward", changes, "reward", None, None, options.name, settings)
    folder = Path(options.to or settings.home / "exports" / request.name).expanduser()
    if options.to is not None:
        require_new_folder(folder)
    with _quiet_output(is_quiet):
        run_recipe(request, settings, as_option=True)
    if options.to is None:
        shutil.rmtree(folder, ignore_errors=True)
    role = request.config.scorers[0]
    model = export(request.name, role, folder, None, settings)
    report = settings.home / "reports" / request.name
    card: dict[str, Any] = json.loads((report / "scorecard.json").read_text("utf-8"))
    scorer: dict[str, Any] = next(
        (values for values in card["scorers"].values() if values["role"] == role), {}
    )
    numbers: dict[str, Any] = {
        "name": request.name,
        "model": str(model),
        "num_trained_pairs": scorer.get("num_trained_pairs"),
        "accuracy": scorer.get("label_accuracy"),
        "calibration_error": scorer.get("label_ece_width"),
    }
    if not is_quiet:
        for name in ("accuracy", "calibration_error"):
            if estimate := numbers[name]:
                ends = f"[{estimate['low']:.3f}, {estimate['high']:.3f}]"
                words = f"{name.replace('_', ' ')} on {estimate['count']:,} test pairs"
                print(f"{words}: {estimate['value']:.3f} {ends}")
        print(f"{role.replace('_', ' ')}: {model}")
    return numbers
