"""Every stage in one declaration: its configuration, its device and its inputs. Loads no torch.

Tasks build their parameters from a specification, the trainer entry checks a job against it, plans
read planned stages by its names. The trainer of stage `x` is the module `trimtab.models.stages.x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from trimtab.models.config import (
    data,
    external_reward,
    judge,
    policy,
    reporting,
    reward,
    training,
)


class InputError(ValueError):
    """Inputs of a stage that are missing or unknown."""


@dataclass(frozen=True)
class StageSpec:
    """A stage: its name, the class of its configuration, its device and its inputs by name.

    doc: what it makes. label: what its task runs are called; None: as the stage.
    required, optional: inputs, each the artifact of an earlier stage.
    several: inputs of which there may be one artifact or a list; those of a list are named
    `name_0`, `name_1` and so on. They are optional unless `required` names them too.
    mapping: an input that is a dictionary of artifacts, each under a name of its own.
    files: inputs that are files which the configuration names, brought into the store.
    makes: what a run is for, if it makes that: Prefect calls it an asset, and it can be exported.
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
    makes: Literal["pairs", "scorer", "policy"] | None = None
    reads_weights: bool = True
    doc: str = ""
    label: str | None = None

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

    def named(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Artifacts by the names that the trainer reads; those that are None are left out."""
        artifacts: dict[str, Any] = {}
        for name, value in inputs.items():
            if name == self.mapping:
                artifacts |= value
            elif isinstance(value, list) and name in self.several:
                artifacts |= {f"{name}_{index}": artifact for index, artifact in enumerate(value)}
            elif value is not None:
                artifacts[name] = value
        return artifacts

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError for a missing input, or one that the trainer would not read."""
        inputs, known = set(names), {*self.inputs, *self.files}
        missing = [name for name in self.required if not any(_is(key, name) for key in inputs)]
        if missing:
            raise InputError(
                f"stage {self.name}: inputs {missing} are missing; found {sorted(inputs)}"
            )
        numbered = {*self.several, *self.files}
        unknown = [key for key in inputs - known if not any(_is(key, name) for name in numbered)]
        if unknown and self.mapping is None:
            raise InputError(
                f"stage {self.name}: it has no inputs {sorted(unknown)}; allowed: {sorted(known)}"
            )


def _is(key: str, name: str) -> bool:
    """Whether `key` is an input's name, or that of one of several: `name_0`."""
    stem, _, index = key.rpartition("_")
    return key == name or (stem == name and index.isdecimal())


# Data
WORLD = StageSpec(
    "world",
    data.WorldConfig,
    doc="Prompts, demonstrations and tokenizer of the synthetic world.",
)
PREFERENCES = StageSpec(
    "preferences",
    data.PreferencesConfig,
    files=("source", "demonstrations"),
    makes="pairs",
    doc="Pairs, prompts and demonstrations from people's files or the hub.",
)
COMPARISONS = StageSpec(
    "comparisons",
    data.ComparisonsConfig,
    "gpu",
    required=("data", "policy"),
    several=("policy",),
    makes="pairs",
    doc="Preference pairs with planted noise, split by prompt; several policies share the prompts.",
)

# Supervised fine-tuning, also under a constitution
SFT = StageSpec(
    "sft",
    training.SFTConfig,
    "gpu",
    required=("data",),
    makes="policy",
    doc="The policy that everything else starts from.",
)
REVISE = StageSpec(
    "revise",
    policy.ReviseConfig,
    "gpu",
    required=("data", "policy"),
    files=("constitution",),
    doc="A policy's answers, criticised and revised by principles.",
)
CONSTITUTIONAL_SFT = StageSpec(
    "constitutional_sft",
    policy.ConstitutionalSFTConfig,
    "gpu",
    required=("data", "policy", "revisions"),
    makes="policy",
    doc="The policy after it has learned its revised answers.",
    label="constitutional SFT",
)

# Labels
JUDGE_PREFERENCES = StageSpec(
    "judge_preferences",
    judge.JudgePreferencesConfig,
    required=("preferences",),
    files=("constitution",),
    doc="Soft labels by a judge model, and how often it agrees with the labels given.",
    label="judge preferences",
)
AI_LABELS = StageSpec(
    "ai_labels",
    judge.AILabelsConfig,
    required=("preferences", "judgements"),
    doc="The pairs, of which those to train on prefer what the judge prefers.",
    label="AI labels",
)
EXTERNAL_VOTES = StageSpec(
    "external_votes",
    reward.ExternalVotesConfig,
    required=("preferences",),
    files=("votes",),
    doc="Votes on the pairs from a file of the user's.",
    label="external votes",
)
EXTERNAL_REWARD_VOTES = StageSpec(
    "external_reward_votes",
    external_reward.ExternalRewardVotesConfig,
    "gpu",
    required=("preferences",),
    files=("content",),
    doc="Scores of the pairs by a reward model, a reward server or a function of the user's.",
    label="external reward votes",
)
STRENGTH = StageSpec(
    "strength",
    reward.StrengthConfig,
    required=("member",),
    several=("member",),
    optional=("preferences",),
    reads_weights=False,
    doc="Mean and spread of every pair's preference strength.",
)
RELABEL = StageSpec(
    "relabel",
    reward.RelabelConfig,
    required=("preferences", "strength"),
    files=("review",),
    makes="pairs",
    doc="The training pairs, treated by their strength or by a person's review.",
)
AUDIT = StageSpec(
    "audit",
    reporting.AuditConfig,
    required=("preferences", "member", "strength", "relabelled"),
    several=("member",),
    optional=("self_test",),
    doc="The page to review pairs with, and the audited data set; all other stages go first.",
)

# Scorers
TRUNK_CACHE = StageSpec(
    "trunk_cache",
    reward.TrunkCacheConfig,
    "gpu",
    required=("policy", "preferences"),
    doc="The output of the frozen lower layers for every pair, read by all scorers.",
    label="trunk cache",
)
REWARD_MODEL = StageSpec(
    "reward_model",
    reward.RewardModelConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "trunk"),
    makes="scorer",
    doc="A reward model on raw pairs, or on relabelled `pairs`.",
)
ADVANTAGE_MODEL = StageSpec(
    "advantage_model",
    reward.AdvantageModelConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "strength", "trunk", "data"),
    several=("behaviour",),
    makes="scorer",
    doc="An Advantage Model on raw pairs, or on relabelled `pairs`; `behaviour` wrote the answers.",
)
EMBEDDINGS = StageSpec(
    "embeddings",
    reward.EmbeddingsConfig,
    "gpu",
    required=("preferences",),
    optional=("policy", "trunk"),
    doc="A vector of each answer: sentence embeddings, or the policy's hidden states.",
)
EMBEDDING_MODEL = StageSpec(
    "embedding_model",
    reward.EmbeddingModelConfig,
    required=("preferences", "embeddings"),
    doc="A preference model on vectors of the answers, as a baseline of the reward models.",
    label="embedding model",
)
META_RM = StageSpec(
    "meta_rm",
    reward.MetaRMConfig,
    "gpu",
    required=("scorer", "policy", "data", "preferences"),
    optional=("pairs", "strength", "trunk"),
    makes="scorer",
    doc="The scorer of the next round.",
)
EXTERNAL_REWARD = StageSpec(
    "external_reward",
    external_reward.RewardConfig,
    "gpu",
    required=("preferences",),
    files=("content",),
    doc="A reward that somebody else brings, and its scores of the held-out pairs.",
    label="external reward",
)
FEATURES = StageSpec(
    "features",
    reward.FeaturesConfig,
    "gpu",
    required=("scorer", "preferences"),
    doc="Where a scorer puts the test answers, and how chosen and rejected ones mix.",
)

# Policies
REHEARSAL = StageSpec(
    "rehearsal",
    policy.RehearsalConfig,
    "gpu",
    required=("data", "policy", "scorer"),
    doc="The best of the SFT policy's own answers in every cluster of prompts.",
)
PPO_MAX = StageSpec(
    "ppo_max",
    policy.PPOConfig,
    "gpu",
    required=("policy", "reference", "data"),
    optional=("rehearsal", "safety_scorer"),
    several=("scorer", "held_out_scorer"),
    makes="policy",
    doc="PPO-max against `scorer`, held near `reference`; several are an ensemble. "
    "`held_out_scorer`: what the collapse guard compares it with.",
)
DPO = StageSpec(
    "dpo",
    policy.DPOConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("reference", "pairs", "trunk", "rehearsal"),
    makes="policy",
    doc="A policy by DPO or a relative of it, most against a `reference`; on raw pairs, or on "
    "relabelled `pairs`.",
)
CPL = StageSpec(
    "cpl",
    policy.CPLConfig,
    "gpu",
    required=("policy", "preferences"),
    optional=("pairs", "trunk", "rehearsal"),
    makes="policy",
    doc="A policy by CPL on raw pairs, or on relabelled `pairs`.",
)
SAMPLE_RESPONSES = StageSpec(
    "sample_responses",
    policy.SampleResponsesConfig,
    "gpu",
    required=("data", "policy", "scorer"),
    doc="Scored samples of a policy, from which rejection sampling, ReST and HIR learn.",
)
REJECTION_SAMPLING = StageSpec(
    "rejection_sampling",
    policy.RejectionSamplingConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
    makes="policy",
    doc="A policy that has learned its best sample of each prompt.",
)
REST = StageSpec(
    "rest",
    policy.RestConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
    makes="policy",
    doc="A policy that has learned samples above rising thresholds (ReST).",
)
HIR = StageSpec(
    "hir",
    policy.HIRConfig,
    "gpu",
    required=("policy", "responses"),
    several=("responses",),
    optional=("rehearsal",),
    makes="policy",
    doc="A policy that has learned its samples behind instructions they satisfy (HIR).",
)

# Evaluation and pages
EVALUATE = StageSpec(
    "evaluate",
    reporting.EvaluateConfig,
    "gpu",
    required=("policy", "reference", "data", "scorer"),
    several=("judge",),
    doc="A policy's answers to the evaluation prompts, with likelihoods and scores.",
)
HEAD_TO_HEAD = StageSpec(
    "head_to_head",
    reporting.EvaluateConfig,
    required=("ours", "theirs"),
    doc="Win, tie and lose on every prompt set, and whether `ours` is promoted.",
)
JUDGE_ANSWERS = StageSpec(
    "judge_answers",
    judge.JudgeAnswersConfig,
    mapping="evaluations",
    files=("constitution",),
    doc="Win, tie and lose of every two policies by a judge model.",
    label="judge answers",
)
WIN_MATRIX = StageSpec(
    "win_matrix",
    reporting.WinMatrixConfig,
    mapping="evaluations",
    several=("verdicts",),
    doc="Outcomes, ratings and agreement of every two policies.",
    label="win matrix",
)
REPORT = StageSpec(
    "report",
    reporting.ReportConfig,
    mapping="artifacts",
    reads_weights=False,
    doc="Report and scorecard over everything that a run made, by role.",
)
COMPARE = StageSpec(
    "compare",
    reporting.CompareConfig,
    mapping="artifacts",
    reads_weights=False,
    doc="The page over the win matrix and what made the policies, by `<seed>.<role>`.",
)
STUDY = StageSpec(
    "study",
    reporting.StudyConfig,
    mapping="artifacts",
    reads_weights=False,
    doc="An exhibit over everything that the seeds' runs made, by `<seed>.<role>`.",
)

SPECS: Final[Mapping[str, StageSpec]] = {
    spec.name: spec for spec in list(globals().values()) if isinstance(spec, StageSpec)
}


class Job(BaseModel):
    """What a process runs: one stage, by `trimtab.models.training.entry`.

    config: of the stage. inputs: folders by name. workdir: what is made goes to its `output`.
    gpus: names as in CUDA_VISIBLE_DEVICES, one a rank; none: the CPU.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]
    workdir: str
    num_threads: int = Field(1, ge=1)
    num_ranks: int = Field(1, ge=1)
    gpus: list[str] = []

    @field_validator("stage")
    @classmethod
    def _stage_is_known(cls, stage: str) -> str:
        if stage not in SPECS:
            raise ValueError(f"found stage {stage!r}; allowed: {', '.join(SPECS)}")
        return stage
