"""Stage `reward_model`: one Bradley-Terry reward model, ensemble member or final.

Trains on `pairs` (raw or relabelled) and scores every split of `preferences`, so that the vote,
the audit and the evaluation need no further pass.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.config import RewardModelConfig
from models.engine.data import SPLITS, Pairs, context_length, read_pairs, write_rows
from models.engine.loop import Metrics, fit
from models.engine.progress import write_json
from models.engine.scoring import score_rows
from models.functional.reward import ranking_loss
from models.functional.strength import fold_of
from models.nets.loading import load_tokenizer, new_scorer, save_model
from models.nets.packing import PackedBatch
from models.nets.scoring import response_scores

CONFIG = RewardModelConfig
# The folds are one partition of the data shared by all members, so their seed is a constant.
FOLD_SEED = 0


def run(config: RewardModelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `policy` (trunk), `preferences`, optionally `pairs`. Output: model/, scores.jsonl."""
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    model = new_scorer(inputs["policy"] / "model", 1, config.seed)
    source = inputs.get("pairs", inputs["preferences"])
    pairs = read_pairs(source / "train.jsonl", tokenizer, context_length(model.config))
    kept = torch.arange(len(pairs.rows))
    if config.fold is not None:
        kept = kept[fold_of(len(kept), config.num_folds, FOLD_SEED) != config.fold]

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics, float]:
        scores = response_scores(model, batch).view(-1, 2)
        index = kept[indices]
        loss, metrics = ranking_loss(
            scores[:, 0],
            scores[:, 1],
            label_chosen=pairs.label[index],
            margin=pairs.margin[index],
            weight=pairs.weight[index],
        )
        return loss, metrics, float(pairs.weight[index].sum())

    summary = fit(
        model,
        [pairs.rows[index] for index in kept.tolist()],
        loss_function,
        config.train,
        seed=config.seed,
        pad_id=tokenizer.pad_token_id,
        workdir=workdir,
    )
    save_model(model, tokenizer, workdir / "output" / "model")
    unseen = set(range(len(pairs.rows))) - set(kept.tolist())
    summary |= score_splits(model, tokenizer, inputs["preferences"], workdir / "output", unseen)
    write_json(workdir / "output" / "summary.json", summary)


def score_splits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    preferences: Path,
    output: Path,
    unseen: set[int] | None = None,
) -> dict[str, float]:
    """Score all raw pairs into scores.jsonl; returns the accuracy on each split's labels.

    `unseen` holds the training pairs that the model was not trained on.
    """
    rows: list[dict[str, object]] = []
    accuracy = {}
    for split in SPLITS:
        pairs: Pairs = read_pairs(
            preferences / f"{split}.jsonl", tokenizer, context_length(model.config)
        )
        scores = score_rows(model, pairs.rows, tokenizer.pad_token_id)
        accuracy[f"{split}_accuracy"] = float((scores[:, 0] > scores[:, 1]).float().mean())
        rows += [
            {
                "id": identifier,
                "split": split,
                "chosen_score": float(chosen),
                "rejected_score": float(rejected),
                "was_trained_on": split == "train" and index not in (unseen or set()),
            }
            for index, (identifier, (chosen, rejected)) in enumerate(
                zip(pairs.identifiers, scores.tolist(), strict=True)
            )
        ]
    write_rows(output / "scores.jsonl", rows)
    return accuracy
