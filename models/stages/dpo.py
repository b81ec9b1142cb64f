"""Stage `dpo`: direct preference optimisation of a policy on relabelled pairs.

The reference says once, before training, how likely every response is; a step passes the policy
alone, over both responses of a pair behind one prompt.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import DPOConfig
from trimtab.models.functional.dpo import dpo_loss
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.trunk import tie_trunk
from trimtab.models.training.data import Pairs
from trimtab.models.training.imitation import train_policy
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.scoring import logprob_rows
from trimtab.models.training.stage import Stage


def run(config: DPOConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `reference`, `preferences`; `pairs` and `trunk`, optional;
    `rehearsal` where it has a coefficient.

    Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    pairs = stage.training_pairs(model, tokenizer)
    if config.label_smoothing > 0 and bool((pairs.label > 1).any()):
        raise ValueError(
            f"label_smoothing must be 0 on labels above 1, found {config.label_smoothing} and "
            f"{float(pairs.label.max()):.2f}: it puts in the noise that they take out"
        )
    depth = num_frozen_layers(model, config.train.trainable_layers)
    ref_logprobs = _reference_logprobs(stage.inputs["reference"], model, pairs, depth)
    data = TrainingRows(
        pairs.rows, pairs.weight, arguments=partial(_pair_arguments, pairs, ref_logprobs)
    )
    summary = train_policy(config, stage, model, tokenizer, data, _pair_loss(model, config))
    stage.write_summary({**summary, "num_trained_pairs": len(pairs.rows)})


def _reference_logprobs(folder: Path, policy: PreTrainedModel, pairs: Pairs, depth: int) -> Tensor:
    """Log-probabilities (N, 2), nats, of all responses under the reference.

    Frozen layers that it has in common with the policy are the policy's, whose output may be
    stored.
    """
    reference = load_policy(folder / "model", is_frozen=True)
    tie_trunk(policy, reference, depth)
    return logprob_rows(reference, pairs.rows)


def _pair_arguments(
    pairs: Pairs, ref_logprobs: Tensor, indices: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's log-probabilities (b, 2), label, margin and weight (b,) of b pairs."""
    return ref_logprobs[indices], pairs.label[indices], pairs.margin[indices], pairs.weight[indices]


def _pair_loss(model: PreTrainedModel, config: DPOConfig) -> LossFunction:
    """DPO's loss for `fit`, of pairs with what `_pair_arguments` says of them."""

    def loss_function(
        batch: PackedBatch, arguments: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Metrics]:
        reference, label, margin, weight = arguments
        logprobs = response_logprobs(model, batch)[0].sum(1).view(-1, 2)
        return dpo_loss(
            logprobs[:, 0],
            logprobs[:, 1],
            reference[:, 0],
            reference[:, 1],
            beta=config.beta,
            label_smoothing=config.label_smoothing,
            label_chosen=label,
            margin=margin,
            weight=weight,
        )

    return loss_function
