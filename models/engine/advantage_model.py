"""Stage `advantage_model`: reward and expected reward in one pass, bounded scores [AM section 3.1].

Deviations from the paper:
1. The importance ratio pi_phi(y|x) / pi'(y|x) is the length-normalised one: per-sequence ratios
   overflow for all but the shortest answers (methods: log space, clipped, binding share logged).
2. Used as a reward, the model answers r(x, y) - e(x): the sum over alternate policies describes
   how the comparisons were sampled and has no meaning for the current policy's own answers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from models.config import AdvantageModelConfig
from models.engine.batches import micro_batches
from models.engine.data import Pairs, context_length, read_pairs
from models.engine.learners import Metrics
from models.engine.loop import fit
from models.engine.progress import write_json
from models.engine.reward_model import score_splits
from models.engine.scoring import SCORING_TOKENS
from models.engine.stored_states import stored_states
from models.functional.advantage import advantage_loss, advantage_scores
from models.functional.masked import masked_mean
from models.nets.loading import load_policy, load_tokenizer, new_scorer, save_model
from models.nets.packing import PackedBatch, pack
from models.nets.scoring import response_logprobs, reward_heads

CONFIG = AdvantageModelConfig


def run(config: AdvantageModelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `policy` (trunk, pi_phi), `preferences`; `pairs`, `behaviour` (pi'), `states`.

    The last three are optional. Output: model/ (two heads), scores.jsonl.
    """
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    model = new_scorer(inputs["policy"] / "model", 2, config.seed)
    source = inputs.get("pairs", inputs["preferences"])
    limit, states = context_length(model.config), stored_states(inputs, model)
    pairs = read_pairs(source / "train.jsonl", tokenizer, limit, states)
    log_ratios = None
    if config.use_importance_weights:
        log_ratios = _log_ratios(inputs, pairs)

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        rewards, expected = reward_heads(model, batch)
        assert expected is not None
        advantages, weight_metrics = advantage_scores(
            rewards,
            expected,
            None if log_ratios is None else log_ratios[indices].view(-1, 1),
            config.num_policies,
            config.log_ratio_clip,
        )
        advantages = advantages.view(-1, 2)
        loss, metrics = advantage_loss(
            advantages[:, 0],
            advantages[:, 1],
            margin=config.margin,
            label_chosen=pairs.label[indices],
            ranking_margin=pairs.margin[indices],
            weight=pairs.weight[indices],
        )
        return loss, {**metrics, **weight_metrics}

    summary = fit(
        model,
        pairs.rows,
        pairs.weight,
        loss_function,
        config.train,
        seed=config.seed,
        workdir=workdir,
    )
    save_model(model, tokenizer, workdir / "output" / "model")
    summary |= score_splits(model, tokenizer, inputs, workdir / "output")
    summary["num_trained_pairs"] = len(pairs.rows)
    write_json(workdir / "output" / "summary.json", summary)


@torch.no_grad()
def _log_ratios(inputs: dict[str, Path], pairs: Pairs) -> Tensor:
    """(N, 2) length-normalised log pi_phi / pi' of preferred and other responses."""
    if "behaviour" not in inputs:
        raise ValueError("use_importance_weights needs the policy that wrote the comparisons")
    result = torch.zeros(len(pairs.rows), 2)
    for name, sign in (("policy", 1.0), ("behaviour", -1.0)):
        policy = load_policy(inputs[name] / "model").eval()
        for part in micro_batches(pairs.rows, SCORING_TOKENS):
            batch = pack([pairs.rows[index] for index in part])
            logprobs, _, response_mask = response_logprobs(policy, batch)
            result[part] += sign * masked_mean(logprobs, response_mask, dim=1).view(-1, 2)
    return result
