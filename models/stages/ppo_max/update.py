"""Policy and critic updates on one batch of experience.

The responses to a prompt are one row, and are learned from together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.group import LossMean
from trimtab.models.functional.ppo import entropy_loss, kl_loss, policy_loss, value_loss
from trimtab.models.nets import counts
from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.freezing import load_trained_state
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import response_logprobs, response_values
from trimtab.models.nets.training import prepare_training
from trimtab.models.stages.ppo_max.rollout import Experience, treat_advantages, whitens_minibatches
from trimtab.models.training import distributed
from trimtab.models.training.checkpoint import whole
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    TrainingRows,
    accumulate,
    built_ahead,
    new_learner,
)
from trimtab.models.training.nll_term import NLLTerm, with_term

# Targets of a loss: values (N, L) of the tokens of all N responses, or (N,) of these, on the
# device, and the indices (n,) of those in the batch.
Targets = tuple[tuple[Tensor, ...], Tensor]


class ActorCritic:
    """The trained models, a learner each; the critic is loaded once the policy's is there.

    load_critic: None where the objective has no critic. `nll_terms` holds the rehearsal and
    pre-training terms that are added to the policy loss. Their draws come from a generator of their
    own, kept in the checkpoint like `num_trained_tokens`: tokens learned from so far, of policy and
    critic each.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: PreTrainedModel,
        load_critic: Callable[[], PreTrainedModel] | None,
        nll_terms: list[NLLTerm],
        state: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.nll_terms = config, nll_terms
        saved = state or {}
        prepare_training(policy, config, config.seed)
        loss_function = with_term(policy, _policy_loss(policy, config), NLLTerm)
        self.policy = new_learner(policy, loss_function, config, state=saved.get("policy"))
        self.critic: Learner[Any] | None = None
        if load_critic is not None:
            critic = load_critic()
            prepare_training(critic, config, config.seed)
            self.critic = new_learner(
                critic, _critic_loss(critic, config), config, state=saved.get("critic")
            )
        self.generator = torch.Generator().manual_seed(config.seed + 1)
        self.num_trained_tokens = 0
        if state is not None:
            self.generator.set_state(state["generator"])
            self.num_trained_tokens = state["num_trained_tokens"]

    def update(
        self,
        experience: Experience,
        updates_policy: bool,
        policy_share: float = 1.0,
        critic_share: float = 1.0,
    ) -> Metrics:
        """All epochs of train batches over one rollout batch; mean metrics over the updates.

        policy_share, critic_share: of each one's learning rate.
        """
        metrics: dict[str, list[Tensor]] = defaultdict(list)
        size = self.config.train_batch // self.config.objective.num_responses
        num_models = (self.critic is not None) + updates_policy
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(experience.rows), generator=self.generator, device="cpu")
            for span in counts.spans(len(order), size):
                batch = order[span.start : span.stop].tolist()
                row = self._critic_step(experience, batch, critic_share) if self.critic else {}
                self._count([experience.rows[index] for index in batch], num_models)
                if updates_policy:
                    row |= self._policy_step(experience, batch, policy_share)
                for name, value in row.items():
                    metrics[name].append(value)
        return {name: torch.stack(values).mean() for name, values in metrics.items()}

    def _critic_step(self, experience: Experience, batch: list[int], share: float) -> Metrics:
        assert self.critic is not None
        data = _training_rows(experience, (experience.values, experience.returns))
        micro = built_ahead(self.critic, data, batch, self.config.micro_batch_tokens)
        metrics = _prefixed("value", accumulate(self.critic, micro))
        distributed.all_reduce_sum(list(metrics.values()))
        metrics["value_grad_norm"] = self.critic.step(share * self.config.critic_learning_rate)
        return metrics

    def _policy_step(self, experience: Experience, batch: list[int], share: float = 1.0) -> Metrics:
        over_reference = self.config.ratio_denominator == "reference"
        old = experience.ref_logprobs if over_reference else experience.old_logprobs
        advantages = experience.advantages
        clipped: Metrics = {}
        if whitens_minibatches(self.config):
            at = move_to_device(torch.tensor(_responses_of(experience, batch)))
            treated, clipped = treat_advantages(
                self.config, advantages[at], experience.response_mask[at]
            )
            advantages = advantages.index_copy(0, at, treated)
        if experience.importance is not None:
            advantages = advantages * experience.importance
        values: tuple[Tensor, ...] = (old, advantages)
        if self.config.objective.kl_in == "loss":
            values += (experience.ref_logprobs, experience.kl_coef, experience.old_logprobs)
        by_token = self.config.objective.loss_mean == "token"
        data = _training_rows(experience, values, by_token=by_token)
        limit = self.config.micro_batch_tokens
        micro = built_ahead(self.policy, data, batch, limit)
        is_last = not self.nll_terms
        metrics = _prefixed("policy", accumulate(self.policy, micro, is_last=is_last))
        for term in self.nll_terms:
            drawn, is_last = term.draw(self.generator), term is self.nll_terms[-1]
            self._count(drawn, 1)
            metrics |= term.accumulate(self.policy, drawn, limit, is_last)
        distributed.all_reduce_sum(list(metrics.values()))
        metrics["policy_grad_norm"] = self.policy.step(share * self.config.policy_learning_rate)
        return metrics | clipped

    def rehearse(self, rows: list[Candidates]) -> None:
        """Draw what is rehearsed from these rows from now on."""
        self.nll_terms = [
            replace(term, rows=rows) if term.name == NLLTerm.name else term
            for term in self.nll_terms
        ]

    def _count(self, rows: list[Candidates], num_models: int) -> None:
        self.num_trained_tokens += num_models * sum(row.num_tokens for row in rows)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser states, the generator and the count of tokens."""
        return {
            "policy": self.policy.state_dict(),
            **({"critic": self.critic.state_dict()} if self.critic is not None else {}),
            "generator": self.generator.get_state(),
            "num_trained_tokens": self.num_trained_tokens,
        }

    def finish(self) -> None:
        """Leave the models whole on the first rank; nothing more is learned."""
        for learner in (self.policy, self.critic):
            if learner is not None:
                learner.finish()

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """The trained models, by their names in a `state_dict`."""
        learners = {"policy": self.policy, "critic": self.critic}
        return {name: learner.model for name, learner in learners.items() if learner is not None}

    def load_weights(self, state: dict[str, Any]) -> None:
        """Give the models the weights of a `state_dict`, once learning is finished."""
        for name, model in self.models.items():
            load_trained_state(model, whole(state[name]["model"]))


def _policy_loss(policy: PreTrainedModel, config: PPOConfig) -> LossFunction:
    """The clipped loss; targets: the ratio's denominator, advantages, and for a KL penalty in the
    loss log-probabilities of the reference, each response's coefficient, those at sampling."""
    objective, clip = config.objective, config.policy_clip
    mean = LossMean(objective.loss_mean, config.max_new_tokens)
    clips = clip if clip is None else (clip, objective.upper_clip or clip)

    def loss_function(batch: PackedBatch, targets: Targets) -> tuple[Tensor, Metrics]:
        logprobs, entropies, mask = response_logprobs(policy, batch, config.temperature)
        old, advantages, *of_kl = _batch_targets(targets, mask.shape[1])
        loss, metrics = policy_loss(
            logprobs, old, advantages, mask, clips, objective.ratio_of, mean
        )
        if objective.kl_in == "loss":
            ref_logprobs, kl_coef, sampling_logprobs = of_kl
            sampled = sampling_logprobs if objective.kl_bias_correction else None
            penalty, more = kl_loss(
                logprobs, ref_logprobs, mask, kl_coef, objective.kl_estimator, mean, sampled
            )
            loss, metrics = loss + penalty, metrics | more
        if config.entropy_coef > 0:
            bonus, more = entropy_loss(entropies, mask, config.entropy_clip, mean)
            loss, metrics = loss + config.entropy_coef * bonus, metrics | more
        return loss, metrics

    return loss_function


def _critic_loss(critic: PreTrainedModel, config: PPOConfig) -> LossFunction:
    """The clipped loss; targets: old values, returns."""

    def loss_function(batch: PackedBatch, targets: Targets) -> tuple[Tensor, Metrics]:
        values, mask = response_values(critic, batch)
        old, returns = _batch_targets(targets, mask.shape[1])
        return value_loss(values, old, returns, mask, config.value_clip)

    return loss_function


def _training_rows(
    experience: Experience, values: tuple[Tensor, ...], by_token: bool = True
) -> TrainingRows:
    """The rows of responses, of the weight of their tokens or of their number, with these values as
    targets."""

    def weight(row: Candidates) -> int:
        return sum(map(len, row.responses)) if by_token else len(row.responses)

    return TrainingRows(
        experience.rows,
        torch.tensor(list(map(weight, experience.rows))),
        arguments=lambda indices: (values, torch.tensor(_responses_of(experience, indices))),
    )


def _responses_of(experience: Experience, rows: list[int]) -> list[int]:
    """Indices of the responses of these rows, which have as many each."""
    count = len(experience.rows[0].responses)
    return [index * count + place for index in rows for place in range(count)]


def _batch_targets(targets: Targets, length: int) -> tuple[Tensor, ...]:
    """The values (n, length), or (n,), of the batch's responses."""
    values, at = targets
    return tuple(one[at, :length] if one.ndim == 2 else one[at] for one in values)


def _prefixed(prefix: str, metrics: Metrics) -> Metrics:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}
