"""`trimtab export`: a run's policy, scorers or cleaned pairs as a folder with a card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.flows.errors import CommandError, ConfigError, unknown_name
from trimtab.infra.report_folders import read_run
from trimtab.infra.settings import Settings
from trimtab.infra.store.manifest import Manifest, StorageError
from trimtab.infra.store.store import Store, open_store
from trimtab.models.reporting.export import export_pairs, export_scorer
from trimtab.models.reporting.kit.names import policy_name
from trimtab.models.reporting.model_card import Exported, model_card
from trimtab.models.reporting.score_token import MARK

SPLITS = ("train", "validation", "test")
SCORER_STAGES = ("reward_model", "meta_rm", "advantage_model")
POLICY_STAGES = (
    "sft",
    "constitutional_sft",
    "ppo_max",
    "dpo",
    "cpl",
    "rejection_sampling",
    "rest",
    "hir",
)
LIMITS_OF_POLICY = (
    "It answers like its base model and its training data, right or wrong. It was judged by reward "
    "models on prompts like those of its training only."
)
LIMITS_OF_SCORER = (
    "It ranks responses to one prompt, of the kind that it was trained on; scores of different "
    "prompts, or of other kinds of prompts, need not be comparable. A policy that is trained "
    "against it finds its mistakes: keep a KL penalty, and judge by other models."
)
LIMITS_OF_PAIRS = (
    "Flips follow what the models that voted believe, and some of them are wrong. Pairs of "
    "validation and test are as they were given."
)
ONE_LABEL = (
    " Its one score is r(x, y): e(x), which is the same for all responses to a prompt, is left "
    "out, so that scores of different prompts are not comparable as they are in Trimtab."
)


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
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise ConfigError(f"--to: found {to}, which is not empty; allowed: a new folder")
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
    except (StorageError, OSError) as error:
        raise CommandError(f"{to} was not written: {error}") from error
    if push is not None:
        _push(to, push, is_data=role == "pairs")
    return to


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
        known = sorted(found.parent.name for found in reports.glob("*/scorecard.json"))
        raise ConfigError(unknown_name("run", run, known) if known else f"no run below {reports}")
    card = json.loads(path.read_text("utf-8"))
    if "lineage" not in card or "verdict" not in card:
        raise ConfigError(f"{run} is the page of a comparison or study, not of a single run")
    return card, read_run(reports / run)


def _roles(role: str, card: Mapping[str, Any], entries: Mapping[str, Any]) -> list[str]:
    """The roles of a run that a name stands for."""
    final = f"policy_{card['verdict']['policy']}"
    members = [name for name in entries if name.startswith("member_")]
    others = {"policy": [final], "ensemble": members, "pairs": ["relabelled"]}
    have_model = [
        name for name, entry in entries.items() if entry["stage"] in SCORER_STAGES + POLICY_STAGES
    ]
    found = others.get(role, [role] if role in have_model else [])
    if not found or not all(name in entries for name in found):
        known = [name for name, own in others.items() if own and all(o in entries for o in own)]
        raise ConfigError(unknown_name("role", role, [*known, *have_model]))
    return found


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
    role, stage, num_empty = entry["role"], entry["stage"], 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        artifact = Path(scratch) / "artifact"
        store.materialise(_manifest(store, entry), artifact, without=("critic",))
        if stage == "relabel":
            target.mkdir(parents=True)
            preferences = Path(scratch) / "preferences"
            store.materialise(_manifest(store, entries["preferences"]), preferences)
            folders = dict.fromkeys(SPLITS, preferences) | {"train": artifact}
            sources = {split: folder / f"{split}.jsonl" for split, folder in folders.items()}
            is_synthetic = entries.get("data", {}).get("stage") == "world"
            num_empty = export_pairs(sources, target, is_spaced=is_synthetic)
        else:
            # Contents alone: files of the store are read-only.
            shutil.copytree(artifact / "model", target, copy_function=shutil.copyfile)
    command = about.get("made", {}).get("command", "")
    exported = {"command": command, "settings": about.get("settings", {}), "card": card}
    (target / "README.md").write_text(
        model_card(_about(run, role, stage, target, entry, exported, num_empty)), "utf-8"
    )


def _about(
    run: str,
    role: str,
    stage: str,
    target: Path,
    entry: Mapping[str, Any],
    given: Mapping[str, Any],
    num_empty: int,
) -> Exported:
    labels: list[str] = []
    read_at: dict[str, Any] = {}
    if stage == "relabel":
        kind, limits = "pairs", LIMITS_OF_PAIRS
        text = (
            "Preference pairs with training labels treated by Trimtab, as a vote of models or a "
            "person's review has it: `is_flipped` says which are turned round, `probability` is "
            "that of `chosen` being better (TRL does not read it; 0.5 is a tie). TRL's "
            "RewardTrainer reads `margin`. What came as messages is messages, to which TRL applies "
            "the chat template of the model that it trains; what came as text is text. Of pairs "
            "of both forms all are messages."
        )
        if num_empty:
            text += f" {num_empty:,} pairs with an empty answer are left out."
    elif stage in SCORER_STAGES:
        labels, had_expected = export_scorer(target)
        read_at = json.loads((target / "config.json").read_text("utf-8"))[MARK]
        kind, limits = "scorer", LIMITS_OF_SCORER
        text = "A reward model: a higher score means a better response to the prompt."
        if had_expected:
            text = f"An Advantage Model, used as a reward model.{ONE_LABEL}"
        if len(labels) > 1:
            text += (
                f" Its columns are {', '.join(labels)}. Take the reward of the prompt's category; "
                "in the columns of the gate, read at the prompt's last token, it is the largest."
            )
    else:
        kind, limits = "policy", LIMITS_OF_POLICY
        text = f"A language model: {policy_name(role.removeprefix('policy_'))}."
        if stage == "hir":
            text += (
                " It expects the best of `hir`'s instructions behind the prompt, as in training."
            )
    label = next(iter(labels), "")
    return Exported(
        kind,
        role,
        run,
        entry=entry,
        about=text,
        limits=limits,
        label=label,
        score_token=read_at,
        **given,
    )


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
