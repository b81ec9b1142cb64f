"""Stage `cpl`: contrastive preference learning of a policy on relabelled pairs, no reference."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import CPLConfig
from trimtab.models.functional.cpl import cpl_loss, segment_scores
from trimtab.models.nets.loading import load_policy, load_tokenizer, save_model
from trimtab.models.nets.packing import PackedBatch
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import distributed
from trimtab.models.training.data import context_length, read_pairs
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.nll_term import rehearsal_of
from trimtab.models.training.progress import write_json
from trimtab.models.training.trunk_cache import cached_trunk


def run(config: CPLConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `policy` (start), `preferences`; `pairs` and `trunk`, optional.

    `rehearsal` where it has a coefficient. Output: model/.
    """
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    model = load_policy(inputs["policy"] / "model")
    source = inputs.get("pairs", inputs["preferences"])
    limit, states = context_length(model.config), cached_trunk(inputs, model)
    pairs = read_pairs(source / "train.jsonl", tokenizer, limit, states)
    summary = fit(
        model,
        TrainingRows(
            pairs.rows,
            pairs.weight,
            arguments=lambda at: (pairs.label[at], pairs.margin[at], pairs.weight[at]),
        ),
        _pair_loss(model, config),
        config.train,
        seed=config.seed,
        workdir=workdir,
        extras=StepExtras(term=rehearsal_of(config, inputs, model, tokenizer)),
    )
    distributed.leave()
    save_model(model, tokenizer, workdir / "output" / "model")
    summary["num_trained_pairs"] = len(pairs.rows)
    write_json(workdir / "output" / "summary.json", summary)


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
