"""Stage `dpo`: preference optimisation of a policy on relabelled pairs, by DPO or a relative of it.

The reference says before training how likely every response is, and is not needed after that; a
step passes the policy alone, over both responses of a pair behind one prompt. Losses without a
reference load none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import DPOConfig
from trimtab.models.functional.dpo import dpo_loss, implicit_rewards, kto_loss, mismatched_kl
from trimtab.models.functional.label_noise import label_at_rate
from trimtab.models.functional.reference_free import orpo_loss, simpo_loss
from trimtab.models.functional.reward import pair_metrics
from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.packing import Candidates, PackedBatch, mismatched_candidates
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.nets.trunk import tie_trunk
from trimtab.models.training.data import Pairs, context_length
from trimtab.models.training.imitation import train_policy
from trimtab.models.training.learner import Learner, LossFunction, Metrics, TrainingRows
from trimtab.models.training.loop import step_batches
from trimtab.models.training.scoring import logprob_rows
from trimtab.models.training.stage import Stage


def run(config: DPOConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `preferences`; `reference`, where the loss needs one; `pairs` and
    `trunk`, optional; `rehearsal` where it has a coefficient.

    Output: model/.
    """
    if config.needs_reference and "reference" not in stage.inputs:
        raise ValueError(f"reference: an input that the loss {config.loss} needs, found none")
    model, tokenizer = stage.policy("policy")
    pairs = stage.training_pairs(model, tokenizer)
    _require_readable(config, pairs)
    reference = _reference(config, stage, model) if config.needs_reference else None
    ref_logprobs = torch.zeros(len(pairs.rows), 2)
    if reference is not None:
        ref_logprobs = logprob_rows(reference, pairs.rows)
    data = TrainingRows(
        pairs.rows, pairs.weight, arguments=partial(_pair_arguments, pairs, ref_logprobs)
    )
    baseline = None
    if config.loss == "kto":
        assert reference is not None
        batches = step_batches(data, config.train, config.seed)
        baseline = BaselineKL(reference, pairs.rows, batches, context_length(model.config))
    del reference  # training has its memory
    loss_function = _pair_loss(model, config, baseline)
    summary = train_policy(
        config, stage, model, tokenizer, data, loss_function, around_gradient=baseline
    )
    stage.write_summary({**summary, "num_trained_pairs": len(pairs.rows)})


def _require_readable(config: DPOConfig, pairs: Pairs) -> None:
    """ValueError for what relabelling has made of pairs and the loss cannot read."""
    largest = float(pairs.label.max())
    if config.label_smoothing > 0 and largest > 1:
        both = f"found {config.label_smoothing} and {largest:.2f}"
        if config.loss == "robust":
            raise ValueError(
                f"loss must not be robust on labels above 1, {both}: both take out the noise; "
                "allowed: sigmoid, with label_smoothing 0"
            )
        raise ValueError(
            f"label_smoothing must be 0 on labels above 1, {both}: it puts in the noise that they "
            "take out"
        )
    if config.loss == "kto" and bool((pairs.margin != 0).any()):
        raise ValueError(
            f"margins must be 0 where loss is kto, found up to {float(pairs.margin.abs().max()):g}:"
            " it compares no two answers; relabel with margin_scale=0"
        )


def _reference(config: DPOConfig, stage: Stage, policy: PreTrainedModel) -> PreTrainedModel:
    """Frozen layers that it has in common with the policy are the policy's, whose output may be
    stored."""
    reference = load_policy(stage.inputs["reference"] / "model", is_frozen=True)
    tie_trunk(policy, reference, num_frozen_layers(policy, config.train.trainable_layers))
    return reference


def _pair_arguments(
    pairs: Pairs, ref_logprobs: Tensor, indices: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's log-probabilities (b, 2), label, margin and weight (b,) of b pairs."""
    return ref_logprobs[indices], pairs.label[indices], pairs.margin[indices], pairs.weight[indices]


class BaselineKL:
    """KTO's baseline z0, measured before each step on the answers of its whole batch.

    Each prompt with the answers to the prompt before it in the batch; the reference passes those of
    all steps beforehand. value: z0 of the step under way, a scalar on the device, nats; 0 where a
    batch is of one prompt.
    """

    def __init__(
        self,
        reference: PreTrainedModel,
        rows: Sequence[Candidates],
        batches: Sequence[Sequence[int]],
        max_length: int,
    ) -> None:
        self.rows = [
            mismatched_candidates([rows[index] for index in batch], max_length) for batch in batches
        ]
        passed = [row for of_step in self.rows for row in of_step]
        logprobs = logprob_rows(reference, passed) if passed else torch.zeros(0, 2)
        self.ref_logprobs = logprobs.split([len(of_step) for of_step in self.rows])
        self.value = torch.zeros(())

    @contextmanager
    def __call__(self, step: int, learner: Learner[Any]) -> Iterator[Metrics]:
        """A context in which `value` is the step's, which is the metric `kl`."""
        value = torch.zeros(())
        if rows := self.rows[step]:
            with learner.gathered() as model:
                logprobs = logprob_rows(model, rows)
            value = mismatched_kl(logprobs.flatten(), self.ref_logprobs[step].flatten())
        self.value = move_to_device(value)
        yield {"kl": self.value}


def _pair_loss(
    model: PreTrainedModel, config: DPOConfig, baseline: BaselineKL | None = None
) -> LossFunction:
    """The configuration's loss for `fit`, of pairs with what `_pair_arguments` says of them.

    baseline: of kto.
    """

    def loss_function(
        batch: PackedBatch, arguments: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Metrics]:
        reference, label, margin, weight = arguments
        token_logprobs, _, mask = response_logprobs(model, batch)
        logprobs = token_logprobs.sum(1).view(-1, 2)
        if config.loss in ("ipo", "simpo", "orpo"):
            num_tokens = mask.sum(1).view(-1, 2)
            logprobs, reference = logprobs / num_tokens, reference / num_tokens
        if config.label_smoothing > 0:
            is_unbiased = config.loss == "robust"
            label = label_at_rate(label, config.label_smoothing, is_unbiased=is_unbiased)
        if config.loss == "kto":
            assert baseline is not None
            return _kto(config, logprobs, reference, label, weight, baseline.value)
        values = logprobs.unbind(1)
        treatment: dict[str, Any] = {"label_chosen": label, "margin": margin, "weight": weight}
        if config.loss == "simpo":
            return simpo_loss(*values, beta=config.beta, gamma=config.simpo_gamma, **treatment)
        if config.loss == "orpo":
            return orpo_loss(*values, beta=config.beta, **treatment)
        references = reference.unbind(1)
        return dpo_loss(*values, *references, beta=config.beta, loss=config.loss, **treatment)

    return loss_function


def _kto(
    config: DPOConfig,
    logprobs: Tensor,
    reference: Tensor,
    label: Tensor,
    weight: Tensor,
    baseline_kl: Tensor,
) -> tuple[Tensor, Metrics]:
    """KTO's loss of the answers of b pairs: logprobs, reference (b, 2), label, weight (b,)."""
    ours, theirs = logprobs.flatten(), reference.flatten()
    loss = kto_loss(
        ours,
        theirs,
        torch.stack([label, 1 - label], dim=1).flatten(),
        baseline_kl,
        beta=config.beta,
        desirable_weight=config.desirable_weight,
        undesirable_weight=config.undesirable_weight,
        weight=weight.repeat_interleave(2),
    )
    rewards = implicit_rewards(ours, theirs, config.beta).detach().view(-1, 2)
    return loss, pair_metrics(*rewards.unbind(1))
