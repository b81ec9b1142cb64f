"""The run's configuration: every stage's settings in one validated tree.

Recipes (`trimtab.flows.config.recipes`) are whole configurations; a run changes some fields of one
(`trimtab.flows.config.overrides`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.paths import explain, short
from trimtab.models.config.arms import ARMS, Arm
from trimtab.models.config.base import (
    LARGEST_SEED,
    RunSeed,
    StageConfig,
    last_part,
    require_different,
    values_in_key,
)
from trimtab.models.config.data import ComparisonsConfig, PreferencesConfig, WorldConfig
from trimtab.models.config.external_reward import RewardConfig, RewardMemberConfig
from trimtab.models.config.judge import (
    AILabelsConfig,
    JudgeAnswersConfig,
    JudgePreferencesConfig,
    VotingJudgeConfig,
)
from trimtab.models.config.packages import PACKAGED_MODELS
from trimtab.models.config.policy import (
    GRPO,
    REINFORCE_PP,
    RLOO,
    BestOfNConfig,
    ConstitutionConfig,
    CPLConfig,
    DPOConfig,
    HIRLoop,
    ObjectiveConfig,
    PPOConfig,
    RehearsalConfig,
    RejectionSamplingLoop,
    RestLoop,
)
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import (
    POLICY,
    AdvantageModelConfig,
    CrossFittedConfig,
    EmbeddingModelConfig,
    MetaRMConfig,
    RelabelConfig,
    RewardModelConfig,
)
from trimtab.models.config.sampling import SamplerConfig
from trimtab.models.config.training import SFTConfig, TrainerConfig
from trimtab.models.nets.counts import layer_of_vectors

ConfigT = TypeVar("ConfigT", bound=BaseModel)
Vote = Literal["in_sample", "cross_fitted", "embedding_models"]
# Sizes of attention heads for which vLLM has a kernel on every device.
VLLM_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# The most that is added to a stage's seed, for its member, round, answers and random streams.
MAX_OFFSET = 2_000_000
# Sections of scorers, which `scorer_base` is the start of.
SCORERS = ("ensemble.", "reward_model.", "advantage_model.", "rounds.")
# Sections that say how a run goes on, and not what comes out.
NOT_COUNTED = {"suspend"}
# Judges never take part in optimising a policy: they are the members of the raw-label ensemble.
NUM_JUDGES = 3


def _refuse(mistakes: Iterable[str]) -> None:
    """ValueError with all mistakes that several settings together make."""
    if text := "; ".join(mistakes):
        raise ValueError(text)


class EnsembleConfig(StageConfig):
    """The reward-model ensemble that votes on every pair."""

    size: int = Field(5, ge=2, le=100)
    """M, the number of reward models in each vote; the second to the fourth also judge policies
    [RM: 10]"""
    votes: tuple[Vote, ...] = Field(("in_sample",), min_length=1)
    """Votes to take; the first decides the labels. embedding_models: no reward model is trained for
    it; the models of `embedding_models` vote, each weighted by what it tells of the labels (the
    flows label-audit and reward, and no vote beside it)"""
    self_test_share: float = Field(0.0, ge=0, lt=0.5)
    """Vote once more on a copy of the pairs of which this share of the labels was turned round on
    purpose, to measure how many wrong labels the vote finds (votes=embedding_models)"""
    scores: tuple[str, ...] = Field((), max_length=100)
    """Files of votes that you have already, each one more voter: rows with a pair's `id` or `line`,
    and `chosen_score` and `rejected_score`, or one `vote`, positive where the label is right
    (votes=embedding_models)"""
    rewards: tuple[RewardMemberConfig, ...] = Field((), max_length=100)
    """Reward models, reward servers and Python functions that you have, each one more voter
    (votes=embedding_models)"""
    judges: tuple[VotingJudgeConfig, ...] = Field((), max_length=20)
    """Language models that compare the answers of the pairs, each one more voter
    (votes=embedding_models)"""
    cross_fitted: CrossFittedConfig | None = None
    """Reward models that vote beside embedding models (votes=embedding_models); none: no such"""
    member: RewardModelConfig = RewardModelConfig()

    @field_validator("rewards")
    @classmethod
    def _have_no_judge(cls, rewards: tuple[RewardMemberConfig, ...]) -> Any:
        for reward in rewards:
            if reward.judge is not None:
                raise ValueError(
                    f"judge must be none, found {reward.label}: judges compare answers, and stand "
                    "in ensemble.judges"
                )
        return rewards

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        require_different("votes", self.votes)
        # The page names a voter by the last part of its path, or by its name.
        external = {
            "scores": [last_part(path) for path in self.scores],
            "rewards": [reward.short_label for reward in self.rewards],
            "judges": [judge.name for judge in self.judges],
        }
        for name, voters in external.items():
            require_different(name, voters)
        _refuse(self._mistakes(external))
        return self

    def _mistakes(self, external: Mapping[str, Sequence[str]]) -> Iterator[str]:
        votes = ", ".join(self.votes)
        if not self.embedding_models_vote:
            if self.cross_fitted is not None:
                yield (
                    f"cross_fitted must be none where votes is {votes}, found one: "
                    "votes=cross_fitted is a vote of reward models alone"
                )
            for name, voters in external.items():
                if voters:
                    yield (
                        f"{name} must be empty where votes is {votes}, found {', '.join(voters)}: "
                        "they vote beside embedding models"
                    )
            if self.self_test_share:
                yield (
                    f"self_test_share must be 0 where votes is {votes}, found "
                    f"{self.self_test_share}; preferences.flip_share plants flips for reward models"
                )
        elif len(self.votes) > 1:
            yield f"votes must be embedding_models alone or without it, found {votes}"
        limits: dict[str, str] = {}  # by endpoint, whose judges spend together
        for judge in self.judges:
            if (endpoint := judge.judge.endpoint) is not None:
                known = limits.setdefault(str(values_in_key(endpoint)), endpoint.limits_in_words)
                if known != endpoint.limits_in_words:
                    yield (
                        f"judges at one endpoint must have the same limits, found "
                        f"{known or 'none'} and {endpoint.limits_in_words or 'none'} for "
                        f"{endpoint.model}: they spend together"
                    )

    @property
    def embedding_models_vote(self) -> bool:
        """Whether embedding models vote, and no reward models."""
        return "embedding_models" in self.votes


class RoundsConfig(StageConfig):
    """Iterated MetaRM rounds with a promotion rule."""

    max_rounds: int = Field(1, ge=1, le=100)
    """Largest number of rounds; PPO-max of the arm `full` is round 1"""
    promote: Literal["by_judgement", "always"] = "by_judgement"
    """Whether a round is promoted if it wins on the validation prompts, or always; `always` runs
    every round, as in the paper's table 2"""
    meta_rm: MetaRMConfig = MetaRMConfig()
    meta_rm_from: int = Field(2, ge=1, le=2)
    """First round whose scorer is a MetaRM; 1, as in the paper: the arm `full` is optimised against
    the Advantage Model after MetaRM on SFT's answers"""
    meta_rm_start: Literal["previous", "advantage_model"] = "previous"
    """The scorer that MetaRM starts from: that of the round before, which has then seen the pairs
    once a round, or the Advantage Model in every round"""


class SuspendConfig(StageConfig):
    """Where a deployed run ends its process and waits until a person answers."""

    for_label_review: bool = False
    """Suspend the run once its labels are audited, until a person has answered with verdicts on
    pairs; they count as those of relabel.review"""
    for_champion_approval: bool = False
    """Suspend the run before its policy becomes champion in MLflow's registry, the first or in
    place of another, until a person approves or rejects it"""
    timeout_hours: float | None = Field(None, gt=0, le=100_000)
    """Hours to wait for each answer; after them the run is Failed, and can be started again; none:
    no end"""


class RunConfig(StageConfig):
    """One experiment. Without `preferences.sources` it runs in the synthetic world."""

    recipe: str = "default"
    """Name of the recipe this started from"""
    seed: RunSeed = 0
    """Another number repeats the experiment with other random draws; 1,000 times it is added to
    each stage's own seed"""
    world: WorldConfig = WorldConfig()
    comparisons: ComparisonsConfig = ComparisonsConfig()
    preferences: PreferencesConfig = PreferencesConfig()
    sft: SFTConfig = SFTConfig()
    constitution: ConstitutionConfig | None = None
    """Constitutional SFT: a model revises the SFT policy's answers, and SFT learns the revisions;
    none: plain SFT"""
    scorer_base: SFTConfig | None = None
    """Language model that reward models, Advantage Model and MetaRM start from, where that is
    another than the policy: of another size, tokenizer or family; none: the SFT policy"""
    ensemble: EnsembleConfig = EnsembleConfig()
    cache_trunk: bool = True
    """Where trainable_layers is set: store the frozen layers' output for all pairs (4 bytes a token
    and hidden unit), so that scorers do not each compute it"""
    judge_preferences: JudgePreferencesConfig | None = None
    """Let a judge model compare the pairs; none: no judge"""
    ai_labels: AILabelsConfig | None = None
    """Train on the judge's labels (RLAIF); none: on people's"""
    relabel: RelabelConfig = RelabelConfig()
    embedding_models: tuple[EmbeddingModelConfig, ...] = Field((), max_length=5)
    """Preference models on vectors of the answers, as baselines of the reward models or to vote on
    the labels (ensemble.votes): linear on the policy's hidden states, linear on and nearest by
    sentence embeddings, on style alone, ratings of answers that recur, at most one of each"""
    reward: RewardConfig | None = None
    """Reward that you bring, which policies are optimised against and measured by: a reward model,
    a server, a Python function or a panel. No reward model, Advantage Model or MetaRM is trained
    for policies then, there is one round, and critics start from the policy; none: the run trains
    its scorers"""
    held_out_rewards: tuple[RewardConfig, ...] = Field((), max_length=20)
    """Rewards that you bring, which judge policies and are not optimised, in place of the
    ensemble's held-out members"""
    reward_model: RewardModelConfig = RewardModelConfig()
    advantage_model: AdvantageModelConfig = AdvantageModelConfig()
    scorers: tuple[Literal["reward_model", "advantage_model"], ...] = Field(
        ("reward_model", "advantage_model"), min_length=1
    )
    """Scorers to train; policies need both, so that only the flow reward leaves one out"""
    rehearsal: RehearsalConfig = RehearsalConfig()
    ppo: PPOConfig = PPOConfig()
    rloo: ObjectiveConfig = RLOO
    grpo: ObjectiveConfig = GRPO
    reinforce_pp: ObjectiveConfig = REINFORCE_PP
    dpo: DPOConfig = DPOConfig()
    cpl: CPLConfig = CPLConfig()
    best_of_n: BestOfNConfig = BestOfNConfig()
    rejection_sampling: RejectionSamplingLoop = RejectionSamplingLoop()
    rest: RestLoop = RestLoop()
    hir: HIRLoop = HIRLoop()
    arms: tuple[Arm, ...] = Field(("vanilla", "full"), min_length=1)
    """Policies to train; MetaRM rounds start from `full`, and need it"""
    rounds: RoundsConfig = RoundsConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    judges: tuple[JudgeAnswersConfig, ...] = Field((), max_length=100)
    """Judge models that compare the policies in the flow `compare`"""
    suspend: SuspendConfig = SuspendConfig()

    @property
    def is_synthetic(self) -> bool:
        """Whether the run draws its own world instead of reading people's preferences."""
        return not self.preferences.sources

    @property
    def fingerprint(self) -> str:
        """sha256 over all that decides its results."""
        return hashlib.sha256(self.model_dump_json(exclude=NOT_COUNTED).encode()).hexdigest()

    @model_validator(mode="before")
    @classmethod
    def _texts_can_be_kept(cls, values: Any) -> Any:
        """No database and no file name takes a NUL, and no file half a surrogate pair."""
        _refuse(
            f"{path} must be text without NUL and lone surrogates, found {short(text)}"
            for path, text in _texts(values)
            if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)
        )
        return values

    @property
    def needs_policy(self) -> bool:
        """Whether a label audit needs a language model."""
        return (
            self.is_synthetic
            or not self.ensemble.embedding_models_vote
            or self.judge_preferences is not None
            or any(model.encoder == POLICY for model in self.embedding_models)
        )

    @property
    def rewards(self) -> tuple[RewardConfig, ...]:
        """The rewards from outside."""
        return ((self.reward,) if self.reward is not None else ()) + self.held_out_rewards

    @property
    def needs_votes(self) -> bool:
        """Whether a run that trains policies reads reward models that vote on labels: scorers and
        arms that learn pairs do, and so does who judges by them."""
        learns_pairs = any(ARMS[arm].trained_by == "pairs" for arm in self.arms)
        return self.reward is None or not self.held_out_rewards or learns_pairs

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        require_different("arms", self.arms)
        require_different("scorers", self.scorers)
        checks = (
            _seed_mistakes,
            _model_mistakes,
            _scorer_mistakes,
            _pair_mistakes,
            _label_mistakes,
            _vote_mistakes,
            _arm_mistakes,
            _reward_mistakes,
        )
        _refuse(mistake for check in checks for mistake in check(self))
        return self


def _seed_mistakes(config: RunConfig) -> Iterator[str]:
    """Every stage's seed, after `seeded`, is one that numpy and scikit-learn accept."""
    allowed = LARGEST_SEED - MAX_OFFSET - 1000 * config.seed
    path, seed = _largest("seed", config)
    if seed > allowed:
        yield (
            f"{path} must be at most {allowed} where seed is {config.seed}, found {seed}: 1000 "
            "times seed is added to it"
        )


def _model_mistakes(config: RunConfig) -> Iterator[str]:
    """A model from scratch that lacks the layers, the length or the heads that settings need."""
    model = config.sft.model
    if model.base is not None:
        return
    yield from layer_mistakes(config, model.num_layers)
    path, longest = _largest("max_new_tokens", config)
    if model.max_length < longest + 2:  # an answer with its end and some prompt
        yield (
            f"sft.model.max_length must be at least {longest + 2} where {path} is {longest}, "
            f"found {model.max_length}"
        )
    samplers = sampled_by_vllm(config)
    if samplers and model.head_size not in VLLM_HEADS:
        yield (
            "sft.model.hidden_size / sft.model.num_heads must be one of "
            f"{', '.join(map(str, VLLM_HEADS))} where {samplers[0]} is given, found "
            f"{model.head_size}: vLLM has no attention for others"
        )


def _scorer_mistakes(config: RunConfig) -> Iterator[str]:
    """Scorers of another base, where that cannot be, or lacks the layers that settings need."""
    base, advantage = config.scorer_base, config.advantage_model
    if base is None:
        return
    if base.model.base is None:
        yield from layer_mistakes(config, base.model.num_layers, is_of_scorers=True)
        if not config.is_synthetic:
            yield "scorer_base.model.base must be given with preferences.sources, found none"
    for name, is_set in (
        ("use_importance_weights", advantage.use_importance_weights),
        ("expected_reward", advantage.expected_reward is not None),
    ):
        if is_set:
            yield (
                f"advantage_model.{name} must be left out where scorer_base is given, found it: it "
                "reads the policy that the Advantage Model starts from"
            )


def _pair_mistakes(config: RunConfig) -> Iterator[str]:
    """People's pairs without a base model, or with what only the synthetic world has."""
    if config.is_synthetic:
        return
    if config.needs_policy and config.sft.model.base is None:
        yield (
            "preferences.sources is given but sft.model.base is not: real text needs a base "
            "model (a folder, a hub id, or `smollm2-135m-instruct`)"
        )
    if config.advantage_model.use_importance_weights:
        yield (
            "advantage_model.use_importance_weights must be false with preferences.sources, "
            "found true: the policies that wrote people's comparisons are not known"
        )
    for name, prompts in (
        ("ppo.prompts", config.ppo.prompts),
        ("rounds.meta_rm.prompts", config.rounds.meta_rm.prompts),
    ):
        if prompts != "policy":
            yield (
                f"{name} must be policy with preferences.sources, found {prompts}: only the "
                "synthetic world has a held-out family"
            )
    reviser = config.constitution and config.constitution.revise.judge
    if reviser and reviser.gold_accuracy is not None:
        yield (
            "constitution.revise.judge.gold_accuracy must be none with preferences.sources, "
            f"found {reviser.gold_accuracy}: gold knows the synthetic world only: give "
            "endpoint or local_model"
        )
    for path, judges in (("judges", config.judges), ("ensemble.judges", config.ensemble.judges)):
        gold = [judge.name for judge in judges if judge.judge.gold_accuracy is not None]
        if gold:
            yield (
                f"{path}.judge.gold_accuracy must be none with preferences.sources, found it "
                f"for {', '.join(gold)}: gold knows the synthetic world only"
            )


def _label_mistakes(config: RunConfig) -> Iterator[str]:
    """Voters on the labels, their inputs, and the splits that are held out."""
    names = [model.name for model in config.embedding_models]
    if len(set(names)) < len(names):
        yield (
            f"embedding_models must be of different kinds, found {', '.join(names)}; allowed: "
            "states_linear (encoder=policy or a packaged language model), embedding_linear, "
            "embedding_nearest, style and ratings, one each"
        )
    if config.ensemble.embedding_models_vote:
        if not names:
            yield (
                "embedding_models must name some where ensemble.votes is embedding_models, found "
                "none"
            )
    elif 0 in (config.preferences.validation_share, config.preferences.test_share):
        yield (
            "preferences.validation_share and preferences.test_share must be above 0 unless "
            "ensemble.votes is embedding_models, found "
            f"{config.preferences.validation_share:g} and {config.preferences.test_share:g}: "
            "scorers and policies are measured on these pairs"
        )
    base = config.sft.model.base
    if base is not None and any(reward.model for reward in config.ensemble.rewards):
        yield (  # which has no turns that can be told
            f"sft.model.base must be none with ensemble.rewards.model, found {base!r}: its "
            "chat template would write the prompts, which a reward model reads by its own"
        )
    for name, why in (("prompt_columns", "has no columns"), ("demonstrations", "has its own")):
        if config.is_synthetic and (values := getattr(config.preferences, name)):
            yield (
                f"preferences.{name} must be empty without preferences.sources, found "
                f"{list(values)}: the synthetic world {why}"
            )
    judged = config.judge_preferences
    if config.ai_labels is not None and (judged is None or "train" not in judged.splits):
        yield (
            "judge_preferences must name a judge of the split train where ai_labels is given, "
            f"found {'none' if judged is None else f'splits {judged.splits}'}"
        )


# Noise, and what m(x) follows, that go together.
CALIBRATED = ("posterior", "label")


def _listed(values: Mapping[str, str]) -> str:
    return " and ".join(f"{path} (found {value})" for path, value in values.items())


def _vote_mistakes(config: RunConfig) -> Iterator[str]:
    """Settings that read the vote, or labels made of it, as log-odds where they are none."""
    noise = config.relabel.noise
    by = {
        "advantage_model.margin_by": config.advantage_model.margin_by,
        "rounds.meta_rm.margin_by": config.rounds.meta_rm.margin_by,
    }
    read = {path: "strength" for path, value in by.items() if value == "strength"}
    if noise != "none":
        read["relabel.noise"] = noise
    if config.ensemble.votes[0] == "in_sample":
        for path, value in read.items():
            allowed = "none" if path == "relabel.noise" else "constant or label"
            yield (
                f"{path} must be {allowed} where in_sample is first in ensemble.votes, found "
                f"{value}: members that were trained on a label know it by heart; allowed: "
                "cross_fitted first, or embedding_models"
            )
    by_pair = {path: value for path, value in by.items() if value != "constant"}
    if by_pair and config.relabel.margin_scale > 0:
        yield (
            f"{_listed(by_pair)} must be constant where relabel.margin_scale is above 0: a margin "
            "in the ranking part moves what the bounds are calibrated to"
        )
    by_pair = {path: value for path, value in by_pair.items() if (noise, value) != CALIBRATED}
    if by_pair and noise != "none":
        yield (
            f"{_listed(by_pair)} must be constant where relabel.noise is {noise}; allowed with "
            "noise: label where it is posterior, as labels are probabilities then"
        )
    if noise != "none" and config.dpo.loss == "robust":
        yield (
            f"dpo.loss must not be robust where relabel.noise is {noise}: both are made of how "
            "often labels are wrong; allowed: sigmoid, with dpo.label_smoothing=0"
        )
    elif noise != "none" and config.dpo.label_smoothing > 0:
        yield (
            f"dpo.label_smoothing must be 0 where relabel.noise is {noise}, found "
            f"{config.dpo.label_smoothing:g}: both are made of how often labels are wrong, and the "
            "smoothing undoes an unbiased loss"
        )
    if config.dpo.loss == "kto" and config.relabel.margin_scale > 0:
        yield (
            "relabel.margin_scale must be 0 where dpo.loss is kto, found "
            f"{config.relabel.margin_scale:g}: KTO compares no two answers"
        )


def _arm_mistakes(config: RunConfig) -> Iterator[str]:
    """Judges of the comparison that share a name, and arms without their scorers."""
    names = [judge.name for judge in config.judges]
    if len(set(names)) < len(names):
        yield f"judges must have different names, found {', '.join(names)}"
    if "ppo_max_ensemble" in config.arms and config.ensemble.size < NUM_JUDGES + 2:
        yield (
            f"ensemble.size must be at least {NUM_JUDGES + 2} for the arm ppo_max_ensemble, "
            f"found {config.ensemble.size}: it scores by the members that do not judge"
        )
    if "ppo_max_safety" in config.arms and not config.ppo.scoring.safety_categories:
        yield (
            "ppo.scoring.safety_categories must name categories of pairs for the arm "
            "ppo_max_safety, found none: its two reward models are trained on these and others"
        )
    if config.ppo.guard.max_held_out_fall is not None:
        yield from _unwatched_arms(config)
    unrehearsed = [arm for arm in config.arms if _weighs_unrehearsed(config, arm)]
    if unrehearsed:
        yield (
            "ppo.kl_weights must be uniform for arms of PPO that do not rehearse, found risk for "
            f"{', '.join(unrehearsed)}: the stage rehearsal samples what risk is measured on"
        )
    for arm in config.arms:
        if ARMS[arm].has_objective:
            yield from _objective_mistakes(config, arm)
    if "rlaif_direct" in config.arms and config.ppo.scoring.judge is None:
        yield "ppo.scoring.judge must name a judge for the arm rlaif_direct, found none"


def _reward_mistakes(config: RunConfig) -> Iterator[str]:
    """Arms and settings that a reward from outside leaves nothing to, and arms that lack one."""
    judges = config.held_out_rewards
    if twice := [reward.label for place, reward in enumerate(judges) if reward in judges[:place]]:
        yield f"held_out_rewards must differ, found {', '.join(twice)} more than once"
    members = [member for reward in config.rewards for member in reward.members]
    if not config.is_synthetic and any(m.judge and m.judge.gold_accuracy for m in members):
        yield (
            "reward and held_out_rewards must have no judge.gold_accuracy with "
            "preferences.sources, found one: gold knows the synthetic world only"
        )
    if config.reward is None:
        if any(ARMS[arm].scorer == "reward" for arm in config.arms):
            yield "reward must be given for the arm ppo_max_external, found none"
        return
    if about := [arm for arm in config.arms if ARMS[arm].is_about_scorer]:
        others = ", ".join(name for name, row in ARMS.items() if not row.is_about_scorer)
        yield (
            f"arms must not name {', '.join(about)} where reward is given: they show scorers that "
            f"the run trains; allowed: {others}"
        )
    if config.needs_votes:
        return
    for name, is_set in (
        ("ppo.guard.num_held_out", config.ppo.guard.num_held_out > 0),
        ("suspend.for_label_review", config.suspend.for_label_review),
    ):
        if is_set:
            yield (
                f"{name} must be left out where reward and held_out_rewards are given, found it: "
                "no reward models are trained that vote on labels"
            )


def _unwatched_arms(config: RunConfig) -> Iterator[str]:
    """Arms of PPO without a member of the ensemble that neither judges nor is optimised."""
    others = max(1, config.ensemble.size - NUM_JUDGES)
    for arm in config.arms:
        optimised = {"member_0": 1, "members": others}.get(ARMS[arm].scorer or "", 0)
        if ARMS[arm].trained_by == "ppo" and others <= optimised:
            yield (
                f"ppo.guard.max_held_out_fall must be none for the arm {arm} where ensemble.size "
                f"is {config.ensemble.size}, found {config.ppo.guard.max_held_out_fall:g}: no "
                "member is left that neither judges policies nor is optimised"
            )


def _weighs_unrehearsed(config: RunConfig, arm: Arm) -> bool:
    row = ARMS[arm]
    is_unrehearsed = row.trained_by == "ppo" and not row.rehearses
    return is_unrehearsed and ppo_of(config, arm).kl_weights == "risk"


def ppo_of(config: RunConfig, arm: Arm) -> PPOConfig:
    """The PPO settings of an arm: the run's, as the arm changes them, with its objective."""
    row = ARMS[arm]
    objective = getattr(config, arm) if row.has_objective else config.ppo.objective
    return row.ppo(config.ppo).model_copy(update={"objective": objective})


def _objective_mistakes(config: RunConfig, arm: Arm) -> Iterator[str]:
    """What does not fit together of an arm's PPO settings, which nobody has validated so far."""
    ppo = ppo_of(config, arm)
    if ppo.objective.has_critic:
        yield f"{arm}.baseline must be another than critic, found critic: the arm has none"
        return
    try:
        PPOConfig.model_validate(dict(ppo))
    except ValidationError as error:
        for mistake in error.errors():
            text = mistake["msg"].removeprefix("Value error, ")
            yield f"{text.replace('objective.', f'{arm}.')} (ppo, for the arm {arm})"


def sections_of(config: BaseModel, above: str = "") -> Iterator[tuple[str, BaseModel]]:
    """The configuration and all sections in it, each with the prefix of its fields' paths."""
    yield above, config
    for name, value in config:
        for section in value if isinstance(value, tuple) else (value,):
            if isinstance(section, BaseModel):
                yield from sections_of(section, f"{above}{name}.")


def sampled_by_vllm(config: RunConfig) -> list[str]:
    """The paths of the settings that let a stage sample with vLLM."""
    return [
        f"{path}vllm"
        for path, section in sections_of(config)
        if isinstance(section, SamplerConfig) and section.vllm is not None
    ]


def _largest(name: str, config: RunConfig) -> tuple[str, int]:
    """The largest value that a stage's setting of this name has, and its path."""
    settings = [
        (f"{path}{name}", getattr(section, name))
        for path, section in sections_of(config)
        if path and name in type(section).model_fields
    ]
    return max(settings, key=itemgetter(1))


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in plain values, by path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{path}.{index}")


def layer_mistakes(
    config: RunConfig, num_layers: int, is_of_scorers: bool = False
) -> Iterator[str]:
    """Mistakes where more layers are to be trained than the base model has, and where vectors are
    of a layer that it does not have or that fine-tuning changes.

    is_of_scorers: the model is `scorer_base`'s, of which the scorers' settings are.
    """
    theirs = () if config.scorer_base is None else ("scorer_base.", *SCORERS)
    trained = {
        f"{path}trainable_layers": section.trainable_layers
        for path, section in sections_of(config)
        if isinstance(section, TrainerConfig) and section.trainable_layers is not None
        # These have another base model.
        if not path.startswith("ensemble.cross_fitted.")
        and path.startswith(theirs) == is_of_scorers
    }
    wrong = [f"{path} = {number}" for path, number in trained.items() if number > num_layers]
    if wrong:
        yield (
            f"trainable_layers must be at most the {num_layers} layers of the model, found "
            f"{', '.join(wrong)}; null trains all of them"
        )
    readers = (*SCORERS, "dpo.", "cpl.")
    unfrozen = [p for p, n in trained.items() if n == num_layers and p.startswith(readers)]
    if unfrozen and config.cache_trunk:
        yield (
            f"{', '.join(unfrozen)} must be below the {num_layers} layers of the model where "
            f"cache_trunk is set, found {num_layers}, which freezes no layer; leave it unset to "
            "train all layers"
        )
    if not is_of_scorers:
        yield from _vector_mistakes(config, num_layers)


def _vector_mistakes(config: RunConfig, num_layers: int) -> Iterator[str]:
    """A policy fine-tuned on the chosen answers of all pairs knows them: a model of its hidden
    states would vote on pairs that these states have seen."""
    sft = config.sft
    is_leaking = not config.is_synthetic and sft.fine_tune and not config.preferences.demonstrations
    frozen = max(0, num_layers - (sft.train.trainable_layers or num_layers))
    for index, model in enumerate(config.embedding_models):
        if model.encoder != POLICY:
            continue
        layer = layer_of_vectors(model.layer, num_layers)
        if layer > num_layers:
            yield (
                f"embedding_models.{index}.layer must be at most the {num_layers} layers of the "
                f"model, found {layer}"
            )
        elif is_leaking and layer > frozen:
            fewer = f"sft.train.trainable_layers={num_layers - layer} or less, "
            yield (
                f"embedding_models.{index} takes the output of layer {layer}, but fine-tuning on "
                f"the chosen answers leaves only the lower {frozen} as they are: set its layer to "
                f"at most that, {fewer if layer < num_layers else ''}"
                "sft.fine_tune=false, or preferences.demonstrations"
            )


def require_flow(config: RunConfig, flow: str | None) -> None:
    """ConfigError for a flow that needs models which the configuration leaves out."""
    if flow == "label-audit":
        return
    name = flow or "of this command"
    if config.ensemble.embedding_models_vote and flow != "reward":
        raise ConfigError(
            f"ensemble.votes is {', '.join(config.ensemble.votes)}: no reward models are trained, "
            f"which the flow {name} needs; allowed: the flows label-audit and reward, or "
            "ensemble.votes=in_sample"
        )
    if len(config.scorers) < 2 and flow != "reward":
        raise ConfigError(
            f"scorers: found {', '.join(config.scorers)}; allowed: reward_model and "
            f"advantage_model, which the flow {name} needs, or the flow reward"
        )
    if not config.is_synthetic and config.sft.model.base is None:
        raise ConfigError(
            "sft.model.base: found none; allowed: a folder, a hub id or "
            f"{', '.join(PACKAGED_MODELS)}, which the scorers of the flow {name} start from"
        )


def seeded(config: Any, run_seed: int, offset: int = 0) -> Any:
    """A stage's configuration with its seed moved to the run's: members and rounds by `offset`."""
    return config.model_copy(update={"seed": config.seed + 1000 * run_seed + offset})


def with_changes(config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """A copy with some fields changed, of sections those that are named; validated as a whole."""
    fields = dict(config)
    for name, value in changes.items():
        is_section = isinstance(value, Mapping) and isinstance(fields[name], BaseModel)
        fields[name] = with_changes(fields[name], value) if is_section else value
    return type(config).model_validate(fields)


def load_config(values: dict[str, Any]) -> RunConfig:
    """Validate a configuration given as plain values; all mistakes are reported at once."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig)) from None
