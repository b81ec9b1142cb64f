"""Policy and critic updates on one batch of experience."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.ppo import entropy_loss, policy_loss, value_loss
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
    LossFunction,
    Metrics,
    TrainingRows,
    accumulate,
    built_ahead,
    new_learner,
)
from trimtab.models.training.nll_term import NLLTerm, with_term

# Targets of a loss: two values (N, L) of the tokens of all N responses, on the device, and the
# indices (n,) of those in the batch.
Targets = tuple[Tensor, Tensor, Tensor]


class ActorCritic:
    """The two trained models, a learner each; the critic is loaded once the policy's is there.

    `nll_terms` holds the rehearsal and pre-training terms that are added to the policy loss. Their
    draws come from a generator of their own, kept in the checkpoint like `num_trained_tokens`:
    tokens learned from so far, of policy and critic each.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: PreTrainedModel,
        load_critic: Callable[[], PreTrainedModel],
        nll_terms: list[NLLTerm],
        state: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.nll_terms = config, nll_terms
        saved = state or {}
        prepare_training(policy, config, config.seed)
        loss_function = with_term(policy, _policy_loss(policy, config), NLLTerm)
        self.policy = new_learner(policy, loss_function, config, state=saved.get("policy"))
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
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(experience.rows), generator=self.generator, device="cpu")
            for span in counts.spans(len(order), self.config.train_batch):
                batch = order[span.start : span.stop].tolist()
                row = self._critic_step(experience, batch, critic_share)
                self._count([experience.rows[index] for index in batch], 1 + updates_policy)
                if updates_policy:
                    row |= self._policy_step(experience, batch, policy_share)
                for name, value in row.items():
                    metrics[name].append(value)
        return {name: torch.stack(values).mean() for name, values in metrics.items()}

    def _critic_step(self, experience: Experience, batch: list[int], share: float) -> Metrics:
        data = _training_rows(experience, experience.values, experience.returns)
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
            at = move_to_device(torch.tensor(batch))
            treated, clipped = treat_advantages(
                self.config, advantages[at], experience.response_mask[at]
            )
            advantages = advantages.index_copy(0, at, treated)
        data, limit = _training_rows(experience, old, advantages), self.config.micro_batch_tokens
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
            "critic": self.critic.state_dict(),
            "generator": self.generator.get_state(),
            "num_trained_tokens": self.num_trained_tokens,
        }

    def finish(self) -> None:
        """Leave both models whole on the first rank; nothing more is learned."""
        self.policy.finish()
        self.critic.finish()


def load_weights(state: dict[str, Any], policy: PreTrainedModel, critic: PreTrainedModel) -> None:
    """Give both models the weights of a `state_dict`, once learning is finished."""
    for model, name in ((policy, "policy"), (critic, "critic")):
        load_trained_state(model, whole(state[name]["model"]))


def _policy_loss(policy: PreTrainedModel, config: PPOConfig) -> LossFunction:
    """The clipped loss; targets: the ratio's denominator, advantages."""

    def loss_function(batch: PackedBatch, targets: Targets) -> tuple[Tensor, Metrics]:
        logprobs, entropies, mask = response_logprobs(policy, batch, config.temperature)
        old, advantages = _batch_targets(targets, mask.shape[1])
        loss, metrics = policy_loss(logprobs, old, advantages, mask, config.policy_clip)
        if config.entropy_coef > 0:
            bonus, more = entropy_loss(entropies, mask, config.entropy_clip)
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


def _training_rows(experience: Experience, first: Tensor, second: Tensor) -> TrainingRows:
    """The responses, each of the weight of its tokens, with two values (N, L) as targets."""
    return TrainingRows(
        experience.rows,
        torch.tensor([len(row.responses[0]) for row in experience.rows]),
        arguments=lambda indices: (first, second, torch.tensor(indices)),
    )


def _batch_targets(targets: Targets, length: int) -> tuple[Tensor, Tensor]:
    """Both values (n, length) of the batch's responses."""
    first, second, indices = targets
    return first[indices, :length], second[indices, :length]


def _prefixed(prefix: str, metrics: Metrics) -> Metrics:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}
