"""Checks before a run starts: its files, their rows, and which packages are installed.

The first rows of each file are read, by the readers that the stages use. Mistakes in later rows
are found by the stages only; of rows over `preferences.max_tokens` the share is estimated. Files in
S3 or on the hub are not checked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from trimtab.flows.config.config import (
    RunConfig,
    layer_mistakes,
    ppo_of,
    sampled_by_vllm,
    sections_of,
    seeded,
)
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.runs.plan_text import too_large
from trimtab.infra.processes.gpus import memory_of, name_of
from trimtab.infra.settings import Settings
from trimtab.infra.store.fetch import is_remote, is_stored
from trimtab.models.config.arms import ARMS
from trimtab.models.config.base import last_part
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.config.external_reward import RewardMemberConfig
from trimtab.models.config.judge import ChatModelConfig
from trimtab.models.config.packages import PACKAGED_MODELS, folder_of, installation_of
from trimtab.models.config.training import ModelConfig, TrainerConfig
from trimtab.models.data.demonstrations import Shaping, load_demonstrations
from trimtab.models.data.external_votes import read_review, read_votes
from trimtab.models.data.loading import (
    Look,
    PreferenceOptionError,
    look_through,
    read_in_words,
    share_over_tokens,
)
from trimtab.models.data.problems import (
    SOURCE_REASONS,
    BadRow,
    PreferenceDataError,
    first_of_each,
    listed,
)
from trimtab.models.data.readers import Source, looks_like_hub_id
from trimtab.models.data.row_reader import check_form
from trimtab.models.data.splits import SplitError, split_pairs
from trimtab.models.estimates.machine import GIB, Machine
from trimtab.models.estimates.shapes import PlanError, UntrainableError, missing_files, shape_of
from trimtab.models.judge.constitutions import (
    PACKAGED,
    ConstitutionError,
    load_constitution,
    parse_constitution,
)
from trimtab.tasks.cache_key import UnknownModuleError, require_function

if TYPE_CHECKING:
    from trimtab.flows.runs.plan import Plan

# Rows of each source, read in well under a second.
MAX_ROWS = 5000
# Bytes of all files of pairs, up to which their rows are counted before a run: a matter of seconds.
COUNTED_BYTES = 4 << 20
# Shares of the pairs that are over `preferences.max_tokens`: beyond the first a warning, beyond the
# second, by `preferences.on_bad_rows`, a mistake.
MANY_TOO_LONG, MOST_TOO_LONG = 0.2, {"quarantine": 0.9, "fail": 0.05}


@dataclass
class Findings:
    """Lines of text.

    mistakes: a run with these would fail. missing: packages or models not installed here, which a
    plan for another machine does not need. notes: information for the user.
    """

    mistakes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(
    config: RunConfig, *, max_rows: int | None = MAX_ROWS, as_option: bool = False
) -> Findings:
    """Check a run's configuration and files: `max_rows` of each source, or all rows if None.

    as_option: the command has the option `--columns`, which messages then name.
    """
    findings = Findings()
    if not config.is_synthetic:
        _check_preferences(config, max_rows, findings, as_option)
        _check_demonstrations(config, max_rows, findings)
    if (review := config.relabel.review) is not None and not is_stored(review):
        read = partial(read_review, known=None)
        findings.mistakes += _file_mistakes("relabel.review", review, read)
    for votes in config.ensemble.scores:
        findings.mistakes += _file_mistakes("ensemble.scores", votes, read_votes)
    for path, section in sections_of(config):
        name = getattr(section, "constitution", None)
        if isinstance(name, str) and name not in PACKAGED:
            findings.mistakes += _constitution_mistakes(f"{path}constitution", name)
    check_installed(config, findings)
    return findings


def check_installed(config: RunConfig, findings: Findings) -> None:
    """Note models and optional packages that are not installed here."""
    for path, section in sections_of(config):
        if isinstance(section, ChatModelConfig) and section.local_model is not None:
            _check_model(f"{path}local_model", section.local_model, findings)
    if (members := config.ensemble.cross_fitted) is not None:
        _check_model("ensemble.cross_fitted.base", members.base, findings)
        _count_layers("ensemble.cross_fitted.base", ModelConfig(base=members.base), findings)
    _check_rewards(config, findings)
    for index, voter in enumerate(config.embedding_models):
        if voter.encoder in PACKAGED_MODELS:
            _check_model(f"embedding_models.{index}.encoder", voter.encoder, findings)
    for name, sft in (("sft", config.sft), ("scorer_base", config.scorer_base)):
        if sft is not None and sft.model.base is not None:
            _check_model(f"{name}.model.base", sft.model.base, findings)
            num_layers = _count_layers(f"{name}.model.base", sft.model, findings)
            if num_layers is not None:
                findings.mistakes += layer_mistakes(config, num_layers, name == "scorer_base")
    findings.mistakes += _critic_mistakes(config)
    findings.missing += dict.fromkeys(_not_installed(config))


def _critic_mistakes(config: RunConfig) -> Iterator[str]:
    """A critic that is to start as scorers of another vocabulary, where both are in folders here;
    elsewhere PPO's stage says so."""
    of_arms = [ppo_of(config, arm) for arm in config.arms if ARMS[arm].trained_by == "ppo"]
    has_critic = any(ppo.objective.has_critic for ppo in of_arms)
    is_from_policy = config.ppo.critic_init == "policy" or config.reward is not None
    if config.scorer_base is None or is_from_policy or not has_critic:
        return
    policy, scorer = config.sft.model, config.scorer_base.model
    if scorer.max_length < policy.max_length:
        yield (
            "ppo.critic_init: found scorer, and scorer_base.model.max_length "
            f"{scorer.max_length} below sft.model.max_length {policy.max_length}; allowed: policy, "
            "as a critic reads what the policy writes"
        )
    bases = policy.base, scorer.base
    ours, theirs = map(_vocabulary, bases)
    if ours is not None and theirs is not None and ours != theirs:
        yield (
            "ppo.critic_init: found scorer, and other tokens in scorer_base.model.base than in "
            "sft.model.base; allowed: policy, as a critic reads the policy's tokens"
        )


def _vocabulary(base: str | None) -> object:
    """The tokens of a model in a folder, or of a packaged one; None of any other."""
    try:
        path = (folder_of(base or "") or Path(base or "").expanduser()) / "tokenizer.json"
        return json.loads(path.read_bytes())["model"]["vocab"] if base else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


# Settings that suspend a run.
REVIEW, APPROVAL = "suspend.for_label_review", "suspend.for_champion_approval"


def suspensions_of(config: RunConfig) -> list[str]:
    """The settings by which a configuration has its run wait for a person."""
    suspend = config.suspend
    settings = {REVIEW: suspend.for_label_review, APPROVAL: suspend.for_champion_approval}
    return [name for name, is_set in settings.items() if is_set]


def refuse_suspension(config: RunConfig) -> None:
    """ConfigError where a run without a worker would be suspended: nobody could resume it."""
    for name in suspensions_of(config):
        instead = (
            ". To review labels here, run --flow label-audit first, then with relabel.review=FILE"
        )
        raise ConfigError(
            f"{name}: found true, but only a worker resumes a suspended run; allowed: false here, "
            f"or a run of a deployment (docs/how-to/deploy.md){instead if name == REVIEW else ''}"
        )


def _absent(name: str, source: str) -> str:
    return f"{name}: found nothing at {source!r}; allowed: an existing file or folder, or s3://"


def _local(name: str, sources: Sequence[str], findings: Findings) -> Iterator[tuple[int, Source]]:
    """The local sources with their index in the list, under the names that the stage has."""
    elsewhere = []
    for index, source in enumerate(sources):
        path = Path(source).expanduser()
        if not is_remote(source) and path.exists():
            yield index, Source(str(path), name=last_part(source))
        elif is_remote(source) or looks_like_hub_id(source):
            elsewhere.append(source)
        else:
            findings.mistakes.append(f"{_absent(name, source)} or a hub id")
    if elsewhere:
        findings.notes.append(f"{name}: not checked, because they are not local files: {elsewhere}")


def first_pairs(config: RunConfig) -> Look | None:
    """The pairs of the first rows of each source; None unless all are here and can be read."""
    preferences = config.preferences
    if check_form(preferences.format, preferences.columns):
        return None
    sources = _sources(config, Findings())
    if len(sources) < len(preferences.sources):
        return None
    try:
        return look_through(sources, on_ties=preferences.on_ties, max_rows=MAX_ROWS)
    except PreferenceOptionError:
        return None


def _sources(config: RunConfig, findings: Findings) -> list[Source]:
    """The local sources of pairs as the stage reads them."""
    preferences = config.preferences
    return [
        dataclasses.replace(
            source,
            category=preferences.categories[index] if preferences.categories else None,
            format=preferences.format,
            columns=preferences.columns,
        )
        for index, source in _local("preferences.sources", preferences.sources, findings)
    ]


def _check_preferences(
    config: RunConfig, max_rows: int | None, findings: Findings, as_option: bool
) -> None:
    preferences, name = config.preferences, "preferences.sources"
    if wrong := check_form(preferences.format, preferences.columns):
        findings.mistakes += [f"preferences.{problem}" for problem in wrong]
        return
    sources = _sources(config, findings)
    if not sources:
        return
    try:
        look = look_through(sources, on_ties=preferences.on_ties, max_rows=max_rows)
        if not look.pairs and not look.is_whole:
            look = look_through(sources, on_ties=preferences.on_ties)
    except PreferenceOptionError as error:
        findings.mistakes.append(f"{name}: {error}")
        return
    rows = look.report.total
    broken = [row for row in look.bad_rows if row.reason in SOURCE_REASONS]
    if broken or (look.bad_rows and preferences.on_bad_rows == "fail"):
        findings.mistakes += _listed(name, look.bad_rows, as_option)
    elif not look.pairs and len(sources) == len(preferences.sources):
        findings.mistakes.append(
            f"{name}: found no usable row; allowed: at least one; {read_in_words(look.report)}"
        )
        findings.mistakes += [f"{name}: {line}" for line in first_of_each(look.bad_rows)]
    elif look.bad_rows:
        reasons = ", ".join(f"{n} {r}" for r, n in look.report.bad_rows_by_reason.most_common())
        of = f"{rows.read:,} rows" if look.is_whole else f"the first {rows.read:,} rows"
        findings.notes.append(
            f"{name}: {len(look.bad_rows):,} of {of} are bad and set aside ({reasons}); the first: "
            f"{'; '.join(first_of_each(look.bad_rows))}"
        )
    if not findings.mistakes:
        _check_token_limit(config, look, findings)
    if look.is_whole and len(sources) == len(preferences.sources) and not findings.mistakes:
        findings.mistakes += _check_all_pairs(config, look)


def _check_token_limit(config: RunConfig, look: Look, findings: Findings) -> None:
    """The share of pairs over `preferences.max_tokens`, if the base model's tokenizer is here."""
    base, limit = config.sft.model.base, config.preferences.max_tokens
    try:
        folder = None if base is None else folder_of(base) or Path(base).expanduser()
    except ValueError:  # not installed, which another check reports
        return
    share = None if folder is None else share_over_tokens(look.pairs, folder, limit)
    if not share:
        return
    longest = config.sft.model.max_length
    refused = (
        f"preferences.max_tokens: found {limit}; about {share:.0%} of the pairs are longer and "
        "would be refused"
    )
    raised = f"raise preferences.max_tokens, and sft.model.max_length ({longest}) beyond it"
    most = MOST_TOO_LONG[config.preferences.on_bad_rows]
    if share > most:
        findings.mistakes.append(f"{refused}; allowed: at most {most:.0%}. To use them {raised}")
    else:
        warning = "WARNING: " if share > MANY_TOO_LONG else ""
        findings.notes.append(f"{warning}{refused}. To use them {raised}")


def _listed(name: str, rows: Sequence[BadRow], as_option: bool = False) -> list[str]:
    shown = listed(rows)
    lines = [f"{name}: {row.describe(as_option=as_option)}" for row in shown]
    if len(rows) > len(shown):
        lines.append(f"{name}: {len(rows) - len(shown)} more rows are bad")
    if not {row.reason for row in rows} & SOURCE_REASONS:
        lines.append("set preferences.on_bad_rows=quarantine to run without these rows")
    return lines


def _check_all_pairs(config: RunConfig, look: Look) -> Iterator[str]:
    """Mistakes that only all pairs together show, before overlong pairs are removed."""
    preferences = config.preferences
    folds = [model.num_folds for model in config.embedding_models if model.kind != "nearest"]
    different = {frozenset((pair.chosen, pair.rejected)) for pair in look.pairs}
    if config.ensemble.embedding_models_vote and len(different) < max(folds, default=0):
        yield (
            f"preferences.sources: found {len(different)} pairs of different answers; allowed: at "
            f"least {max(folds)}, as many as embedding_models.num_folds"
        )
        return
    if config.relabel.rating_margins is not None and not look.report.pairs_by_rating:
        yield "relabel.rating_margins must be none, found it and no pair with a `rating`"
    categories = {pair.category for pair in look.pairs}
    is_certain = preferences.split_by == "prompt" or None in categories or len(categories) < 3
    if is_certain and len(look.pairs) <= (preferences.max_pairs or len(look.pairs)):
        shares = {"validation": preferences.validation_share, "test": preferences.test_share}
        shares = {"train": 1 - sum(shares.values()), **shares}
        seed = seeded(preferences, config.seed).seed
        try:
            split_pairs(look.pairs, shares, seed=seed, split_by=preferences.split_by)
        except SplitError as error:
            yield f"preferences.sources: {error}"


def _check_demonstrations(config: RunConfig, max_rows: int | None, findings: Findings) -> None:
    preferences, name = config.preferences, "preferences.demonstrations"
    sources = [source for _, source in _local(name, preferences.demonstrations, findings)]
    if sources:
        try:
            load_demonstrations(sources, Shaping("<end>"), preferences.on_bad_rows, max_rows)
        except PreferenceDataError as error:
            findings.mistakes += _listed(name, error.bad_rows)


def _file_mistakes(name: str, source: str, read: Callable[[Source], object]) -> Iterator[str]:
    path = Path(source).expanduser()
    if is_remote(source):
        return
    if not path.exists():
        yield _absent(name, source)
        return
    try:
        read(Source(str(path), name=path.name))
    except PreferenceDataError as error:
        yield from (f"{name}: {row.describe()}" for row in listed(error.bad_rows))


def _constitution_mistakes(name: str, source: str) -> Iterator[str]:
    path = Path(source).expanduser()
    if is_remote(source):
        return
    try:
        if path.is_dir():
            load_constitution(path.name, path)
        elif path.is_file():
            parse_constitution(path.read_bytes(), path.name)
        else:
            yield f"{_absent(name, source)} or {', '.join(PACKAGED)}"
    except ConstitutionError as error:
        yield from (f"{name}: {line}" for line in str(error).splitlines())
    except OSError as error:
        yield f"{name}: {source!r} cannot be read: {error.strerror}"


def _check_model(name: str, base: str, findings: Findings) -> None:
    try:
        if folder_of(base) is not None:
            return
    except ValueError as error:
        findings.missing.append(f"{name}: {error}")
        return
    path = Path(base).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        findings.mistakes.append(f"{name}: found no config.json in the folder {base!r}")
    elif not path.exists() and base.startswith((".", "~", "/")):
        findings.mistakes.append(
            f"{name}: found nothing at {base!r}; allowed: a folder or a hub id"
        )


def _check_rewards(config: RunConfig, findings: Findings) -> None:
    """Reward models, and functions, that somebody else has made, as far as they are seen here."""
    models = []
    for path, section in sections_of(config):
        if not isinstance(section, RewardMemberConfig):
            continue
        if section.model is not None:
            models.append((f"{path}model", section.model))
        if section.function is not None:
            try:
                require_function(section.function)
            except UnknownModuleError as error:
                findings.mistakes.append(f"{path}function: {error}")
    for name, model in models:
        _check_model(name, model, findings)
        findings.mistakes += _reward_model_mistakes(model, name)


def _reward_model_mistakes(model: str, name: str) -> Iterator[str]:
    """A model in a local folder must be a reward model, with weights that run no code."""
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        return
    try:
        values = json.loads((folder / "config.json").read_bytes())
        labels = len(values["id2label"]) if "id2label" in values else values.get("num_labels", 2)
    except (ValueError, TypeError, AttributeError) as error:
        yield f"{name}: {folder / 'config.json'} is no model's: {error}"
        return
    if labels != 1:
        yield f"{name}: found {labels} labels in the folder {str(folder)!r}; allowed: one label"
    if not any(folder.glob("*.safetensors")):
        yield (
            f"{name}: found no *.safetensors in the folder {str(folder)!r}; allowed: weights in "
            "safetensors alone"
        )


def _count_layers(name: str, model: ModelConfig, findings: Findings) -> int | None:
    """The layers of a model that is to be trained; None of one that cannot be, or is not here."""
    try:
        shape = shape_of(model, name)
    except UntrainableError as error:
        findings.mistakes.append(str(error))
    except PlanError:
        pass
    else:
        findings.missing += [f"{name}: {line}" for line in missing_files(model)]
        return shape.num_layers
    return None


def _not_installed(config: RunConfig) -> Iterator[str]:
    """Optional packages that trainers need and that are not installed."""
    trainers = [trainer for _, trainer in sections_of(config) if isinstance(trainer, TrainerConfig)]
    has_zero = any(trainer.zero is not None for trainer in trainers)
    has_eight_bit = any(trainer.optimiser == "adamw_8bit" for trainer in trainers)
    for is_needed, setting, module, extra in (
        (has_zero, "zero", "deepspeed", "deepspeed"),
        (has_eight_bit, "adamw_8bit", "bitsandbytes", "eight-bit"),
    ):
        if is_needed and find_spec(module) is None:
            yield f"{setting} needs {module}, which is not installed: {installation_of(extra)}"
    for setting in sampled_by_vllm(config)[:1]:
        python = os.environ.get("TRIMTAB_VLLM_PYTHON") or sys.executable
        if which(python) is None or (python == sys.executable and find_spec("vllm") is None):
            yield f"{setting} needs vLLM, and {python} has none: set TRIMTAB_VLLM_PYTHON"


def refuse(mistakes: Sequence[str]) -> None:
    """ConfigError with all mistakes, a line each, if there are any."""
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def make_quick_plan(
    config: RunConfig, flow: str, settings: Settings, num_seeds: int = 1
) -> Plan | None:
    """The plan of a run on this host; None where the size of its model is unknown.

    Rows of large preference files are not counted, which may take long: they decide which share of
    the whole a stage is, but hardly its memory.
    """
    from trimtab.flows.runs.plan import make_plan

    if not (config.is_synthetic or _is_counted_soon(config.preferences)):
        uncounted = {"sources": ("s3://not-counted",), "demonstrations": ()}
        preferences = config.preferences.model_copy(update=uncounted)
        config = config.model_copy(update={"preferences": preferences})
    machine = this_host(settings) or Machine(len(settings.gpus), sys.maxsize, 1, True)
    try:
        return make_plan(config, flow, machine, num_seeds)
    except PlanError:
        return None


def _is_counted_soon(preferences: PreferencesConfig) -> bool:
    """Whether all files of pairs and demonstrations are here, and small."""
    names = (*preferences.sources, *preferences.demonstrations)
    paths = [Path(name).expanduser() for name in names]
    is_here = all(path.is_file() for path in paths)
    return is_here and sum(path.stat().st_size for path in paths) <= COUNTED_BYTES


def refuse_too_large(plan: Plan, settings: Settings) -> None:
    """ConfigError if a stage of a plan does not fit on this host."""
    reason = too_large(plan)
    if reason is not None:
        host = this_host(settings) or f"{len(settings.gpus)} GPUs"
        raise ConfigError(
            f"{plan.config.recipe} does not fit on this host: {reason}; found {host}. --dry-run "
            "prints the whole plan; docs/how-to/gpu.md says which recipe is for which card"
        )


def this_host(settings: Settings) -> Machine | None:
    """This host; None if the memory of its GPUs cannot be read."""
    if not settings.gpus:
        return Machine.this_computer(settings.max_parallel)
    memory = memory_of(settings.gpus)
    if memory is None:
        return None
    return Machine.with_gpus(len(settings.gpus), memory / GIB, name_of(settings.gpus))
