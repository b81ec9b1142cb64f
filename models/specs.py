"""Every stage in one declaration: its configuration, its device and its inputs. Loads no torch.

Tasks build their parameters from a specification, the trainer entry checks a job against it, plans
read planned stages by its names. The trainer of stage `x` is the module `models.stages.x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel

from models.config import data, judge, policy, reporting, reward, training


class InputError(ValueError):
    """Inputs of a stage that are missing or unknown."""


@dataclass(frozen=True)
class StageSpec:
    """A stage: its name, the class of its configuration, its device and its inputs by name.

    required, optional: inputs, each the artifact of an earlier stage.
    several: inputs of which there may be one artifact or a list; those of a list are named
    `name_0`, `name_1` and so on. They are optional unless `required` names them too.
    mapping: an input that is a dictionary of artifacts, each under a name of its own.
    files: inputs that are files which the configuration names, brought into the store.
    reads_weights: whether it reads folders of weights; else they are not brought from the store.
    """

    name: str
    config: type[BaseModel]
    device: Literal["cpu", "gpu"] = "cpu"
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    mapping: str | None = None
    files: tuple[str, ...] = ()
    reads_weights: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that other stages make, required ones first."""
        others = (*self.several, *self.optional)
        names = (*self.required, *(name for name in others if name not in self.required))
        return names if self.mapping is None else (self.mapping, *names)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the inputs that no call may leave out."""
        return self.required if self.mapping is None else (self.mapping, *self.required)

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Artifacts by the names that the trainer reads; those that are None are left out."""
        found: dict[str, Any] = {}
        for name, value in given.items():
            if name == self.mapping:
                found |= value
            elif isinstance(value, list) and name in self.several:
                found |= {f"{name}_{index}": each for index, each in enumerate(value)}
            elif value is not None:
                found[name] = value
        return found

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError for a missing input, or one that the trainer would not read."""
        found = set(names)
        missing = [name for name in self.required if not any(_is(each, name) for each in found)]
        if missing:
            raise InputError(
                f"stage {self.name}: inputs {missing} are missing; found {sorted(found)}"
            )
        known = {*self.inputs, *self.files}
        numbered = {*self.several, *self.files}
        unknown = [
            each
            for each in found - known
            if self.mapping is None and not any(_is(each, name) for name in numbered)
        ]
        if unknown:
            raise InputError(
                f"stage {self.name}: it has no inputs {sorted(unknown)}; allowed: {sorted(known)}"
            )


def _is(found: str, name: str) -> bool:
    """Whether an input found is the one of that name, or one of several."""
    stem, _, index = found.rpartition("_")
    return found == name or (stem == name and index.isdecimal())


# Data
WORLD = StageSpec("world", data.WorldConfig)
PREFERENCES = StageSpec("preferences", data.PreferencesConfig, files=("source", "demonstrations"))
COMPARISONS = StageSpec("comparisons", data.ComparisonsConfig, "gpu", required=("data", "policy"))

# Supervised fine-tuning, also under a constitution
SFT = StageSpec("sft", training.SFTConfig, "gpu", required=("data",))
REVISE = StageSpec(
    "revise", policy.ReviseConfig, "gpu", required=("data", "policy"), files=("constitution",)
)
CONSTITUTIONAL_SFT = StageSpec(
    "constitutional_sft",
    policy.ConstitutionalSFTConfig,
    "gpu",
    required=("data", "policy", "revisions"),
)

# Labels
JUDGE_PREFERENCES = StageSpec(
    "judge_preferences",
    judge.JudgePreferencesConfig,
    required=("preferences",),
    files=("constitution",),
)
AI_LABELS = StageSpec("ai_labels", judge.AILabelsConfig, required=("preferences", "judgements"))
STRENGTH = StageSpec(
    "strength",
    reward.StrengthConfig,
    required=("member",),
    several=("member",),
    reads_weights=False,
)
RELABEL = StageSpec(
    "relabel", reward.RelabelConfig, required=("preferences", "strength"), files=("review",)
)
AUDIT = StageSpec(
    "audit",
    reporting.AuditConfig,
    required=("preferences", "member", "strength", "relabelled"),
    several=("member",),
)

# Scorers
TRUNK_CACHE = StageSpec(
    "trunk_cache", reward.TrunkCacheConfig, "gpu", required=("policy", "preferences")
)
REWARD_MODEL = StageSpec(
    "reward_model",
    reward.RewardModelConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "trunk"),
)
ADVANTAGE_MODEL = StageSpec(
    "advantage_model",
    reward.AdvantageModelConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "trunk"),
    several=("behaviour",),
)
META_RM = StageSpec(
    "meta_rm",
    reward.MetaRMConfig,
    "gpu",
    required=("scorer", "policy", "data", "preferences"),
    optional=("pairs", "trunk"),
)
FEATURES = StageSpec("features", reward.FeaturesConfig, "gpu", required=("scorer", "preferences"))

# Policies
REHEARSAL = StageSpec(
    "rehearsal", policy.RehearsalConfig, "gpu", required=("data", "policy", "scorer")
)
PPO_MAX = StageSpec(
    "ppo_max",
    policy.PPOConfig,
    "gpu",
    required=("policy", "reference", "data"),
    optional=("rehearsal", "safety_scorer"),
    several=("scorer",),
)
DPO = StageSpec(
    "dpo",
    policy.DPOConfig,
    "gpu",
    required=("policy", "reference", "preferences"),
    optional=("pairs", "trunk", "rehearsal"),
)
CPL = StageSpec(
    "cpl",
    policy.CPLConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "trunk", "rehearsal"),
)
SAMPLE_RESPONSES = StageSpec(
    "sample_responses", policy.SampleResponsesConfig, "gpu", required=("data", "policy", "scorer")
)
REJECTION_SAMPLING = StageSpec(
    "rejection_sampling",
    policy.RejectionSamplingConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
)
REST = StageSpec(
    "rest",
    policy.RestConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
)
HIR = StageSpec(
    "hir",
    policy.HIRConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
)

# Evaluation and pages
EVALUATE = StageSpec(
    "evaluate",
    reporting.EvaluateConfig,
    "gpu",
    required=("policy", "reference", "data", "scorer"),
    several=("judge",),
)
HEAD_TO_HEAD = StageSpec("head_to_head", reporting.EvaluateConfig, required=("ours", "theirs"))
JUDGE_ANSWERS = StageSpec(
    "judge_answers", judge.JudgeAnswersConfig, mapping="evaluations", files=("constitution",)
)
WIN_MATRIX = StageSpec(
    "win_matrix", reporting.WinMatrixConfig, mapping="evaluations", several=("verdicts",)
)
REPORT = StageSpec("report", reporting.ReportConfig, mapping="artifacts", reads_weights=False)
COMPARE = StageSpec("compare", reporting.CompareConfig, mapping="artifacts", reads_weights=False)
STUDY = StageSpec("study", reporting.StudyConfig, mapping="artifacts", reads_weights=False)

SPECS: Final[Mapping[str, StageSpec]] = {
    spec.name: spec for spec in list(globals().values()) if isinstance(spec, StageSpec)
}
