"""Stage `advantage_model`: reward and expected reward in one pass, bounded scores [AM section 3.1].

Deviations from the paper:
1. The importance ratio pi_phi(y|x) / pi'(y|x) is the length-normalised one: per-sequence ratios
   overflow for all but the shortest answers (methods: log space, clipped, binding share logged).
2. An answer is weighed against the pair's other answer, so that r(x, y) - e(x) is ranked in
   training and answered in use. With `importance_baseline` "itself", as [AM eq. 8] is printed, the
   model answers (N - K) / N (r(x, y) - e(x)), the advantage at ratios of 1: the ratios describe how
   the comparisons were sampled, and nothing is known of them for other answers. The scale stands in
   the model's configuration.

[AM eq. 8] sums over all K policies, whichever of them wrote a response.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import AdvantageModelConfig, MetaRMConfig
from trimtab.models.functional.advantage import (
    advantage_loss,
    advantage_scale,
    advantage_scores,
    calibrated_margin,
    expected_reward_loss,
    leave_one_out_advantages,
    mixture_weights,
    require_enough_policies,
)
from trimtab.models.functional.masked import masked_mean
from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import (
    add_category_heads,
    load_policy,
    load_tokenizer,
    new_scorer,
)
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.scoring import (
    ADVANTAGE_SCALE,
    category_heads,
    expected_column,
    read_rewards,
    response_logprobs,
    reward_heads,
)
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.stages.reward_model import heads_of_terms, score_splits
from trimtab.models.statistics.calibration import likeliest_temperature
from trimtab.models.training import distributed, signals
from trimtab.models.training.category_gate import categories_of, fit_gate
from trimtab.models.training.data import Pairs, context_length
from trimtab.models.training.learner import Metrics
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.nll_term import DrawnTerm
from trimtab.models.training.pair_batches import ComparedPairs, pair_batches_of, reward_loss
from trimtab.models.training.probes import probe
from trimtab.models.training.sampling import sample_answers
from trimtab.models.training.scoring import map_rows, with_trunk
from trimtab.models.training.stage import Row, Stage

PROMPTS_OF_CATEGORY = 10  # free: the mean error of fewer is too noisy for a constraint
STATES_PER_CONSTRAINT = 10  # free: with fewer numbers for each, constraints would fit noise
_LEARNED = "learned_expected_reward"  # in a model's config.json


def run(config: AdvantageModelConfig, stage: Stage) -> None:
    """Inputs: `policy` (trunk, pi_phi), `preferences`; `pairs`, `strength`, `behaviour` (pi'),
    `trunk`, `data`.

    The last five are optional; K > 1 policies are `behaviour_0`, `behaviour_1` and so on. `data`
    has the prompts of `expected_reward`. Output: model/, scores.jsonl, probes.jsonl;
    with `expected_reward` also expected_rewards.jsonl, of prompts that were held out.
    """
    policy = stage.inputs["policy"] / "model"
    tokenizer, model = load_tokenizer(policy), new_scorer(policy, config.seed, has_expected=True)
    pairs = stage.training_pairs(model, tokenizer)
    importance = _importance(config, stage, pairs) if config.use_importance_weights else None
    if importance is not None:
        setattr(model.config, ADVANTAGE_SCALE, importance.scale)
    margins = margins_of(config, stage, pairs)

    if config.category_heads:
        add_category_heads(model, categories_of(pairs), config.seed)
    fit_gate(model, pairs)
    term = _expected_reward_term(config, model, stage)
    rankings = pair_batches_of(pairs, config.ranking, imitates=config.imitation_coef > 0)
    with heads_of_terms(model, config, policy):
        summary = fit(
            model,
            rankings.examples,
            reward_loss(
                model,
                config.imitation_coef,
                config.contrastive,
                compare=partial(advantage_of_pairs, config, margins, importance),
            ),
            config.train,
            seed=config.seed,
            workdir=stage.workdir,
            extras=StepExtras(term=term),
        )
    fit_gate(model, pairs)
    if term is not None:
        refit_expected_reward(model.eval(), term.rows, term.categories)
        setattr(model.config, _LEARNED, True)
    scores, accuracy = score_splits(model, tokenizer, stage)
    probes = probe(model, tokenizer, stage)
    held_out, agreement = _compare_held_out(config, model, stage)
    distributed.leave()
    stage.write_model(model, tokenizer)
    stage.write_rows("scores.jsonl", scores)
    stage.write_rows("probes.jsonl", probes)
    if held_out:
        stage.write_rows("expected_rewards.jsonl", held_out)
    summary |= accuracy | agreement
    summary["num_trained_pairs"] = len(pairs.rows)
    summary["num_category_heads"] = len(category_heads(model))
    if importance is not None:  # of the behaviour policy that differs most
        log_ratios = importance.log_ratios
        summary["mean_absolute_log_ratio"] = float(log_ratios.abs().mean((0, 1)).max())
        summary["largest_weight_sum"] = float(importance.weight_sums.max())
    stage.write_summary(summary)


class Importance(NamedTuple):
    """How likely the policy is to write what K behaviour policies wrote, of P pairs.

    log_ratios: (P, 2, K), nats, of the preferred response and the other. weight_sums: (P, 2), over
    the K policies. scale: of the scores in use.
    """

    log_ratios: Tensor
    weight_sums: Tensor
    scale: float


def advantage_of_pairs(
    config: AdvantageModelConfig,
    margins: Tensor | None,
    importance: Importance | None,
    rewards: Tensor,
    expected: Tensor | None,
    compared: ComparedPairs,
) -> tuple[Tensor, Metrics]:
    """The Advantage Model's loss of compared pairs [AM eq. 6].

    rewards, expected: (R,) of all responses of a batch. margins: (P,) m(x) of all pairs; None: m.
    importance: of all pairs; None: no importance weights.
    """
    assert expected is not None
    responses = torch.stack([compared.better, compared.worse], dim=1).flatten()
    scores, bounded, weight_metrics = _advantages(
        config, importance, rewards[responses], expected[responses], compared.number
    )
    chosen, rejected = scores.view(-1, 2).unbind(1)
    better, worse = bounded.view(-1, 2).unbind(1)
    loss, metrics = advantage_loss(
        chosen,
        rejected,
        margin=config.margin if margins is None else margins[compared.number],
        bounded=(better, worse),
        label_chosen=compared.label,
        ranking_margin=compared.margin,
        weight=compared.weight,
    )
    return loss, {**metrics, **weight_metrics}


def _advantages(
    config: AdvantageModelConfig,
    importance: Importance | None,
    rewards: Tensor,
    expected: Tensor,
    number: Tensor,
) -> tuple[Tensor, Tensor, Metrics]:
    """The scores that are ranked and those that the bounds hold, of both responses of B pairs.

    rewards, expected, and both results: (2B,), pair by pair. number: (B,) of all pairs.
    """
    if importance is None or config.importance_baseline == "itself":
        scores, metrics = advantage_scores(
            rewards,
            expected,
            None if importance is None else importance.log_ratios[number].flatten(0, 1),
            config.num_policies,
            config.log_ratio_clip,
        )
        return scores, scores, metrics
    bounded = leave_one_out_advantages(
        rewards.view(-1, 2),
        expected.view(-1, 2),
        importance.weight_sums[number],
        config.num_policies,
    )
    is_clipped = importance.log_ratios[number].abs() > config.log_ratio_clip
    share = is_clipped.to(rewards.dtype).mean()
    return rewards - expected, bounded.flatten(), {"log_ratio_clip_fraction": share}


def margins_of(
    config: AdvantageModelConfig | MetaRMConfig, stage: Stage, pairs: Pairs
) -> Tensor | None:
    """m(x) (P,) of the pairs, on the device; None where it is constant.

    The strength's log-odds are those of the temperature under which it makes the training labels
    likeliest; a pair that a person kept or turned round has the largest. Raises ValueError where it
    is asked for and the input `strength` is missing.
    """
    if config.margin_by == "constant":
        return None
    if config.margin_by == "label":
        return move_to_device(calibrated_margin(pairs.label.clamp(0, 1).logit(), config.margin))
    if "strength" not in stage.inputs:
        raise ValueError("margin_by=strength needs the input `strength`, the vote on the pairs")
    votes = stage.rows("strength", "strength.jsonl")
    by_id = {row["id"]: row["strength_mean"] for row in votes if row["split"] == "train"}
    log_odds = torch.tensor([by_id[name] for name in pairs.identifiers], dtype=torch.float64)
    log_odds /= likeliest_temperature(torch.tensor([*by_id.values()], dtype=torch.float64))
    is_flipped = torch.tensor([bool(record.get("is_flipped")) for record in pairs.records])
    is_reviewed = [record.get("review") in ("keep", "flip") for record in pairs.records]
    log_odds = torch.where(is_flipped, -log_odds, log_odds).float()
    log_odds[torch.tensor(is_reviewed)] = torch.inf
    return move_to_device(calibrated_margin(log_odds, config.margin))


@dataclass(frozen=True)
class ExpectedRewardTerm(DrawnTerm):
    """The squared error of e(x) on the mean reward of a row's responses [AM eq. 7].

    categories: of the rows' prompts.
    """

    name: str = "expected_reward_loss"
    categories: tuple[str | None, ...] = ()

    @staticmethod
    def loss(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Metrics]:
        """[AM eq. 7], of packed rows with equally many responses."""
        rewards, expected = reward_heads(model, batch)
        assert expected is not None
        num_prompts = len(batch.lengths)
        return expected_reward_loss(
            expected.view(num_prompts, -1)[:, 0], rewards.view(num_prompts, -1).mean(1)
        )

    @staticmethod
    def weight(row: Candidates) -> int:
        """All prompts count the same."""
        return 1


def _expected_reward_term(
    config: AdvantageModelConfig, model: PreTrainedModel, stage: Stage
) -> ExpectedRewardTerm | None:
    """The term on samples of the policy, None if not configured; ValueError without prompts."""
    sampling = config.expected_reward
    if sampling is None:
        return None
    if "data" not in stage.inputs:
        raise ValueError("expected_reward needs the input `data`, whose prompts the policy answers")
    prompts = _prompts(stage, config.seed)[: sampling.num_prompts]
    rows = sample_answers(sampling, stage, prompts, config.seed, context_length(model.config))
    depth = num_frozen_layers(model, config.train.trainable_layers)
    return ExpectedRewardTerm(
        with_trunk(model, rows, depth),
        sampling.coef,
        sampling.batch_size,
        categories=tuple(row.get("category") for row in prompts),
    )


@torch.no_grad()
def refit_expected_reward(
    model: PreTrainedModel, rows: Sequence[Candidates], categories: Sequence[str | None]
) -> None:
    """Move e's head to what eq. 7 asks of it for the trunk and the r that were trained.

    While r is learned its mean moves on, and e(x), which learns it in small steps, is behind. The
    head is linear: a ridge regression of its error on all rows, towards the head that was trained.
    How strong the ridge is, up to leaving the head alone, is what generalised cross-validation
    finds best: samples are noisy, and there may be fewer prompts than states have numbers. A ridge
    leaves some of the error to every category, so under the constraint that the mean error is 0 in
    each one of at least PROMPTS_OF_CATEGORY prompts, unless these are too many for the states.

    rows: of N prompts, each with equally many responses. categories: (N,) of the prompts.
    """

    def encode_rows(batch: PackedBatch) -> tuple[Tensor, Tensor]:
        count, hidden = len(batch.lengths), hidden_states(model, batch, batch.ends)
        rewards, expected = read_rewards(model, hidden, batch)
        assert expected is not None
        states = hidden[batch.prompt_end.view(count, -1)[:, 0]]
        return states, (rewards - expected).view(count, -1).mean(1)

    states, error = (values.double() for values in map_rows(rows, encode_rows))
    left, values, right = torch.linalg.svd(states, full_matrices=False)
    along = left.T @ error
    squares, count = values.square(), len(rows)

    def cross_validated(ridge: Tensor) -> Tensor:
        share = squares / (squares + ridge)
        residual = error.square().sum() - ((1 - (1 - share).square()) * along.square()).sum()
        return count * residual / (count - share.sum()).square()

    ridges = [squares.max() * 10.0**power for power in range(-6, 7)]
    ridge = min(ridges, key=cross_validated)
    change = right.T @ (values / (squares + ridge) * along)
    change += _balance_categories(states, error, change, categories, right, squares + ridge)
    model.score.weight[expected_column(model)] += change.float()


def _balance_categories(
    states: Tensor,
    error: Tensor,
    change: Tensor,
    categories: Sequence[str | None],
    right: Tensor,
    penalised: Tensor,
) -> Tensor:
    """The correction (H,) of a ridge regression's weights `change` (H,) after which each category's
    mean error is 0: the smallest in the regression's metric, which is diagonal, `penalised` (K,),
    along the rows of `right` (K, H)."""
    number = Counter(categories)
    large = [name for name, count in number.items() if count >= PROMPTS_OF_CATEGORY]
    if not large or STATES_PER_CONSTRAINT * len(large) > len(right):
        return torch.zeros_like(change)
    members = states.new_tensor([[name == category for category in categories] for name in large])
    means = members / members.sum(1, keepdim=True)
    along = means @ states @ right.T
    weighted = along / penalised
    missing = means @ (error - states @ change)
    shares = torch.linalg.pinv(along @ weighted.T, rtol=1e-9, hermitian=True) @ missing
    return right.T @ (weighted.T @ shares)


def learned_expected_reward(model: PreTrainedModel) -> bool:
    """Whether e(x) of a scorer has learned the mean reward of a policy's samples [AM eq. 7]."""
    return bool(getattr(model.config, _LEARNED, False))


def _prompts(stage: Stage, seed: int) -> list[Row]:
    """The policy's prompts, shuffled by the seed, as the file may be sorted by category."""
    rows = stage.rows("data", "policy_prompts.jsonl")
    random.Random(f"expected reward/{seed}").shuffle(rows)
    return rows


def _compare_held_out(
    config: AdvantageModelConfig, model: PreTrainedModel, stage: Stage
) -> tuple[list[Row], dict[str, float]]:
    """e(x) and the mean reward of new samples, for each held-out prompt, and how well they agree.

    Rows of expected_rewards.jsonl, and for the summary their correlation and the mean over all
    prompts of r - e, which is 0 under eq. 7. Nothing where e(x) has not learned from samples.
    """
    sampling = config.expected_reward
    if sampling is None:
        return [], {}
    signals.undefer()  # this has no checkpoints
    held_out = _prompts(stage, config.seed)[sampling.num_prompts :][: sampling.num_held_out]
    if len(held_out) < 2:
        return [], {}
    seed = config.seed + 1  # other samples than those of training
    more = sampling.model_copy(update={"num_responses": sampling.held_out_responses})
    answers = sample_answers(more, stage, held_out, seed, context_length(model.config))
    mean, expected = mean_and_expected(model, answers)
    rows = [
        {"category": row.get("category"), "expected_reward": e, "mean_reward": r}
        for row, e, r in zip(held_out, expected.tolist(), mean.tolist(), strict=True)
    ]
    correlation = torch.corrcoef(torch.stack([expected, mean]))[0, 1].nan_to_num()
    return rows, {
        "expected_reward_correlation": float(correlation),
        "held_out_advantage": float((mean - expected).mean()),
    }


def mean_and_expected(model: PreTrainedModel, rows: Sequence[Candidates]) -> tuple[Tensor, Tensor]:
    """Mean reward of each row's responses, and e(x) of its prompt: (N,) each; ranks share."""
    model.eval()

    def encode_rows(batch: PackedBatch) -> tuple[Tensor, Tensor]:
        rewards, expected = reward_heads(model, batch)
        assert expected is not None
        shape = (len(batch.lengths), -1)
        return rewards.view(shape).mean(1), expected.view(shape)[:, 0]

    mean, expected = map_rows(rows, encode_rows)
    return mean.cpu(), expected.cpu()


def _log_ratios(config: AdvantageModelConfig, stage: Stage, pairs: Pairs) -> Tensor:
    """(N, 2, K) length-normalised log pi_phi / pi'_k of preferred and other responses.

    Raises ValueError where no policy is given, or `num_policies` or more.
    """
    behaviour = stage.several("behaviour")
    if not 1 <= len(behaviour) < config.num_policies:
        raise ValueError(
            "use_importance_weights needs the policies that wrote the comparisons, at least 1 and "
            f"fewer than num_policies = {config.num_policies:g}, found {len(behaviour)}"
        )
    current = _mean_logprobs(stage.inputs["policy"], pairs)
    return torch.stack([current - _mean_logprobs(folder, pairs) for folder in behaviour], dim=-1)


def _importance(config: AdvantageModelConfig, stage: Stage, pairs: Pairs) -> Importance:
    """The importance of the pairs; ValueError where `num_policies` is too small for it."""
    log_ratios, clip = _log_ratios(config, stage, pairs), config.log_ratio_clip
    count, scale = log_ratios.shape[-1], 1.0
    if config.importance_baseline == "other":
        sums = count * mixture_weights(log_ratios.flatten(0, 1), clip).view(-1, 2)
    else:
        sums = log_ratios.clamp(-clip, clip).exp().sum(-1)
        scale = advantage_scale(config.num_policies, count)
    require_enough_policies(sums, config.num_policies)
    return Importance(log_ratios, sums, scale)


def _mean_logprobs(folder: Path, pairs: Pairs) -> Tensor:
    """(N, 2) log-probability a token of both responses under a policy; ranks share the work out."""
    policy = load_policy(folder / "model", is_frozen=True).eval()

    def score_pairs(batch: PackedBatch) -> tuple[Tensor]:
        logprobs, _, response_mask = response_logprobs(policy, batch)
        return (masked_mean(logprobs, response_mask, dim=1).view(-1, 2),)

    return map_rows(pairs.rows, score_pairs)[0]
