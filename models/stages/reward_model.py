"""Stage `reward_model`: one Bradley-Terry reward model, ensemble member or final.

Trains on `pairs` (raw or relabelled) and scores every split of `preferences`, so that the vote,
the audit and the evaluation need no further pass. With `score_every` it scores the validation pairs
during training as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.reward import PairLossConfig, RewardModelConfig
from trimtab.models.data.prompts import cluster_ids
from trimtab.models.data.self_test import answer_pairs_of, planted_flips
from trimtab.models.functional.strength import fold_of
from trimtab.models.nets.loading import (
    add_category_heads,
    auxiliary_heads,
    load_tokenizer,
    new_scorer,
)
from trimtab.models.nets.scoring import category_heads
from trimtab.models.training import distributed
from trimtab.models.training.category_gate import categories_of, fit_gate, gate_accuracy
from trimtab.models.training.data import (
    HELD_OUT,
    SPLITS,
    Pairs,
    score_row,
    splits_of,
)
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss
from trimtab.models.training.probes import probe
from trimtab.models.training.progress import Progress, append_rows
from trimtab.models.training.scoring import score_rows
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.trunk_cache import cached_trunk

# The folds are one partition of the prompts shared by all members, so their seed is a constant.
FOLD_SEED = 0


def run(config: RewardModelConfig, stage: Stage) -> None:
    """Inputs: `policy` (trunk), `preferences`, optionally `pairs` and `trunk`.

    Output: scores.jsonl, of a fold's member null for the pairs that it was trained on; unless told
    otherwise model/ and probes.jsonl; with `score_every`, validation.jsonl. With `planted_share`,
    rows say `is_planted`, and chosen_score is of the answer that stands as the better one in the
    copy, as of `embedding_model`.
    """
    policy = stage.inputs["policy"] / "model"
    tokenizer, model = load_tokenizer(policy), new_scorer(policy, config.seed)
    pairs = stage.training_pairs(model, tokenizer)
    unseen = _other_categories(config, pairs)
    is_flipped = planted_flips(pairs.records, config.planted_share).tolist()
    pairs = pairs.swapped(is_flipped)
    if config.fold is not None:
        folds = folds_of(pairs.records, config.num_folds, config.fold_by).tolist()
        unseen |= {index for index, fold in enumerate(folds) if fold == config.fold}
    seen = pairs.subset([index for index in range(len(pairs.rows)) if index not in unseen])
    if config.category_heads:
        add_category_heads(model, categories_of(seen), config.seed)
    fit_gate(model, seen)
    rankings = pair_batches_of(seen, config.ranking, imitates=config.imitation_coef > 0)
    curve = None
    if config.score_every is not None:
        curve = ValidationCurve(model, tokenizer, stage, config.score_every)
    with heads_of_terms(model, config, policy):
        summary = fit(
            model,
            rankings.examples,
            reward_loss(model, config.imitation_coef, config.contrastive),
            config.train,
            seed=config.seed,
            workdir=stage.workdir,
            extras=StepExtras(after_step=curve),
        )
    fit_gate(model, seen)
    # Training pairs need the score of a member only: it votes on their labels.
    splits = HELD_OUT if "pairs" in stage.inputs else SPLITS
    copy = is_flipped if config.planted_share else None
    scores, accuracy = score_splits(
        model, tokenizer, stage, splits, unseen, copy, is_fold=config.fold is not None
    )
    if config.saves_model:
        probes = probe(model, tokenizer, stage)
    distributed.leave()
    if config.saves_model:
        stage.write_model(model, tokenizer)
        stage.write_rows("probes.jsonl", probes)
    stage.write_rows("scores.jsonl", scores)
    if curve is not None and curve.path.exists():  # not in fewer steps than between scorings
        shutil.copyfile(curve.path, stage.output / curve.path.name)
    num_heads = len(category_heads(model))
    numbers = {"num_trained_pairs": len(seen.rows), "num_category_heads": num_heads}
    stage.write_summary({**summary, **accuracy, **numbers})


def _other_categories(config: RewardModelConfig, pairs: Pairs) -> set[int]:
    """Indices of the pairs that are left out by category; ValueError where none would be left."""
    left_out = {i for i, category in enumerate(pairs.categories) if not config.takes(category)}
    if len(left_out) == len(pairs.rows):
        raise ValueError(
            f"no training pair is left by categories = {config.categories} and without_categories "
            f"= {config.without_categories}; found {sorted(set(map(str, pairs.categories)))}"
        )
    return left_out


def heads_of_terms(
    model: PreTrainedModel, config: PairLossConfig, policy: Path
) -> AbstractContextManager[None]:
    """The heads that the loss's further terms train beside the model."""
    term = config.contrastive
    return auxiliary_heads(
        model,
        policy if config.imitation_coef > 0 else None,
        term.num_prototypes if term is not None and term.kind == "swav" else None,
        config.seed,
    )


def folds_of(rows: Sequence[Row], num_folds: int, fold_by: Literal["prompt", "pair"]) -> Tensor:
    """The fold (N,) of each of N pairs, from 0. Raises ValueError for fewer groups than folds.

    By prompt, pairs with the same first turn share a fold, as in splits: rankings, repeated prompts
    and dialogues cut at several turns give several pairs, and a member trained on one of them would
    not judge the others unseen. By pair, those of the same two answers share one, under whatever
    prompt: a copy would give the label away.
    """
    if fold_by == "prompt":
        groups = torch.tensor(cluster_ids(row["prompt"] for row in rows), device="cpu")
    else:
        groups = torch.from_numpy(answer_pairs_of(rows))
    return fold_of(len(groups.unique()), num_folds, FOLD_SEED)[groups]


def score_splits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stage: Stage,
    splits: Sequence[str] = HELD_OUT,
    unseen: set[int] | None = None,
    is_planted: Sequence[bool] | None = None,
    *,
    is_fold: bool = False,
) -> tuple[list[Row], dict[str, float]]:
    """Score the raw pairs of splits: rows of scores.jsonl, and each split's accuracy.

    With category heads also how often the gate finds a prompt's category. Splits without pairs are
    left out. Ranks share the work.
    Inputs: `preferences`, optionally `trunk`. unseen: indices of training pairs that the model was
    not trained on. is_planted: (N,) whether each training pair is a planted flip. is_fold: the
    model does not vote on the pairs that it was trained on, which have no scores then.
    """
    rows: list[Row] = []
    accuracy = {}
    states = cached_trunk(stage.inputs, model)
    for split in splits_of(stage.inputs["preferences"]):
        if split not in splits:
            continue
        pairs = stage.pairs(split, model, tokenizer, states)
        flips = is_planted if split == "train" else None
        is_flipped = flips or [False] * len(pairs.rows)
        pairs = pairs.swapped(is_flipped)
        is_part = is_fold and split == "train"
        voted_on = sorted(unseen or ()) if is_part else list(range(len(pairs.rows)))
        progress = Progress(stage.workdir, part=f"scoring {split} pairs")
        scores = score_rows(model, [pairs.rows[index] for index in voted_on], progress)
        accuracy[f"{split}_accuracy"] = float((scores[:, 0] > scores[:, 1]).float().mean())
        by_index = dict(zip(voted_on, map(tuple, scores.tolist()), strict=True))
        if (share := gate_accuracy(model, pairs)) is not None:
            accuracy[f"{split}_gate_accuracy"] = share
        rows += [
            score_row(
                identifier,
                split,
                by_index.get(index, (None, None)),
                was_trained_on=split == "train" and index not in (unseen or set()),
                is_planted=None if is_planted is None else is_flipped[index],
            )
            for index, identifier in enumerate(pairs.identifiers)
        ]
    return rows, accuracy


class ValidationCurve:
    """Writes validation.jsonl: the score gap of every validation pair, every few steps.

    A row has `step`, the pair's `id` and `gap`, chosen minus rejected.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stage: Stage, every: int
    ) -> None:
        self.model, self.every, self.path = model, every, stage.workdir / "validation.jsonl"
        states = cached_trunk(stage.inputs, model)
        self.pairs = stage.pairs("validation", model, tokenizer, states)

    def __call__(self, step: int) -> None:
        """Score if the step is due; all ranks call it after every step."""
        if step % self.every != 0:
            return
        scores = score_rows(self.model, self.pairs.rows)
        gaps = zip(self.pairs.identifiers, (scores[:, 0] - scores[:, 1]).tolist(), strict=True)
        rows = ({"step": step, "id": identifier, "gap": gap} for identifier, gap in gaps)
        append_rows(self.path, rows)
