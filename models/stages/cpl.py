"""Stage `cpl`: contrastive preference learning of a policy on relabelled pairs, no reference."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import CPLConfig
from trimtab.models.functional.cpl import cpl_loss, segment_scores
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training.imitation import train_policy
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.stage import Stage


def run(config: CPLConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `preferences`; `pairs` and `trunk`, optional.

    `rehearsal` where it has a coefficient. Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    pairs = stage.training_pairs(model, tokenizer)
    data = TrainingRows(
        pairs.rows,
        pairs.weight,
        arguments=lambda at: (pairs.label[at], pairs.margin[at], pairs.weight[at]),
    )
    summary = train_policy(config, stage, model, tokenizer, data, _pair_loss(model, config))
    stage.write_summary({**summary, "num_trained_pairs": len(pairs.rows)})


def _pair_loss(model: PreTrainedModel, config: CPLConfig) -> LossFunction:
    """CPL's loss of pairs for `fit`, with their labels, margins and weights, (b,) each."""

    def loss_function(
        batch: PackedBatch, arguments: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Metrics]:
        label, margin, weight = arguments
        logprobs, _, mask = response_logprobs(model, batch)
        scores = segment_scores(logprobs, mask, config.alpha, config.gamma).view(-1, 2)
        return cpl_loss(
            scores[:, 0],
            scores[:, 1],
            conservative_bias=config.conservative_bias,
            label_chosen=label,
            margin=margin,
            weight=weight,
        )

    return loss_function
