"""`trimtab export`: a run's policy, scorers or cleaned pairs as a folder with a card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.flows.config.errors import CommandError, ConfigError, unknown_name
from trimtab.infra.reports import read_run
from trimtab.infra.settings import Settings
from trimtab.infra.store.manifest import Manifest, StorageError
from trimtab.infra.store.store import Store, open_store
from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.reporting.export import (
    NoProbabilityError,
    export_pairs,
    export_scorer,
    form_of_prompts,
    known_answers,
    name_for_transformers_4,
)
from trimtab.models.reporting.model_card import Exported, model_card
from trimtab.models.specs import SPECS

SPLITS = ("train", "validation", "test")


def export(run: str, role: str, to: Path, push: str | None, settings: Settings) -> Path:
    """Write an artifact of a finished run to a new folder, and to a repository of the Hub.

    ConfigError for an unknown run or role, and for a folder that has files; CommandError if the
    store or the Hub fails. Nothing is left of a folder that could not be written.
    """
    card, about = _read(run, settings)
    entries = {entry["role"]: entry for entry in card["lineage"]}
    wanted = _roles(role, card, entries)
    to = to.expanduser().resolve()
    try:
        require_new_folder(to)
        to.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as scratch:
            target, store = Path(scratch) / "export", open_store(settings.store_url)
            for name in wanted:
                place = target / name if len(wanted) > 1 else target
                _write(store, run, entries[name], entries, card, about, place)
            if to.exists():
                to.rmdir()
            _give_usual_modes(target)
            target.replace(to)
    except (StorageError, OSError, NoProbabilityError) as error:
        raise CommandError(f"{to} was not written: {error}") from error
    if push is not None:
        _push(to, push, is_data=role == "pairs")
    return to


def require_new_folder(to: Path) -> None:
    """ConfigError for a folder with files in it, and for a file."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to: found {to}, which is not empty; allowed: a new folder")


def _give_usual_modes(folder: Path) -> None:
    """The modes that the umask says: libraries write weights for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def _read(run: str, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    reports = settings.home / "reports"
    path = reports / run / "scorecard.json"
    if not path.is_file():
        known = sorted(card.parent.name for card in reports.glob("*/scorecard.json"))
        raise ConfigError(unknown_name("run", run, known) if known else f"no run below {reports}")
    card = json.loads(path.read_text("utf-8"))
    if "lineage" not in card or "verdict" not in card:
        raise ConfigError(f"{run} is the page of a comparison or study, not of a single run")
    return card, read_run(reports / run)


def _roles(role: str, card: Mapping[str, Any], entries: Mapping[str, Any]) -> list[str]:
    """The roles of a run that a name stands for."""
    final = f"policy_{card['verdict']['policy']}"
    members = [name for name in entries if name.startswith("member_")]
    named = {"policy": [final], "ensemble": members, "pairs": ["relabelled"]}
    named = {name: roles for name, roles in named.items() if roles and entries.keys() >= {*roles}}
    named |= {
        name: [name]
        for name, entry in entries.items()
        if SPECS[entry["stage"]].makes in ("scorer", "policy")
    }
    if role not in named:
        raise ConfigError(unknown_name("role", role, named))
    return named[role]


def _write(
    store: Store,
    run: str,
    entry: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    card: Mapping[str, Any],
    about: Mapping[str, Any],
    target: Path,
) -> None:
    """An artifact's model or pairs, and its card."""
    command, known, prompts = about.get("made", {}).get("command", ""), {}, None
    exported = Exported(run, command, about.get("settings", {}), card, entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        artifact, manifest = Path(scratch) / "artifact", _manifest(store, entry)
        store.materialise(manifest, artifact, lambda name: not name.startswith("critic/"))
        if exported.kind == "pairs":
            target.mkdir(parents=True)
            preferences = Path(scratch) / "preferences"
            store.materialise(_manifest(store, entries["preferences"]), preferences)
            folders = dict.fromkeys(SPLITS, preferences) | {"train": artifact}
            sources = {split: folder / f"{split}.jsonl" for split, folder in folders.items()}
            is_synthetic = entries.get("data", {}).get("stage") == "world"
            num_empty = export_pairs(sources, target, is_spaced=is_synthetic)
            exported = replace(exported, num_empty=num_empty)
        else:
            # Contents alone: files of the store are read-only.
            shutil.copytree(artifact / "model", target, copy_function=shutil.copyfile)
            scores, pairs = artifact / "scores.jsonl", entries.get("preferences")
            if exported.kind == "scorer" and scores.is_file() and pairs:
                known = known_answers(scores, pairs["digest"])
                preferences = Path(scratch) / "preferences"
                store.materialise(
                    _manifest(store, pairs), preferences, lambda name: name == "train.jsonl"
                )
                names = {"categories", "without_categories"} & manifest.config.keys()
                config = RewardModelConfig(**{name: manifest.config[name] for name in names})
                prompts = form_of_prompts(preferences / "train.jsonl", config)
    if exported.kind == "scorer":
        exported = replace(exported, scorer=export_scorer(target, known, prompts))
    elif exported.kind == "policy":
        name_for_transformers_4(target)
    (target / "README.md").write_text(model_card(exported), "utf-8")


def _manifest(store: Store, entry: Mapping[str, Any]) -> Manifest:
    manifest = store.find(entry["stage"], entry["key"])
    if manifest is None:
        raise CommandError(
            f"{entry['role']} is not in {store.url} any more: run the same command again, which "
            "computes what is missing"
        )
    return manifest


def _push(folder: Path, repository: str, *, is_data: bool) -> None:
    """Upload a folder; the Hub's token is read by its own library."""
    from huggingface_hub import HfApi

    kind = "dataset" if is_data else "model"
    try:
        api = HfApi()
        api.create_repo(repository, repo_type=kind, exist_ok=True, private=True)
        is_private = api.repo_info(repository, repo_type=kind).private
        if is_private:
            api.upload_folder(folder_path=os.fspath(folder), repo_id=repository, repo_type=kind)
    except Exception as error:  # of the Hub's library and those below it
        first = (str(error).splitlines() or [repr(error)])[0]
        raise CommandError(
            f"{folder} is written, but {repository} was not: {first}. To try again: hf upload "
            f"--repo-type {kind} {repository} {folder}"
        ) from error
    if not is_private:
        raise CommandError(
            f"{folder} is written, but {repository} is public, and was not touched: hf upload "
            f"--repo-type {kind} {repository} {folder} publishes it"
        )
