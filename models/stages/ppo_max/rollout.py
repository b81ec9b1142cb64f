"""Experience: sample, score, and turn scores into token rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.masked import masked_mean, masked_whiten
from trimtab.models.functional.ppo import (
    RunningMoments,
    clip_advantages,
    gae,
    normalise_scores,
    token_rewards,
)
from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.generation import Samples, Sampling
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.precision import has_narrow_products
from trimtab.models.nets.scoring import response_logprobs, response_values
from trimtab.models.stages.ppo_max.guard import held_out_monitors
from trimtab.models.stages.ppo_max.scorers import Scorers
from trimtab.models.training.data import with_columns
from trimtab.models.training.learner import Metrics, ModelHandle
from trimtab.models.training.sampling import encode_prompts, sample
from trimtab.models.training.scoring import map_rows, with_trunk


@dataclass(frozen=True)
class Experience:
    """One rollout batch of N responses, L the longest.

    old_logprobs, ref_logprobs, values, advantages, returns, entropies: (N, L), nats or score
    units. response_mask: (N, L) bool, True = sampled by the policy. scores: (N,) raw from the
    scorer or judge, or combined from several, on the host; normalised_scores: (N,) after scaling
    or normalisation and clipping. texts: rows of the rollout log. reported: metrics of the
    switches that are on.
    """

    rows: list[Candidates]
    texts: list[dict[str, Any]]
    response_mask: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    entropies: Tensor
    values: Tensor
    scores: Tensor
    normalised_scores: Tensor
    advantages: Tensor
    returns: Tensor
    reported: Metrics

    def monitors(self) -> dict[str, Tensor]:
        """What the collapse guard and the plots watch: means over the batch."""
        mask = self.response_mask
        return {
            "score": self.scores.mean(),
            "score_std": self.scores.std(),
            "normalised_score": self.normalised_scores.mean(),
            "kl": ((self.old_logprobs - self.ref_logprobs) * mask).sum(1).mean(),
            "perplexity": (-masked_mean(self.old_logprobs, mask)).exp(),
            "ref_perplexity": (-masked_mean(self.ref_logprobs, mask)).exp(),
            "entropy": masked_mean(self.entropies, mask),
            "response_length": mask.sum(1).float().mean(),
            **self.reported,
        }


@dataclass(frozen=True)
class RolloutModels:
    """The models that a rollout runs.

    shared_layers: number of frozen lower layers that all models share as modules.
    """

    tokenizer: PreTrainedTokenizerBase
    policy: ModelHandle
    reference: ModelHandle
    critic: ModelHandle
    scorers: Scorers
    shared_layers: int = 0


@torch.no_grad()
def collect(
    config: PPOConfig,
    prompts: Sequence[dict[str, Any]],
    models: RolloutModels,
    moments: RunningMoments,
    generator: torch.Generator,
    kl_coef: float | Tensor,
) -> Experience:
    """Sample one response a prompt and compute all that the update needs; updates `moments`.

    kl_coef: of all N prompts, or (N,) of each, on the device.
    """
    tokenizer = models.tokenizer
    with models.policy.gathered() as sampled:
        rows, noted = _sample_rows(config, tokenizer, prompts, sampled, generator)
        rows = with_trunk(sampled, rows, models.shared_layers)
        width = max(len(row.responses[0]) for row in rows)
        old_logprobs, entropies = _policy_logprobs(config, sampled, rows, noted, width)
    with models.reference.gathered() as referring:
        ref_logprobs, _, response_mask = map_rows(
            rows, lambda batch: response_logprobs(referring, batch, config.temperature), width
        )
    with models.critic.gathered() as valuing:
        values, _ = map_rows(rows, lambda batch: response_values(valuing, batch), width)
    responses = [tokenizer.decode(row.responses[0], skip_special_tokens=True) for row in rows]
    scores, reported = models.scorers.score(config.scoring, prompts, rows, responses)
    held_out = models.scorers.held_out_scores(prompts, rows, responses)
    normalised = move_to_device(_treat_scores(config, scores, moments))
    rewards = token_rewards(normalised, old_logprobs, ref_logprobs, response_mask, kl_coef)
    advantages, returns = gae(rewards, values, response_mask, config.gamma, config.gae_lambda)
    clipped: Metrics = {}
    if not whitens_minibatches(config):
        advantages, clipped = treat_advantages(config, advantages, response_mask)
    categories = [row.get("category") for row in prompts]
    log_columns = {"response": responses, "category": categories, "score": scores}
    if held_out is not None:
        log_columns["held_out_score"] = held_out.mean(0)
        reported |= held_out_monitors(scores, held_out)
    return Experience(
        rows=rows,
        texts=with_columns([{"prompt": row["prompt"]} for row in prompts], log_columns),
        response_mask=response_mask,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        entropies=entropies,
        values=values,
        scores=scores,
        normalised_scores=normalised,
        advantages=advantages,
        returns=returns,
        reported=noted.reported | reported | clipped,
    )


def _sample_rows(
    config: PPOConfig,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[dict[str, Any]],
    policy: PreTrainedModel,
    generator: torch.Generator,
) -> tuple[list[Candidates], Samples]:
    """Each prompt with one sampled response, and what the sampler noted."""
    sampling = Sampling(
        config.temperature, config.max_new_tokens, config.top_p, config.repetition_penalty
    )
    encoded = encode_prompts(policy, tokenizer, [row["prompt"] for row in prompts], sampling)
    noted = sample(policy, tokenizer, encoded, sampling, generator)
    rows = [
        Candidates(prompt, (response,), category=row.get("category"))
        for prompt, response, row in zip(encoded, noted.responses, prompts, strict=True)
    ]
    return rows, noted


def _policy_logprobs(
    config: PPOConfig,
    policy: PreTrainedModel,
    rows: Sequence[Candidates],
    noted: Samples,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (N, L) of sampled tokens, as the update computes them.

    The built-in sampler noted them in float32. With bfloat16 products the update's values differ,
    and the ratio to the noted ones would not start at 1: they are computed again, as for vLLM's.
    """
    if noted.reported or has_narrow_products():
        logprobs, entropies, _ = map_rows(
            rows, lambda batch: response_logprobs(policy, batch, config.temperature), width
        )
        return logprobs, entropies
    return noted.logprobs[:, :width], noted.entropies[:, :width]


def _treat_scores(config: PPOConfig, scores: Tensor, moments: RunningMoments) -> Tensor:
    """Scores (N,) after `score_treatment` and `score_clip`; updates `moments`."""
    moments.update(scores)
    mean = moments.mean if config.score_treatment == "normalised" else 0.0
    std = 1.0 if config.score_treatment == "raw" else moments.std
    return normalise_scores(scores, mean, std, config.score_clip)


def whitens_minibatches(config: PPOConfig) -> bool:
    """Whether advantages are whitened, and then clipped, over the responses of one update."""
    return config.normalise_advantages and config.normalise_over == "minibatch"


def treat_advantages(config: PPOConfig, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Advantages (N, L), whitened and clipped as configured, and the clip's metrics."""
    if config.normalise_advantages:
        advantages = masked_whiten(advantages, mask)
    if config.advantage_clip is None:
        return advantages, {}
    return clip_advantages(advantages, mask, config.advantage_clip)
