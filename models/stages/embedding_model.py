"""Stage `embedding_model`: a preference model on sentence embeddings, for which none is trained.

A reward model has to be better than this to be worth its time. `linear` is Bradley-Terry: the score
of an answer is linear in its embedding and in the logarithm of its length, in each category more or
less. The penalty on the weights is the one under which held-out labels are likeliest. `nearest`
scores an answer by how often the most similar answers to other prompts were the better ones.

Turns of one dialogue are one prompt, as where preferences are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from scipy.special import log_expit, logit
from sklearn.linear_model import LogisticRegression

from trimtab.models.config.reward import EmbeddingModelConfig
from trimtab.models.data.prompts import first_turn
from trimtab.models.stages.reward_model import prompt_folds
from trimtab.models.training.data import SPLITS, read_rows, write_rows
from trimtab.models.training.progress import write_json

Array = np.ndarray[Any, np.dtype[Any]]
Row = dict[str, Any]
# Inverse weights of half the squared norm, from which the likeliest is taken.
INVERSE_PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Training answers that neighbours are sought among, and rows of similarities held at once.
MOST_REFERENCES, ROWS_AT_ONCE = 20_000, 1024


@dataclass(frozen=True)
class Answers:
    """Both answers of N pairs.

    rows: the pairs. embedding: (N, 2, D), unit length. prompt: (N,), a number for each prompt.
    label: (N,), the probability that the chosen answer is better.
    """

    rows: Sequence[Row]
    embedding: Array
    prompt: Array
    label: Array

    def __getitem__(self, index: Array) -> Answers:
        rows = [self.rows[place] for place in index]
        return Answers(rows, self.embedding[index], self.prompt[index], self.label[index])


def run(config: EmbeddingModelConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, `embeddings`. Output: scores.jsonl, as a reward model's.

    A training pair is scored by a model of other prompts, so that no row `was_trained_on`.
    Raises ValueError for embeddings of other pairs, or fewer prompts than folds.
    """
    answers = read_answers(inputs["preferences"], inputs["embeddings"])
    train = answers["train"]
    num_trained = len(train.rows)
    if config.kind == "linear":
        scores, summary = linear_scores(answers, config)
    else:
        scores, summary = nearest_scores(answers, config), {}
        num_trained = min(num_trained, MOST_REFERENCES // 2)
    write_rows(
        workdir / "output" / "scores.jsonl",
        (
            {
                "id": row["id"],
                "split": split,
                "chosen_score": chosen,
                "rejected_score": rejected,
                "was_trained_on": False,
            }
            for split in SPLITS
            for row, (chosen, rejected) in zip(
                answers[split].rows, scores[split].tolist(), strict=True
            )
        ),
    )
    accuracy = {
        f"{split}_accuracy": float((own[:, 0] > own[:, 1]).mean())
        for split, own in scores.items()
        if len(own)
    }
    write_json(
        workdir / "output" / "summary.json",
        {"num_trained_pairs": num_trained, **accuracy, **summary},
    )


def read_answers(preferences: Path, embeddings: Path) -> dict[str, Answers]:
    """The pairs of each split with their embeddings, float32."""
    tensors = load_file(embeddings / "embeddings.safetensors")
    numbers: dict[str, int] = {}
    found = {}
    for split in SPLITS:
        rows = read_rows(preferences / f"{split}.jsonl")
        if tensors[split].shape[0] != len(rows):
            raise ValueError(
                f"{split}: {tensors[split].shape[0]} embedded pairs, but {len(rows)} pairs; "
                "embed these preferences"
            )
        prompt = [numbers.setdefault(first_turn(row["prompt"]), len(numbers)) for row in rows]
        label = [row.get("label", 1.0) for row in rows]
        embedding = tensors[split].astype(np.float32)
        found[split] = Answers(rows, embedding, np.array(prompt, int), np.array(label, float))
    return found


def linear_scores(
    answers: dict[str, Answers], config: EmbeddingModelConfig
) -> tuple[dict[str, Array], dict[str, float]]:
    """Scores (N, 2) of each split, logits, and what was chosen."""
    train = answers["train"]
    categories = sorted({str(row.get("category")) for row in train.rows})
    features = {split: features_of(own, categories) for split, own in answers.items()}
    mine = features["train"]
    fold = prompt_folds([row["prompt"] for row in train.rows], config.num_folds).numpy()
    best: tuple[float, float, Array] | None = None
    for inverse_penalty in INVERSE_PENALTIES:
        scores = np.zeros(mine.shape[:2])
        for part in range(config.num_folds):
            rest = fold != part
            weights = bradley_terry(mine[rest], train.label[rest], inverse_penalty)
            scores[~rest] = mine[~rest] @ weights
        gap = scores[:, 0] - scores[:, 1]
        loss = -(train.label * log_expit(gap) + (1 - train.label) * log_expit(-gap)).mean()
        if best is None or loss < best[0]:
            best = (float(loss), inverse_penalty, scores)
    assert best is not None
    loss, inverse_penalty, scores = best
    weights = bradley_terry(mine, train.label, inverse_penalty)
    found = {split: own @ weights for split, own in features.items()} | {"train": scores}
    return found, {"inverse_penalty": inverse_penalty, "cross_fitted_loss": loss}


def features_of(answers: Answers, categories: Sequence[str]) -> Array:
    """Features (N, 2, D + 1 + C) of both answers: its embedding; the logarithm of its length; the
    same in the place of its category, so that a category may prefer other lengths than all do."""
    words = [
        [len(row[answer].split()) for answer in ("chosen", "rejected")] for row in answers.rows
    ]
    length = np.log1p(np.array(words, np.float32).reshape(-1, 2, 1))
    own = [[str(row.get("category")) == name for name in categories] for row in answers.rows]
    place = np.array(own, np.float32).reshape(-1, 1, len(categories))
    return np.concatenate([answers.embedding, length, length * place], -1)


def bradley_terry(features: Array, label: Array, inverse_penalty: float) -> Array:
    """Weights w (D,) of the largest log-likelihood of labels (N,) of pairs (N, 2, D), less
    |w|^2 / (2 inverse_penalty)."""
    difference = features[:, 0] - features[:, 1]
    # A soft label is both outcomes, each by its share. Without an intercept a pair the other way
    # round is the same pair: half of each, so that there are two classes.
    rows = np.concatenate([difference, -difference])
    shares = np.concatenate([label, 1 - label])
    rows, shares = rows[shares > 0], shares[shares > 0]
    model = LogisticRegression(C=inverse_penalty, fit_intercept=False, tol=1e-6, max_iter=1000)
    model.fit(
        np.concatenate([rows, -rows]),
        np.arange(2 * len(rows)) < len(rows),
        sample_weight=np.concatenate([shares, shares]) / 2,
    )
    return np.asarray(model.coef_[0])


def nearest_scores(answers: dict[str, Answers], config: EmbeddingModelConfig) -> dict[str, Array]:
    """Scores (N, 2) of each split: the log-odds that an answer's neighbours were chosen, each
    weighed by its cosine."""
    train = answers["train"]
    count = len(train.rows)
    most = MOST_REFERENCES // 2
    if count > most:
        drawn = np.random.default_rng(config.seed).choice(count, most, replace=False)
        train = train[np.sort(drawn)]
    known = train.embedding.reshape(-1, train.embedding.shape[-1])
    outcome = np.stack([train.label, 1 - train.label], 1).reshape(-1)
    prompt = np.repeat(train.prompt, 2)
    k = min(config.num_neighbours, len(known) // 2)
    found = {}
    for split, own in answers.items():
        asked, whose = own.embedding.reshape(-1, known.shape[1]), np.repeat(own.prompt, 2)
        shares = np.zeros(len(asked))
        for start in range(0, len(asked), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            likeness = asked[part] @ known.T
            likeness[whose[part, None] == prompt[None]] = -np.inf
            nearest = np.argpartition(-likeness, k - 1, axis=1)[:, :k]
            weight = np.take_along_axis(likeness, nearest, 1).clip(min=0)
            # One chosen and one rejected neighbour more, so that no share is 0 or 1.
            shares[part] = ((outcome[nearest] * weight).sum(1) + 1) / (weight.sum(1) + 2)
        found[split] = logit(shares).reshape(-1, 2)
    return found
