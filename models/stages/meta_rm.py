"""Stage `meta_rm`: keep a scorer able to tell the current policy's answers apart [RM section 3.2].

Each step: theta' = theta + eta * grad J(theta) on responses of the current policy, then the loss's
gradient g at theta' on original pairs, and the optimiser's step with g on theta (first order).
theta' is undone bit for bit: theta is kept where grad J was, so that an ascent takes as much memory
as the parameters twice, and with g three times.

Where the descent has converged, grad L is 0 at theta', so that theta' is the plain optimum, and
theta = theta' - eta grad J tells answers apart less than that. `keep_ascent` saves theta'.

Deviations, both switches:
1. `update=descend` turns the sign of eta: theta = theta' + eta grad J where it has converged.
2. `update=term` has no theta': the optimiser steps with the gradient of L - objective_coef J.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import MetaRMConfig
from trimtab.models.functional.advantage import advantage_loss
from trimtab.models.functional.meta_rm import difference_objective
from trimtab.models.nets import counts
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.nets.packing import Candidates, PackedBatch
from trimtab.models.nets.pretrained import load_config
from trimtab.models.nets.scoring import combined_heads, is_advantage_model, response_scores
from trimtab.models.stages.advantage_model import (
    learned_expected_reward,
    margins_of,
    refit_expected_reward,
)
from trimtab.models.stages.reward_model import score_splits
from trimtab.models.training import distributed
from trimtab.models.training.batching import endless_batches
from trimtab.models.training.category_gate import fit_gate
from trimtab.models.training.data import context_length, read_prompts, with_columns
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    TrainingRows,
    accumulate,
    built_ahead,
)
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.nll_term import DrawnTerm
from trimtab.models.training.optimiser import Ascent, WholeAscent
from trimtab.models.training.pair_batches import ComparedPairs, pair_batches_of, reward_loss
from trimtab.models.training.probes import probe
from trimtab.models.training.sampling import sample_answers
from trimtab.models.training.scoring import score_rows, with_trunk
from trimtab.models.training.stage import Row, Stage

EPSILON = 1e-12  # of a gradient's norm: answers that are all alike have none


def run(config: MetaRMConfig, stage: Stage) -> None:
    """Inputs: `scorer` (start), `policy` (current), `data`, `preferences`; `pairs`, `strength`,
    `trunk`.

    The last three are optional. Output: model/ (same kind as the scorer that came in),
    scores.jsonl, probes.jsonl, spreads.jsonl (of each prompt of the meta set, and of `num_held_out`
    others, the mean difference of its answers' scores before and after).
    """
    scorer = stage.inputs["scorer"] / "model"
    limit = context_length(load_config(scorer))
    prompts, others = _prompts(config, stage.inputs["data"])
    tokenizer = load_tokenizer(scorer)
    # Before the scorer is loaded: the policy goes with its answers.
    sampled = sample_answers(config, stage, [*prompts, *others], config.seed, limit, tokenizer)
    model = load_scorer(scorer)
    pairs = stage.training_pairs(model, tokenizer)
    depth = num_frozen_layers(model, config.train.trainable_layers)
    rows = with_trunk(model, sampled, depth)
    count = len(prompts)
    meta_rows = rows[:count]
    before = score_spreads(model, rows)
    ascent = MetaAscent(config, model, meta_rows)
    extras = StepExtras(around_gradient=ascent)
    if config.update == "term":
        drawn = min(config.meta_batch, count)
        extras = StepExtras(term=ObjectiveTerm(meta_rows, config.objective_coef, drawn))
    summary = fit(
        model,
        TrainingRows(pairs.rows, pairs.weight, arguments=pair_batches_of(pairs).compared),
        _pair_loss(model, config, margins_of(config, stage, pairs)),
        config.train,
        seed=config.seed,
        workdir=stage.workdir,
        extras=extras,
    )
    model.eval()
    if config.keep_ascent:
        ascent.move(WholeAscent(model, ascent.objective), meta_rows)
    fit_gate(model, pairs)
    if learned_expected_reward(model):
        categories = [row.get("category") for row in prompts]
        refit_expected_reward(model, meta_rows, categories)
    after = score_spreads(model, rows)
    scores, accuracy = score_splits(model, tokenizer, stage)
    probes = probe(model, tokenizer, stage)
    distributed.leave()
    stage.write_model(model, tokenizer)
    stage.write_rows("scores.jsonl", scores)
    stage.write_rows("probes.jsonl", probes)
    sets = [{"set": "meta"} for _ in prompts] + [{"set": "held_out"} for _ in others]
    columns = {"before": before, "after": after}
    stage.write_rows("spreads.jsonl", with_columns(sets, columns))
    summary |= {**accuracy, "num_trained_pairs": len(pairs.rows)}
    for name, values in columns.items():
        summary[f"score_spread_{name}"] = float(values[:count].mean())
        if others:
            summary[f"held_out_spread_{name}"] = float(values[count:].mean())
    stage.write_summary(summary)


@dataclass(frozen=True)
class ObjectiveTerm(DrawnTerm):
    """-J of a meta batch, as a term of the loss; the metric is `meta_loss`."""

    name: str = "meta_loss"

    @staticmethod
    def loss(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Metrics]:
        """-J of prompts with equally many answers."""
        objective, metrics = _objective(model, batch)
        return -objective, metrics

    @staticmethod
    def weight(row: Candidates) -> int:
        """1, as J is a mean over prompts."""
        return 1


class MetaAscent:
    """Moves a model's parameters along the gradient of J, on one meta batch a step: up it, or down
    it where `update` is descend."""

    def __init__(
        self,
        config: MetaRMConfig,
        model: PreTrainedModel,
        meta_rows: Sequence[Candidates],
    ) -> None:
        self.model, self.meta_rows = model, meta_rows
        self.config, self.max_tokens = config, config.train.micro_batch_tokens
        self._batches = endless_batches(len(meta_rows), config.meta_batch, config.seed)
        self._drawn: list[list[int]] = []

    @contextmanager
    def __call__(self, step: int, learner: Learner[Any]) -> Iterator[Metrics]:
        """A context with parameters theta +- eta grad J(theta); `step` alone decides the batch."""
        while len(self._drawn) <= step:  # a resumed run does not begin at step 0
            self._drawn.append(next(self._batches))
        ascent = learner.ascent(self.objective)
        yield self.move(ascent, [self.meta_rows[index] for index in self._drawn[step]])
        ascent.undo()

    def move(self, ascent: Ascent, drawn: Sequence[Candidates]) -> Metrics:
        """Move the parameters along the gradient of J over the rows.

        The metric `ascent_length` is in the unit of the configuration's, negative down it.
        """
        rows = TrainingRows(drawn, torch.ones(len(drawn)), arguments=lambda _: None)
        micro = built_ahead(ascent, rows, range(len(drawn)), self.max_tokens)
        metrics = accumulate(ascent, micro)
        del metrics["loss"]  # the objective
        distributed.all_reduce_sum(list(metrics.values()))
        norm, count = ascent.direction()
        step_length = self.config.train.learning_rate * count**0.5
        rate = self.config.meta_learning_rate
        if self.config.ascent_length is not None:
            rate = self.config.ascent_length * step_length / max(float(norm), EPSILON)
        if self.config.update == "descend":
            rate = -rate
        ascent.move(rate)
        return {**metrics, "ascent_length": rate * norm / step_length}

    def objective(self, batch: PackedBatch, _: None) -> tuple[Tensor, Metrics]:
        """J of a packed batch, whose prompts have equally many answers."""
        return _objective(self.model, batch)


def _objective(model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, Metrics]:
    return difference_objective(response_scores(model, batch).view(len(batch.lengths), -1))


def _pair_loss(
    model: PreTrainedModel, config: MetaRMConfig, margins: Tensor | None
) -> LossFunction:
    """Ranking loss, for an Advantage Model with bounds, m(x) (P,) of all pairs where they have
    one; importance ratios are all 1."""
    if not is_advantage_model(model):
        return reward_loss(model)

    def compare(
        rewards: Tensor, expected: Tensor | None, compared: ComparedPairs
    ) -> tuple[Tensor, Metrics]:
        scores = combined_heads(model, rewards, expected)
        return advantage_loss(
            scores.index_select(0, compared.better),
            scores.index_select(0, compared.worse),
            margin=config.margin if margins is None else margins[compared.number],
            label_chosen=compared.label,
            ranking_margin=compared.margin,
            weight=compared.weight,
        )

    return reward_loss(model, compare=compare)


def _prompts(config: MetaRMConfig, folder: Path) -> tuple[list[Row], list[Row]]:
    """Rows of the meta set, and held-out rows: the first prompts, or prompts drawn by the seed,
    which differs from round to round."""
    prompts = read_prompts(folder, config.prompts)
    if config.redraw_prompts:
        random.Random(f"meta prompts/{config.seed}").shuffle(prompts)
    count = counts.num_taken(len(prompts), config.num_prompts)
    return prompts[:count], prompts[count:][: config.num_held_out]


def score_spreads(model: PreTrainedModel, rows: Sequence[Candidates]) -> Tensor:
    """Mean absolute score difference (N,) of the responses to each prompt, which J widens."""
    scores = score_rows(model, rows)
    differences = (scores[:, :, None] - scores[:, None, :]).abs()
    count = scores.shape[1]
    return differences.sum((1, 2)) / (count * (count - 1))
