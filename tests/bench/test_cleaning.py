"""The study of methods that find wrong labels: what is planted, trained on and printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bench.cleaning_data import Case, drawn_wrong
from tests.bench.cleaning_methods import NO_TREATMENT, RewardModels
from tests.bench.cleaning_page import mean_ranks, number
from trimtab.models.stages.embedding_model import Answers, with_flips
from trimtab.models.stages.relabel import treated

COUNT = 400


def _right() -> Answers:
    """Pairs in four categories; the worse answer is the longer one in every other of them."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(COUNT, 2, 4)).astype(np.float32)
    vectors[:, 0, 0] += 2
    words = ["yes it is", "no it is not so"]
    rows = [
        {"id": f"{n}", "prompt": f"{n}", "category": "abcd"[n % 4]}
        | {"chosen": words[n // 4 % 2], "rejected": words[1 - n // 4 % 2]}
        for n in range(COUNT)
    ]
    return Answers(rows, vectors, np.arange(COUNT), np.ones(COUNT))


@pytest.mark.parametrize("kind", ["uniform", "category", "length"])
def test_wrong_labels_are_as_many_and_where_they_should_be(kind: str) -> None:
    right = _right()
    wrong = drawn_wrong(kind, 0.25, right, np.random.default_rng(0))
    assert wrong.sum() == 100
    of_category = sorted(int(wrong[start::4].sum()) for start in range(4))
    is_longer = np.arange(COUNT) // 4 % 2 == 0
    if kind == "category":  # weights 0, 1/3, 2/3 and 1
        assert of_category[0] == 0 < of_category[1] < of_category[2] < of_category[3]
    elif kind == "length":  # four times as likely: 80 of 100 before any is used up
        assert wrong[is_longer].sum() > 70
    else:  # within 4 standard deviations of 25 and 50
        assert of_category[0] >= 9 and of_category[-1] <= 41
        assert 30 <= wrong[is_longer].sum() <= 70


def test_reward_models_learn_what_they_are_given() -> None:
    right = _right()
    wrong = np.arange(COUNT) % 10 < 4
    model = RewardModels(Case(with_flips(right, wrong), wrong, right, True))
    votes = [{"strength_mean": 1.0} for _ in range(COUNT)]
    given = treated(NO_TREATMENT, list(right.rows), votes, [None] * COUNT)
    turned = torch.from_numpy(wrong)
    corrected = model.accuracy(given._replace(is_flipped=turned))
    assert corrected == model.accuracy(given._replace(label=1 - turned.double()))
    assert corrected > 0.85
    left = model.accuracy(given._replace(weight=(~turned).double()))
    assert left > model.accuracy(given)
    assert model.accuracy(given._replace(is_flipped=~turned)) < 0.2


def test_numbers_and_ranks_by_hand() -> None:
    # The t quantile of two degrees of freedom is 4.303; the deviation of 1, 2, 3 is 1.
    assert number([0.1, 0.2, 0.3]) == ".200 ± .248"
    assert number([-0.01], signed=True) == "-.010"
    assert number([9.0, 10.0, 11.0], digits=1) == "10.0 ± 2.5"
    rows = [
        {"seed": seed, "scores": scores}
        for seed, scores in (
            (2, {"a": 0.9, "b": 0.8, "c": 0.8}),
            (2, {"a": 0.7, "b": 0.8, "c": 0.9}),
            (3, {"a": 0.3, "b": 0.2, "c": 0.1}),
        )
    ]
    assert mean_ranks(rows, lambda row: row["scores"]) == {
        "a": [2.0, 1.0],
        "b": [2.25, 2.0],
        "c": [1.75, 3.0],
    }
