"""Stage `embedding_model`: a preference model on vectors of the answers; no network is trained.

A reward model has to be better than this to be worth its time. `linear` is Bradley-Terry: the score
of an answer is linear in its vector and in the logarithm of its length. Each category has weights
of its own beside those for all, as what is better in one may be worse in another. The penalty on
the weights is the one under which held-out labels are likeliest. With `second_fit` a model that has
left out what the first one contradicts is added, as far as it makes held-out labels likelier.
`style` is the same without the vector: a label that it alone contradicts may be right. `nearest`
scores an answer by how often the most similar answers to other prompts were the better ones.
`ratings` scores an answer that stands in several pairs by its others, and any other answer by 0.

Turns of one dialogue are one prompt, as where preferences are split.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, logit
from threadpoolctl import threadpool_limits

from trimtab.models.config.reward import EmbeddingModelConfig
from trimtab.models.data.prompts import first_turn
from trimtab.models.data.self_test import answer_pairs_of, planted_flips
from trimtab.models.data.words import (
    OTHER_STOPS,
    UNKNOWN_TOKENS,
    num_sentences,
    words_of,
)
from trimtab.models.functional.strength import calibrated_strength
from trimtab.models.nets import counts
from trimtab.models.stages.reward_model import folds_of
from trimtab.models.training.data import SPLITS, score_row
from trimtab.models.training.stage import Row, Stage

Array = np.ndarray[Any, np.dtype[Any]]
# Inverse weights of half the squared norm, weights being of features of unit spread, from which the
# likeliest is taken.
INVERSE_PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 1.0)
# Rows of similarities held at once.
ROWS_AT_ONCE = 1024
# Far more than it takes under the penalties above.
MAX_STEPS = 2000
# Below it two fits together tell nothing of the labels.
NO_WEIGHT = 1e-6
LINE_MARK = re.compile(r"^\s*([-*\u2022#>]|\d+[.)])\s", re.MULTILINE)
LONG_WORD = 8
SENTENCE_CLOSING = frozenset('.!?")\u300d\u300f\uff09' + OTHER_STOPS)


@dataclass(frozen=True)
class Answers:
    """Both answers of N pairs.

    rows: the pairs. embedding: (N, 2, D). prompt: (N,), a number for each prompt.
    label: (N,), the probability that the chosen answer is better.
    """

    rows: Sequence[Row]
    embedding: Array
    prompt: Array
    label: Array

    def __getitem__(self, index: Array) -> Answers:
        rows = [self.rows[place] for place in index]
        return Answers(rows, self.embedding[index], self.prompt[index], self.label[index])


def run(config: EmbeddingModelConfig, stage: Stage) -> None:
    """Inputs: `preferences`, `embeddings`. Output: scores.jsonl, as a reward model's.

    A training pair is scored by a model of other pairs, so that no row `was_trained_on`. With
    `planted_share`, `is_planted` says whose label is a planted flip: there chosen_score is of the
    answer that stands as the better one in this copy. Raises ValueError for embeddings of other
    pairs, or fewer prompts than folds.
    """
    answers = read_answers(stage)
    is_flipped = planted_flips(answers["train"].rows, config.planted_share)
    answers["train"] = with_flips(answers["train"], is_flipped)
    num_trained = min(len(is_flipped), counts.EMBEDDING_MODEL_PAIRS)
    # NumPy's own threads, as many as the machine has cores, would wait for each other.
    with threadpool_limits(torch.get_num_threads()):
        scores, summary = preference_scores(answers, config)
    planted_ids = {answers["train"].rows[i]["id"] for i in np.flatnonzero(is_flipped).tolist()}
    stage.write_rows(
        "scores.jsonl",
        (
            score_row(
                row["id"],
                split,
                tuple(pair_scores),
                is_planted=row["id"] in planted_ids if config.planted_share else None,
            )
            for split in SPLITS
            for row, pair_scores in zip(answers[split].rows, scores[split].tolist(), strict=True)
        ),
    )
    accuracy = {
        f"{split}_accuracy": float((values[:, 0] > values[:, 1]).mean())
        for split, values in scores.items()
        if len(values)
    }
    unknown = _unknown_tokens(config, stage.inputs["embeddings"] / "summary.json")
    stage.write_summary({"num_trained_pairs": num_trained, **accuracy, **summary, **unknown})


def _unknown_tokens(config: EmbeddingModelConfig, path: Path) -> dict[str, float]:
    """How much of the answers the encoder did not know, where a model reads its vectors."""
    if config.kind not in ("linear", "nearest") or not path.is_file():
        return {}
    summary = json.loads(path.read_text("utf-8"))
    return {UNKNOWN_TOKENS: summary[UNKNOWN_TOKENS]} if UNKNOWN_TOKENS in summary else {}


def preference_scores(
    answers: dict[str, Answers], config: EmbeddingModelConfig
) -> tuple[dict[str, Array], dict[str, float]]:
    """Scores (N, 2) of each split by a model of this kind, and what was chosen."""
    if config.kind == "nearest":
        return nearest_scores(answers, config), {}
    by_kind = rating_scores if config.kind == "ratings" else linear_scores
    return by_kind(answers, config)


def read_answers(stage: Stage) -> dict[str, Answers]:
    """The pairs of each split with their embeddings, float32."""
    tensors = load_file(stage.inputs["embeddings"] / "embeddings.safetensors")
    numbers: dict[str, int] = {}
    answers = {}
    for split in SPLITS:
        rows = stage.rows("preferences", f"{split}.jsonl")
        if tensors[split].shape[0] != len(rows):
            raise ValueError(
                f"{split}: {tensors[split].shape[0]} embedded pairs, but {len(rows)} pairs; "
                "embed these preferences"
            )
        prompt = [numbers.setdefault(first_turn(row["prompt"]), len(numbers)) for row in rows]
        label = [row.get("label", 1.0) for row in rows]
        embedding = tensors[split].astype(np.float32)
        answers[split] = Answers(rows, embedding, np.array(prompt, int), np.array(label, float))
    return answers


def with_flips(answers: Answers, is_flipped: Array) -> Answers:
    """The pairs, with chosen and rejected swapped where `is_flipped` (N,) bool."""
    if not is_flipped.any():
        return answers
    rows = [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]} if flip else row
        for row, flip in zip(answers.rows, is_flipped, strict=True)
    ]
    embedding = np.where(is_flipped[:, None, None], answers.embedding[:, ::-1], answers.embedding)
    return replace(answers, rows=rows, embedding=embedding)


@dataclass(frozen=True)
class LinearModel:
    """N pairs that models linear in F features are learned from, or some of them.

    features: (N, 2, F), of differences of unit spread. place: (N,), as `places_of`. label: (N,).
    is_learned: (N,) bool, those that are learned from.
    """

    features: Array
    place: Array
    label: Array
    is_learned: Array

    @property
    def zeros(self) -> Array:
        """Weights (C + 1, F) of 0."""
        return np.zeros((int(self.place.max(initial=0)) + 1, self.features.shape[-1]))

    def fit(self, used: Array, inverse_penalty: float, start: Array) -> Array:
        """Weights (C + 1, F) by the pairs `used`, (N,) bool, of those learned from."""
        whose = used & self.is_learned
        better, worse = self.features[whose].swapaxes(0, 1)
        return bradley_terry(
            better - worse, self.place[whose], self.label[whose], inverse_penalty, start
        )

    def scores(self, whose: Array, weights: Array) -> Array:
        """Scores of the pairs `whose`, (N,) bool."""
        return scores_of(self.features[whose], self.place[whose], weights)

    def unopposed(self, used: Array, folds: Array, inverse_penalty: float, start: Array) -> Array:
        """(N,) bool: the pairs of `used` whose label no model of the other folds contradicts."""
        is_unopposed = used.copy()
        for fold in np.unique(folds[used]):
            part = used & (folds == fold) & self.is_learned
            scores = self.scores(part, self.fit(used & (folds != fold), inverse_penalty, start))
            is_unopposed[part] = (2 * self.label[part] - 1) * (scores[:, 0] - scores[:, 1]) >= 0
        return is_unopposed


def linear_scores(
    answers: dict[str, Answers], config: EmbeddingModelConfig
) -> tuple[dict[str, Array], dict[str, float]]:
    """Scores (N, 2) of each split, logits, and what was chosen."""
    train = answers["train"]
    categories = sorted({str(row.get("category")) for row in train.rows})
    features = {split: features_of(part, config) for split, part in answers.items()}
    places = {split: places_of(part, categories) for split, part in answers.items()}
    better, worse = features["train"].swapaxes(0, 1)
    spread = np.sqrt(((better - worse) ** 2).mean(0))
    for values in features.values():
        values /= np.where(spread > 0, spread, 1)
    is_learned = draw_pairs(len(train.rows), config.seed)
    model = LinearModel(features["train"], places["train"], train.label, is_learned)
    folds = folds_of(train.rows, config.num_folds, config.fold_by).numpy()
    loss, inverse_penalty, scores, starts = _cross_validate(model, folds, config.num_folds)
    summary = {"inverse_penalty": inverse_penalty, "cross_fitted_loss": loss}
    weights = model.fit(np.ones(len(folds), bool), inverse_penalty, model.zeros)
    if config.second_fit:
        again, weights_again = _fit_unopposed(
            model, folds, inverse_penalty, {**starts, None: weights}
        )
        first, second = _stacking_weights(scores, again, model.label)
        scores, weights = first * scores + second * again, first * weights + second * weights_again
        summary |= {"weight_first_fit": first, "weight_second_fit": second}
    by_split = {split: scores_of(f, places[split], weights) for split, f in features.items()}
    return by_split | {"train": scores}, summary


def _cross_validate(
    model: LinearModel, folds: Array, num_folds: int
) -> tuple[float, float, Array, dict[int | None, Array]]:
    """The loss, inverse penalty, cross-fitted scores (N, 2), and weights by fold left out, of the
    penalty under which the labels are likeliest."""
    starts: dict[int | None, Array] = dict.fromkeys(range(num_folds), model.zeros)
    best: tuple[float, float, Array, dict[int | None, Array]] | None = None
    num_worse = 0
    for inverse_penalty in INVERSE_PENALTIES:
        scores = np.zeros(model.features.shape[:2])
        # Each from the weights of a stronger penalty.
        starts = {
            fold: model.fit(folds != fold, inverse_penalty, start) for fold, start in starts.items()
        }
        for fold, weights in starts.items():
            scores[folds == fold] = model.scores(folds == fold, weights)
        loss = loss_of(scores, model.label)
        if best is None or loss < best[0]:
            best, num_worse = (loss, inverse_penalty, scores, starts), 0
        else:
            num_worse += 1
        if num_worse == 2:  # the weaker the penalty, the longer it takes
            break
    assert best is not None
    return best


def _fit_unopposed(
    model: LinearModel, folds: Array, inverse_penalty: float, starts: dict[int | None, Array]
) -> tuple[Array, Array]:
    """Cross-fitted scores (N, 2), and weights of all pairs, of models that leave out what models of
    other pairs contradict.

    Pairs are left out for a fold by models of the other folds alone, so that no pair's label has a
    part in its score. starts: weights by fold left out; None, the last key, stands for all pairs.
    """
    scores, weights = np.zeros(model.features.shape[:2]), model.zeros
    for fold, start in starts.items():
        used = np.ones(len(folds), bool) if fold is None else folds != fold
        unopposed = model.unopposed(used, folds, inverse_penalty, start)
        weights = model.fit(unopposed, inverse_penalty, start)
        if fold is not None:
            scores[~used] = model.scores(~used, weights)
    return scores, weights


def _stacking_weights(first: Array, second: Array, label: Array) -> tuple[float, float]:
    """The weights of two scores (N, 2) under which the labels (N,) are likeliest; the first alone
    where neither tells anything of them."""
    gaps = np.stack([first[:, 0] - first[:, 1], second[:, 0] - second[:, 1]])
    _, _, weights = calibrated_strength(
        torch.from_numpy(gaps),
        torch.ones(gaps.shape[1], dtype=torch.bool),
        label=torch.from_numpy(label),
    )
    of_first, of_second = weights.tolist()
    return (of_first, of_second) if of_first + of_second > NO_WEIGHT else (1.0, 0.0)


def loss_of(scores: Array, label: Array) -> float:
    """The mean loss of labels (N,) under scores (N, 2), nats."""
    gap = scores[:, 0] - scores[:, 1]
    return float(-(label * log_expit(gap) + (1 - label) * log_expit(-gap)).mean())


def rating_scores(
    answers: dict[str, Answers], config: EmbeddingModelConfig
) -> tuple[dict[str, Array], dict[str, float]]:
    """Scores (N, 2) of each split, logits: each answer's rating by the pairs of other folds, all of
    them, and what was chosen."""
    numbers: dict[str, int] = {}
    players = {}
    for split, part in answers.items():
        texts = [row[answer] for row in part.rows for answer in ("chosen", "rejected")]
        places = [numbers.setdefault(text, len(numbers)) for text in texts]
        players[split] = np.array(places, int).reshape(-1, 2)
    train, label = players["train"], answers["train"].label
    folds = folds_of(answers["train"].rows, config.num_folds, config.fold_by).numpy()
    fits = []
    for inverse_penalty in INVERSE_PENALTIES:
        scores = np.zeros(train.shape)
        for fold in range(config.num_folds):
            rest = folds != fold
            rating = ratings_of(train[rest], label[rest], len(numbers), inverse_penalty)
            scores[~rest] = rating[train[~rest]]
        fits.append((loss_of(scores, label), inverse_penalty, scores))
    loss, inverse_penalty, scores = min(fits, key=lambda fit: fit[0])
    rating = ratings_of(train, label, len(numbers), inverse_penalty)
    summary = {"inverse_penalty": inverse_penalty, "cross_fitted_loss": loss}
    return {split: rating[pairs] for split, pairs in players.items()} | {"train": scores}, summary


def ratings_of(players: Array, label: Array, count: int, inverse_penalty: float) -> Array:
    """Ratings (count,), logits: `bradley_terry` of a feature for each answer.

    players: (N, 2), which answers the pairs have. An answer of no pair has 0.
    """
    pairs, signs = np.repeat(np.arange(len(players)), 2), np.tile([1.0, -1.0], len(players))
    difference = csr_array((signs, (pairs, players.ravel())), (len(players), count))
    start, place = np.zeros((1, count)), np.zeros(len(players), int)
    return bradley_terry(difference, place, label, inverse_penalty, start)[0]


def draw_pairs(count: int, seed: int) -> Array:
    """(N,) bool: the pairs that are learned from, all, or EMBEDDING_MODEL_PAIRS of them."""
    if count <= counts.EMBEDDING_MODEL_PAIRS:
        return np.ones(count, bool)
    chosen = np.random.default_rng(seed).choice(count, counts.EMBEDDING_MODEL_PAIRS, replace=False)
    return np.isin(np.arange(count), chosen)


def features_of(answers: Answers, config: EmbeddingModelConfig) -> Array:
    """Features (N, 2, F), float32: an answer's vector, its style, or its vector and its style or
    the logarithm of its length, as configured."""
    of_text = style_of if config.kind == "style" or config.with_style else length_of
    texts = [row[answer] for row in answers.rows for answer in ("chosen", "rejected")]
    known = {text: of_text(text) for text in dict.fromkeys(texts)}
    shape = (-1, 2, len(of_text("")))
    written = np.array([known[text] for text in texts], np.float32).reshape(shape)
    return written if config.kind == "style" else np.concatenate([answers.embedding, written], -1)


def length_of(text: str) -> list[float]:
    """The logarithm of a text's length in words, and one."""
    return [float(np.log1p(len(words_of(text))))]


def style_of(text: str) -> list[float]:
    """How a text is written: its length in words, characters and sentences (logarithms), and per
    word or character: words a sentence, different words, letters a word, long words, capitals,
    digits, marks; line breaks and list marks; whether it ends with a sentence."""
    words = words_of(text)
    count, size = max(len(words), 1), max(len(text), 1)
    sentences = num_sentences(text)
    return [
        *length_of(text),
        float(np.log1p(len(text))),
        float(np.log1p(sentences)),
        float(np.log1p(count / max(sentences, 1))),
        len({word.lower() for word in words}) / count,
        sum(map(len, words)) / count,
        sum(len(word) > LONG_WORD for word in words) / count,
        sum(letter.isupper() for letter in text) / size,
        sum(letter.isdigit() for letter in text) / size,
        sum(not letter.isalnum() and not letter.isspace() for letter in text) / size,
        float(np.log1p(text.count("\n"))),
        float(np.log1p(len(LINE_MARK.findall(text)))),
        float(text.rstrip()[-1:] in SENTENCE_CLOSING) if text.strip() else 0.0,
    ]


def places_of(answers: Answers, categories: Sequence[str]) -> Array:
    """(N,) the place of each pair's category among `categories`, from 1; 0 where it is none of
    them, and where there is but one."""
    number = {name: place for place, name in enumerate(categories, 1) if len(categories) > 1}
    return np.array([number.get(str(row.get("category")), 0) for row in answers.rows], int)


def scores_of(features: Array, place: Array, weights: Array) -> Array:
    """Scores (N, 2) of features (N, 2, D) under weights (C + 1, D), for all and by category."""
    scores = np.zeros(features.shape[:2])
    for start in range(0, len(features), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        of_pair = np.where(place[part, None] > 0, weights[place[part]], 0) + weights[0]
        scores[part] = np.einsum("nad,nd->na", features[part], of_pair)
    return scores


def bradley_terry(
    difference: Array | csr_array,
    place: Array,
    label: Array,
    inverse_penalty: float,
    start: Array,
) -> Array:
    """Weights w (C + 1, D), for all pairs and for each category, of the largest log-likelihood of
    labels (N,) of differences (N, D), less |w|^2 / (2 inverse_penalty).

    place: (N,) category from 1, 0 for none of them. start: weights (C + 1, D) to start from.
    """
    shape = start.shape
    # Pairs of one category stand together: a slice of them is no copy.
    order = np.argsort(place, kind="stable")
    difference, label, place = difference[order].astype(float), label[order], place[order]
    ends = np.searchsorted(place, np.arange(shape[0]), side="right")
    categories = [slice(low, high) for low, high in itertools.pairwise(ends.tolist())]
    count = max(1, len(label))

    def loss_and_gradient(flat: Array) -> tuple[float, Array]:
        """Means over the pairs, so that one tolerance serves all sizes."""
        weights = flat.reshape(shape)
        gap = difference @ weights[0]
        for category, rows in enumerate(categories, 1):
            gap[rows] += difference[rows] @ weights[category]
        loss = -(label * log_expit(gap) + (1 - label) * log_expit(-gap)).sum()
        excess = expit(gap) - label
        gradient = weights / inverse_penalty
        gradient[0] += excess @ difference
        for category, rows in enumerate(categories, 1):
            gradient[category] += excess[rows] @ difference[rows]
        loss += (flat @ flat) / (2 * inverse_penalty)
        return loss / count, gradient.ravel() / count

    options = {"maxiter": MAX_STEPS, "gtol": 1e-6, "ftol": 1e-12}
    fit = minimize(loss_and_gradient, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    weights: Array = fit.x.reshape(shape)
    return weights


def nearest_scores(answers: dict[str, Answers], config: EmbeddingModelConfig) -> dict[str, Array]:
    """Scores (N, 2) of each split: the log-odds that an answer's neighbours were chosen, each
    weighed by its cosine. Neighbours are answers to other prompts, and of other pairs."""
    train = answers["train"]
    train = train[np.flatnonzero(draw_pairs(len(train.rows), config.seed))]
    numbers: dict[tuple[str, ...], int] = {}
    pair = np.repeat(answer_pairs_of(train.rows, numbers), 2)
    known = train.embedding.reshape(-1, train.embedding.shape[-1])
    outcome = np.stack([train.label, 1 - train.label], 1).reshape(-1)
    prompt = np.repeat(train.prompt, 2)
    k = min(config.num_neighbours, len(known) // 2)
    scores = {}
    for split, rated in answers.items():
        vectors, prompts = rated.embedding.reshape(-1, known.shape[1]), np.repeat(rated.prompt, 2)
        pairs = np.repeat(answer_pairs_of(rated.rows, numbers), 2)
        shares = np.zeros(len(vectors))
        for start in range(0, len(vectors), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            likeness = vectors[part] @ known.T
            is_related = (prompts[part, None] == prompt[None]) | (pairs[part, None] == pair[None])
            likeness[is_related] = -np.inf
            nearest = np.argpartition(-likeness, k - 1, axis=1)[:, :k]
            weight = np.take_along_axis(likeness, nearest, 1).clip(min=0)
            # One chosen and one rejected neighbour more, so that no share is 0 or 1.
            shares[part] = ((outcome[nearest] * weight).sum(1) + 1) / (weight.sum(1) + 2)
        scores[split] = logit(shares).reshape(-1, 2)
    return scores
