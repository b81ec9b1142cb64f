"""The gate between category heads: which category a prompt is of, read from its last hidden state.

Implementation details that matter:
1. Prompts of known category are scored by its head, so that each head learns from its own
   category's pairs only. No loss trains the gate, which tells of other prompts: it is fitted to the
   trunk's states before training, and after it for the trunk as it then is.
2. It is a logistic regression without intercept on the states, on at most MOST_PROMPTS different
   prompts, among them one of each category. A prompt of several categories counts for each of them.
3. Its ridge penalty is what cross-validation over whole dialogues finds best: how sure the gate is
   decides how scores are mixed. Where the folds lack a category it is USUAL_INVERSE_PENALTY.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.data.prompts import first_turn
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.scoring import category_heads, heads_of
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training.data import Pairs
from trimtab.models.training.scoring import map_rows

Array = NDArray[Any]

MOST_PROMPTS = 10_000
MAX_STEPS = 1000
NUM_FOLDS = 3
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # at unit spread of the states
USUAL_INVERSE_PENALTY = 1e-2  # free: the best one on HH's prompts
SMALLEST_SPREAD = 1e-5  # of a state's number beside its size: below, it is rounding


def categories_of(pairs: Pairs) -> tuple[str, ...]:
    """The categories of pairs, sorted; none where they are fewer than two.

    Pairs without a category are of none, whatever others there are.
    """
    names = sorted({name for name in pairs.categories if name is not None})
    return tuple(names) if len(names) > 1 else ()


def fit_gate(model: PreTrainedModel, pairs: Pairs) -> None:
    """Fit the gate to the categories of pairs.

    Does nothing for a model without category heads, nor where the pairs, being others than it was
    trained on, are not of all its categories.
    """
    names = category_heads(model)
    if not names:
        return
    prompts, category, dialogue = _prompts(pairs, names)
    if len(np.unique(category)) < len(names):
        return
    if len(prompts) > MOST_PROMPTS:
        taken = some_of_each(category, MOST_PROMPTS)
        prompts, category = [prompts[index] for index in taken], category[taken]
        dialogue = dialogue[taken]
    features = _prompt_states(model, prompts).cpu().double().numpy()
    spread = features.std(0)
    spread[spread <= SMALLEST_SPREAD * np.abs(features).max(0)] = 1
    features /= spread
    gate = _regression(features, category, _inverse_penalty(features, category, dialogue))
    weight = gate.coef_ / spread
    if len(weight) == 1:  # scikit-learn's two classes share one row
        weight = np.concatenate([-weight, weight]) / 2
    with torch.no_grad():
        rows = model.score.weight[-len(names) :]
        rows.copy_(torch.as_tensor(weight, dtype=rows.dtype))


def _regression(features: Array, category: Array, inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # loads in a second

    gate = LogisticRegression(C=inverse_penalty, fit_intercept=False, tol=1e-6, max_iter=MAX_STEPS)
    return gate.fit(features, category)


def _inverse_penalty(features: Array, category: Array, dialogue: Array) -> float:
    """The one of least cross-validated log loss."""
    from sklearn.model_selection import GroupKFold

    if len(np.unique(dialogue)) < NUM_FOLDS:
        return USUAL_INVERSE_PENALTY
    folds = [
        (rest, held_out)
        for rest, held_out in GroupKFold(NUM_FOLDS).split(features, category, dialogue)
        if len(np.unique(category[rest])) == category.max() + 1
    ]
    if not folds:
        return USUAL_INVERSE_PENALTY

    def loss(inverse_penalty: float) -> float:
        total = 0.0
        for rest, held_out in folds:
            gate = _regression(features[rest], category[rest], inverse_penalty)
            logprobs = gate.predict_log_proba(features[held_out])
            total -= logprobs[np.arange(len(held_out)), category[held_out]].sum()
        return total

    return min(INVERSE_PENALTIES, key=loss)


def gate_accuracy(model: PreTrainedModel, pairs: Pairs) -> float | None:
    """The share of different prompts whose category the gate finds likeliest.

    None for a model without category heads, and where no prompt is of their categories.
    """
    names = category_heads(model)
    prompts, category, _ = _prompts(pairs, names)
    if not prompts:
        return None
    with torch.no_grad():
        likeliest = model.score(_prompt_states(model, prompts))[:, -len(names) :].argmax(1)
    return float((likeliest.cpu() == torch.as_tensor(category)).float().mean())


def _prompts(pairs: Pairs, names: Sequence[str]) -> tuple[list[Candidates], Array, Array]:
    """Each different prompt once for every category it has, with little more than it; which
    category, and the number of the dialogue."""
    heads = heads_of(names, pairs.categories).tolist()
    prompts = {
        (tuple(row.prompt), head): (_beginning(row), head, first_turn(prompt))
        for row, head, prompt in zip(pairs.rows, heads, pairs.prompts, strict=True)
        if head >= 0
    }
    rows = [row for row, _, _ in prompts.values()]
    turns = [turn for _, _, turn in prompts.values()]
    number = {turn: place for place, turn in enumerate(dict.fromkeys(turns))}
    category = np.array([head for _, head, _ in prompts.values()], int)
    return rows, category, np.array([number[turn] for turn in turns], int)


def _beginning(row: Candidates) -> Candidates:
    """A row's prompt with one token of a response, as a row has at least one."""
    lower, length = row.lower, len(row.prompt) + 1
    if lower is not None:
        lower = replace(lower, values=lower.values[:length])
    return Candidates(row.prompt, (row.responses[0][:1],), lower)


def some_of_each(category: Array, count: int) -> Array:
    """Places of at most `count` prompts, drawn evenly from each category, its first among them."""
    order = np.argsort(category, kind="stable")
    firsts = np.unique(category, return_index=True)[1]
    even = order[np.linspace(0, len(order) - 1, count - len(firsts)).astype(int)]
    return np.unique(np.concatenate([firsts, even]))


def _prompt_states(model: PreTrainedModel, rows: Sequence[Candidates]) -> Tensor:
    """The last hidden states (N, H) of the prompts of N rows of one response."""
    was_training = model.training
    model.eval()
    (states,) = map_rows(
        rows, lambda batch: (hidden_states(model, batch, batch.ends)[batch.prompt_end].float(),)
    )
    model.train(was_training)
    return states
