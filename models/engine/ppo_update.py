"""Policy and critic updates on one batch of experience."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.config import PPOConfig
from models.engine import ranks
from models.engine.batches import my_parts
from models.engine.optimiser import adamw, clip_gradients
from models.engine.ppo_rollout import Experience
from models.functional.ppo_max import policy_loss, value_loss
from models.functional.rehearsal import nll_loss
from models.nets.freezing import load_trained_state, trained_parameters, trained_state
from models.nets.packing import Candidates, pack
from models.nets.scoring import response_logprobs, response_values
from models.nets.training import prepare_training

Replay = tuple[float, str, list[Candidates]]


class Learner:
    """The two trained models and their optimisers.

    `replay` holds (coefficient, metric name, dialogues): rehearsal and pre-training terms added
    to the policy loss. Their draws come from a generator of their own, kept in the checkpoint.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: PreTrainedModel,
        critic: PreTrainedModel,
        replay: list[Replay],
    ) -> None:
        self.config, self.policy, self.critic = config, policy, critic
        self.replay = replay
        for model in (policy, critic):
            prepare_training(model, config)
        self.policy_optimiser = adamw(policy, config.policy_learning_rate)
        self.critic_optimiser = adamw(critic, config.critic_learning_rate)
        self.generator = torch.Generator().manual_seed(config.seed + 1)

    def update(self, experience: Experience, updates_policy: bool) -> dict[str, Tensor]:
        """All epochs of train batches over one rollout batch; mean metrics over the updates."""
        metrics: dict[str, list[Tensor]] = defaultdict(list)
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(experience.rows), generator=self.generator, device="cpu")
            for indices in order.split(self.config.train_batch):
                row = self._critic_step(experience, indices)
                if updates_policy:
                    row |= self._policy_step(experience, indices)
                for name, value in row.items():
                    metrics[name].append(value)
        return {name: torch.stack(values).mean() for name, values in metrics.items()}

    def _policy_step(self, experience: Experience, indices: Tensor) -> dict[str, Tensor]:
        metrics = self._accumulate_policy(experience, indices)
        for coefficient, name, rows in self.replay:
            metrics[name] = self._replay_gradient(rows, coefficient)
        ranks.add_up(list(metrics.values()))
        metrics["policy_grad_norm"] = self._descend(self.policy, self.policy_optimiser)
        return metrics

    def _descend(self, model: PreTrainedModel, optimiser: torch.optim.Optimizer) -> Tensor:
        """Step along the sum of all ranks' gradients; returns its norm before clipping."""
        parameters = trained_parameters(model)
        ranks.add_up([value.grad for value in parameters if value.grad is not None])
        norm = clip_gradients(parameters, self.config.max_grad_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return norm

    def _accumulate_policy(self, experience: Experience, indices: Tensor) -> dict[str, Tensor]:
        """Gradient of the token-mean policy loss over the train batch, in micro batches."""
        total = ranks.times_counted(indices.tolist()) * experience.response_mask[indices].sum()
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
        for part, rows in self._parts(experience, indices):
            logprobs, _, mask = response_logprobs(self.policy, pack(rows), self.config.temperature)
            width = mask.shape[1]
            loss, metrics = policy_loss(
                logprobs,
                experience.old_logprobs[part, :width],
                experience.advantages[part, :width],
                mask,
                self.config.policy_clip,
            )
            share = mask.sum() / total
            (loss * share).backward()
            for name, value in {"policy_loss": loss.detach(), **metrics}.items():
                sums[f"policy_{name}".replace("policy_policy", "policy")] += value * share
        return dict(sums)

    def _critic_step(self, experience: Experience, indices: Tensor) -> dict[str, Tensor]:
        total = ranks.times_counted(indices.tolist()) * experience.response_mask[indices].sum()
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
        for part, rows in self._parts(experience, indices):
            values, mask = response_values(self.critic, pack(rows))
            width = mask.shape[1]
            loss, metrics = value_loss(
                values,
                experience.values[part, :width],
                experience.returns[part, :width],
                mask,
                self.config.value_clip,
            )
            share = mask.sum() / total
            (loss * share).backward()
            for name, value in {"value_loss": loss.detach(), **metrics}.items():
                sums[f"value_{name}".replace("value_value", "value")] += value * share
        ranks.add_up(list(sums.values()))
        sums["value_grad_norm"] = self._descend(self.critic, self.critic_optimiser)
        return dict(sums)

    def _parts(
        self, experience: Experience, indices: Tensor
    ) -> list[tuple[Tensor, list[Candidates]]]:
        """(indices, rows) of this rank's micro batches of one train batch."""
        rows = [experience.rows[index] for index in indices.tolist()]
        parts = my_parts(rows, self.config.micro_batch_tokens)
        return [(indices[part], [rows[place] for place in part]) for part in parts]

    def _replay_gradient(self, rows: list[Candidates], coefficient: float) -> Tensor:
        """Adds the gradient of `coefficient * NLL` on a drawn batch [AM eq. 9]."""
        draw = torch.randint(
            len(rows), (self.config.rehearsal_batch,), generator=self.generator, device="cpu"
        ).tolist()
        batch = [rows[index] for index in draw]
        total = ranks.times_counted(batch) * sum(len(row.responses[0]) for row in batch)
        mean = torch.zeros(())
        for part in my_parts(batch, self.config.micro_batch_tokens):
            logprobs, _, mask = response_logprobs(
                self.policy, pack([batch[index] for index in part])
            )
            loss, _ = nll_loss(logprobs, mask)
            share = mask.sum() / total
            (coefficient * loss * share).backward()
            mean += loss.detach() * share
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser states and the generator."""
        return {
            "policy": trained_state(self.policy),
            "critic": trained_state(self.critic),
            "policy_optimiser": self.policy_optimiser.state_dict(),
            "critic_optimiser": self.critic_optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        load_trained_state(self.policy, state["policy"])
        load_trained_state(self.critic, state["critic"])
        self.policy_optimiser.load_state_dict(state["policy_optimiser"])
        self.critic_optimiser.load_state_dict(state["critic_optimiser"])
        self.generator.set_state(state["generator"])
