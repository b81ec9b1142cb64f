"""Experience: sample, score, and turn scores into token rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.group import (
    group_advantages,
    overlong_penalties,
    truncated_weights,
)
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
    """One rollout batch of N responses, L the longest, K of them to each prompt and in each row.

    old_logprobs, ref_logprobs, values, advantages, returns, entropies: (N, L), nats or score
    units; values are 0 without a critic. response_mask: (N, L) bool, True = sampled by the policy.
    kl_coef: (N,) of the KL penalty, score units a nat. scores: (N,) raw from the scorer or judge,
    or combined from several, on the host; normalised_scores: (N,) after scaling or normalisation
    and clipping. importance: (N, L), truncated weights of the policy loss; None: all 1. texts: rows
    of the rollout log. reported: metrics of the switches that are on.
    """

    rows: list[Candidates]
    texts: list[dict[str, Any]]
    response_mask: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    entropies: Tensor
    values: Tensor
    kl_coef: Tensor
    scores: Tensor
    normalised_scores: Tensor
    advantages: Tensor
    returns: Tensor
    importance: Tensor | None
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
    """The models that a rollout runs; critic: None where the objective has none.

    shared_layers: number of frozen lower layers that all models share as modules.
    """

    tokenizer: PreTrainedTokenizerBase
    policy: ModelHandle
    reference: ModelHandle
    critic: ModelHandle | None
    scorers: Scorers
    shared_layers: int = 0


@torch.no_grad()
def collect(
    config: PPOConfig,
    prompts: Sequence[dict[str, Any]],
    models: RolloutModels,
    moments: RunningMoments,
    generator: torch.Generator,
    kl_coef: Tensor,
) -> Experience:
    """Sample the responses to each prompt and compute all that the update needs; updates `moments`.

    kl_coef: of each prompt, on the device.
    """
    tokenizer, num_responses = models.tokenizer, config.objective.num_responses
    with models.policy.gathered() as sampled:
        rows, noted = _sample_rows(config, tokenizer, prompts, sampled, generator)
        rows = with_trunk(sampled, rows, models.shared_layers)
        sampled_ids = [ids for row in rows for ids in row.responses]
        width = max(map(len, sampled_ids))
        old_logprobs, entropies = _policy_logprobs(config, sampled, rows, noted, width)
    with models.reference.gathered() as referring:
        ref_logprobs, _, response_mask = map_rows(
            rows, lambda batch: response_logprobs(referring, batch, config.temperature), width
        )
    importance, weighed = _importance(config, old_logprobs, noted, response_mask)
    values = _values(models.critic, rows, torch.zeros_like(ref_logprobs))
    responses = [tokenizer.decode(ids, skip_special_tokens=True) for ids in sampled_ids]
    prompts = [prompt for prompt in prompts for _ in range(num_responses)]
    scores, reported = models.scorers.score(config.scoring, prompts, rows, responses)
    held_out = models.scorers.held_out_scores(prompts, rows, responses)
    normalised = move_to_device(_treat_scores(config, scores, moments))
    penalties, penalised = _length_penalties(config, sampled_ids, tokenizer.eos_token_id)
    kl_coefs = kl_coef.repeat_interleave(num_responses)
    rewards = token_rewards(
        normalised - move_to_device(penalties),
        old_logprobs,
        ref_logprobs,
        response_mask,
        kl_coefs if config.objective.kl_in == "reward" else 0.0,
        config.objective.kl_estimator,
    )
    advantages, returns, clipped = _treated_advantages(config, rewards, values, response_mask)
    if held_out is not None:
        reported |= held_out_monitors(scores, held_out)
    return Experience(
        rows=rows,
        texts=_log_rows(prompts, responses, scores, held_out),
        response_mask=response_mask,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        entropies=entropies,
        values=values,
        kl_coef=kl_coefs,
        scores=scores,
        normalised_scores=normalised,
        advantages=advantages,
        returns=returns,
        importance=importance,
        reported=noted.reported | weighed | reported | penalised | clipped,
    )


def _sample_rows(
    config: PPOConfig,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[dict[str, Any]],
    policy: PreTrainedModel,
    generator: torch.Generator,
) -> tuple[list[Candidates], Samples]:
    """Each prompt with its sampled responses, and what the sampler noted of all of them.

    Equal prompts follow one another, so that the sampler passes each once.
    """
    sampling = Sampling(
        config.temperature, config.max_new_tokens, config.top_p, config.repetition_penalty
    )
    encoded = encode_prompts(policy, tokenizer, [row["prompt"] for row in prompts], sampling)
    count = config.objective.num_responses
    repeated = [ids for ids in encoded for _ in range(count)]
    noted = sample(policy, tokenizer, repeated, sampling, generator)
    rows = [
        Candidates(
            encoded[index],
            tuple(noted.responses[index * count : (index + 1) * count]),
            category=row.get("category"),
        )
        for index, row in enumerate(prompts)
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


def _importance(
    config: PPOConfig, logprobs: Tensor, noted: Samples, mask: Tensor
) -> tuple[Tensor | None, Metrics]:
    """The weights (N, L) that `importance_cap` asks for, and their mean and share at the cap, over
    tokens, or responses where the ratio is theirs."""
    cap = config.importance_cap
    if cap is None:
        return None, {}
    ratio_of = config.objective.ratio_of
    sampler_logprobs = noted.logprobs[:, : mask.shape[1]]
    weights = truncated_weights(logprobs, sampler_logprobs, mask, cap, ratio_of)
    counted = mask[:, :1] if ratio_of == "response" else mask
    of_each = weights[:, : counted.shape[1]]
    return weights, {
        "importance_mean": masked_mean(of_each, counted),
        "importance_capped_fraction": masked_mean((of_each >= cap).float(), counted),
    }


def _log_rows(
    prompts: Sequence[dict[str, Any]],
    responses: Sequence[str],
    scores: Tensor,
    held_out: Tensor | None,
) -> list[dict[str, Any]]:
    """Rows of the rollout log, one a response."""
    categories = [row.get("category") for row in prompts]
    columns = {"response": responses, "category": categories, "score": scores}
    if held_out is not None:
        columns["held_out_score"] = held_out.mean(0)
    return with_columns([{"prompt": row["prompt"]} for row in prompts], columns)


def _values(critic: ModelHandle | None, rows: Sequence[Candidates], zeros: Tensor) -> Tensor:
    """The critic's values (N, L) of the states before each token; zeros (N, L) without a critic."""
    if critic is None:
        return zeros
    with critic.gathered() as model:
        values, _ = map_rows(rows, lambda batch: response_values(model, batch), zeros.shape[1])
    return values


def _treat_scores(config: PPOConfig, scores: Tensor, moments: RunningMoments) -> Tensor:
    """Scores (N,) after `score_treatment` and `score_clip`; updates `moments`."""
    moments.update(scores)
    mean = moments.mean if config.score_treatment == "normalised" else 0.0
    std = 1.0 if config.score_treatment == "raw" else moments.std
    return normalise_scores(scores, mean, std, config.score_clip)


def _length_penalties(
    config: PPOConfig, responses: Sequence[list[int]], end_token: int | None
) -> tuple[Tensor, Metrics]:
    """What is taken from the scores (N,) of responses that were cut or are long, on the host."""
    penalties, metrics = torch.zeros(len(responses)), {}
    if config.missing_eos_penalty > 0:
        missing = torch.tensor([float(ids[-1] != end_token) for ids in responses])
        penalties += config.missing_eos_penalty * missing
        metrics["missing_eos_fraction"] = missing.mean()
    if config.overlong_buffer > 0:
        lengths = torch.tensor([len(ids) for ids in responses])
        shares = overlong_penalties(lengths, config.max_new_tokens, config.overlong_buffer)
        penalties += config.overlong_penalty * shares
        metrics["overlong_penalty"] = config.overlong_penalty * shares.mean()
    return penalties, metrics


def _advantages(
    config: PPOConfig, rewards: Tensor, values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (N, L) of token rewards, as the objective's baseline has them.

    Without a critic or a group: what is still to come of the rewards, as GAE of values 0 has it.
    """
    objective = config.objective
    if objective.baseline == "critic":
        return gae(rewards, values, mask, config.gamma, config.gae_lambda)
    _, returns = gae(rewards, values, mask, config.gamma, 1.0)
    if objective.baseline == "none":
        return returns, returns
    of_responses = group_advantages(
        rewards.sum(1), objective.num_responses, objective.baseline, objective.divide_by_std
    )
    return torch.where(mask, of_responses.unsqueeze(1), torch.zeros_like(rewards)), returns


def _treated_advantages(
    config: PPOConfig, rewards: Tensor, values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """Advantages, treated unless each update does so, returns (N, L), and the clip's metrics."""
    advantages, returns = _advantages(config, rewards, values, mask)
    if whitens_minibatches(config):
        return advantages, returns, {}
    advantages, clipped = treat_advantages(config, advantages, mask)
    return advantages, returns, clipped


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
