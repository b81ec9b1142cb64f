"""Every stage's Prefect task, one declaration each. Inputs and device stand in `models.specs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.store.fetch import is_remote
from models import specs
from models.config.data import PreferencesConfig
from models.config.policy import PPOConfig
from models.data.records import ArtifactRef
from tasks.access import demand_access
from tasks.context import logger
from tasks.events import COLLAPSED, emit
from tasks.execution import StageResult
from tasks.resources import ALL_CORES, Resources
from tasks.sources import import_constitution, import_source, is_data
from tasks.stage_task import stage_task


def _preference_files(config: PreferencesConfig) -> dict[str, ArtifactRef]:
    """Files of pairs and demonstrations under their content; the stage reads hub data sets itself.

    A run never depends on a path again, and a changed file is new work. A file of an unknown kind
    stays where it is: the stage says so.
    """
    demand_access(config)
    return {
        f"{name}_{index}": import_source(source)
        for name, sources in (("source", config.sources), ("demonstrations", config.demonstrations))
        for index, source in enumerate(sources)
        if is_remote(source) or _holds_data(Path(source).expanduser())
    }


def _holds_data(path: Path) -> bool:
    return path.is_dir() or (path.exists() and is_data(path.name))


def _log_account(_: PreferencesConfig, result: StageResult, label: str) -> None:
    logger.info("%s: %s", label, result.summary["account"])
    if result.summary["warnings"]:
        logger.warning("%s: %s", label, result.summary["warnings"])


def _emit_collapse(config: PPOConfig, result: StageResult, label: str) -> None:
    """A collapse that the guard acted on is an event, for those who asked for notifications."""
    if result.summary["collapsed"] and config.guard.action != "warn" and not result.cached:
        emit(COLLAPSED, label, reason=result.summary["collapse_reason"])


def _review(config: Any) -> dict[str, ArtifactRef]:
    return {} if config.review is None else {"review": import_source(config.review)}


def _judge_constitution(config: Any) -> dict[str, ArtifactRef]:
    return import_constitution(config.judge.constitution)


def _constitution(config: Any) -> dict[str, ArtifactRef]:
    return import_constitution(config.constitution)


# Data
world = stage_task(specs.WORLD, "Prompts, demonstrations and tokenizer of the synthetic world.")
preferences = stage_task(
    specs.PREFERENCES,
    "Pairs, prompts and demonstrations from people's files or the hub.",
    files=_preference_files,
    on_result=_log_account,
)
comparisons = stage_task(
    specs.COMPARISONS,
    "Preference pairs with planted noise, split by prompt.",
    resources=ALL_CORES,
)

# Supervised fine-tuning, also under a constitution
sft = stage_task(specs.SFT, "The policy that everything else starts from.", resources=ALL_CORES)
revise = stage_task(
    specs.REVISE,
    "A policy's answers, criticised and revised by principles.",
    resources=ALL_CORES,
    files=_constitution,
)
constitutional_sft = stage_task(
    specs.CONSTITUTIONAL_SFT,
    "The policy after it has learned its revised answers.",
    label="constitutional SFT",
    resources=ALL_CORES,
)

# Labels
judge_preferences = stage_task(
    specs.JUDGE_PREFERENCES,
    "Soft labels by a judge model, and how often it agrees with the labels given.",
    label="judge preferences",
    files=_judge_constitution,
)
ai_labels = stage_task(
    specs.AI_LABELS,
    "The pairs, of which those to train on prefer what the judge prefers.",
    label="AI labels",
)
strength = stage_task(specs.STRENGTH, "Mean and spread of every pair's preference strength.")
relabel = stage_task(
    specs.RELABEL,
    "The training pairs, treated by their strength or by a person's review.",
    files=_review,
)
audit = stage_task(
    specs.AUDIT,
    "The page to review pairs with, and the audited data set; all other stages go first.",
    resources=Resources(is_patient=True),
)

# Scorers
trunk_cache = stage_task(
    specs.TRUNK_CACHE,
    "The output of the frozen lower layers for every pair, read by all scorers.",
    label="trunk cache",
    resources=ALL_CORES,
)
reward_model = stage_task(
    specs.REWARD_MODEL, "A reward model on raw pairs, or on relabelled `pairs`."
)
advantage_model = stage_task(
    specs.ADVANTAGE_MODEL,
    "An Advantage Model on raw pairs, or on relabelled `pairs`; `behaviour` wrote the answers.",
)
meta_rm = stage_task(specs.META_RM, "The scorer of the next round.", resources=ALL_CORES)
features = stage_task(
    specs.FEATURES, "Where a scorer puts the test answers, and how chosen and rejected ones mix."
)

# Policies
rehearsal = stage_task(
    specs.REHEARSAL, "The best of the SFT policy's own answers in every cluster of prompts."
)
ppo_max = stage_task(
    specs.PPO_MAX,
    "PPO-max against `scorer`, held near `reference`; several scorers are an ensemble.",
    on_result=_emit_collapse,
)
dpo = stage_task(specs.DPO, "A policy by DPO on raw pairs, or on relabelled `pairs`.")
cpl = stage_task(specs.CPL, "A policy by CPL on raw pairs, or on relabelled `pairs`.")
sample_responses = stage_task(
    specs.SAMPLE_RESPONSES,
    "Scored samples of a policy, from which rejection sampling, ReST and HIR learn.",
)
rejection_sampling = stage_task(
    specs.REJECTION_SAMPLING, "A policy that has learned its best sample of each prompt."
)
rest = stage_task(specs.REST, "A policy that has learned samples above rising thresholds (ReST).")
hir = stage_task(
    specs.HIR, "A policy that has learned its samples behind instructions they satisfy (HIR)."
)

# Evaluation and pages
evaluate = stage_task(
    specs.EVALUATE, "A policy's answers to the evaluation prompts, with likelihoods and scores."
)
head_to_head = stage_task(
    specs.HEAD_TO_HEAD, "Win, tie and lose on every prompt set, and whether `ours` is promoted."
)
judge_answers = stage_task(
    specs.JUDGE_ANSWERS,
    "Win, tie and lose of every two policies by a judge model.",
    label="judge answers",
    files=_judge_constitution,
)
win_matrix = stage_task(
    specs.WIN_MATRIX,
    "Outcomes, ratings and agreement of every two policies.",
    label="win matrix",
)
report = stage_task(specs.REPORT, "Report and scorecard over everything that a run made, by role.")
compare = stage_task(
    specs.COMPARE, "The page over the win matrix and what made the policies, by `<seed>.<role>`."
)
study = stage_task(
    specs.STUDY, "An exhibit over everything that the seeds' runs made, by `<seed>.<role>`."
)
