"""The study of methods that find wrong labels: what is planted, trained on and printed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.bench.cleaning_data import Case, Pool, drawn_wrong, planted_case
from tests.bench.cleaning_methods import NO_TREATMENT, RewardModels, judge
from tests.bench.cleaning_page import mean_ranks, number, ranks
from trimtab.models.data.records import PreferencePair
from trimtab.models.stages.embedding_model import Answers, with_flips
from trimtab.models.stages.relabel import apply_treatments
from trimtab.models.synthetic.demonstrations import draw_prompts, perfect_response
from trimtab.models.synthetic.gold import quality

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


def _world(count: int) -> Pool:
    """Pairs of one task of the synthetic world: the worse answer is worth nothing in every other
    pair, and lacks its last word, worth .15, in the rest."""
    rng = random.Random(0)
    pairs, truth = [], {}
    for index, prompt in enumerate(draw_prompts(("reverse",), count, rng)):
        better = perfect_response(prompt, rng)
        worse = "stupid" if index % 2 else better.removesuffix(" done")
        pairs.append(PreferencePair(f"{index}", prompt, better, worse, "reverse"))
        gold = {"gold_chosen": quality(prompt, better), "gold_rejected": quality(prompt, worse)}
        assert gold == pytest.approx({"gold_chosen": 1, "gold_rejected": 0 if index % 2 else 0.85})
        truth[f"{index}"] = gold
    texts = {text for pair in pairs for text in (pair.chosen, pair.rejected)}
    return Pool(pairs, {text: np.ones(2, np.float32) for text in texts}, truth)


def test_in_the_world_hard_pairs_are_turned_round_more_often() -> None:
    """In proportion to 1.2 less the gap in quality: .2 and 1.05, of which .2 is the mean share."""
    case = planted_case(_world(4000), 0, "closeness", 0.2)
    is_hard = np.array([int(row["id"]) % 2 == 0 for row in case.train.rows])
    assert len(is_hard) == 3000 and case.has_gold
    shares = [float(case.wrong[own].mean()) for own in (is_hard, ~is_hard)]
    factor = 0.4 / (0.2 + 1.05)
    assert shares == pytest.approx([1.05 * factor, 0.2 * factor], abs=0.05)  # 4 deviations
    uniform = planted_case(_world(400), 0, "uniform", 0.25)
    assert uniform.wrong.sum() == 75


def test_a_judge_finds_as_many_wrong_labels_as_it_is_right() -> None:
    """Whatever share of the labels is wrong; within 4 standard deviations of 300 verdicts."""
    case = planted_case(_world(400), 0, "uniform", 0.25)
    found = judge(case.train, 0.8, seed=0)
    agrees = found.flagged == case.wrong
    assert float(agrees.mean()) == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / 300) ** 0.5)
    assert np.abs(found.strength) == pytest.approx(np.full(300, np.log(4)))
    perfect = judge(case.train, 1 - 1e-9, seed=0)
    assert (perfect.flagged == case.wrong).all()


def test_ranks_are_of_what_all_data_have() -> None:
    def row(data: str, **auroc: float) -> dict[str, Any]:
        finding = {name: {"auroc": value, "seconds": 1.0} for name, value in auroc.items()}
        return {"data": data, "kind": "uniform", "share": 0.25, "seed": 2, "num_wrong": 9} | {
            "finding": finding
        }

    table = ranks([row("ukp", a=0.9, b=0.8), row("hh", a=0.6, b=0.7), row("world", a=1, b=0, c=2)])
    assert table.splitlines()[2:] == [
        "| a | 1.3 | 1.0 | 2.0 | 1.0 | 1.0 | 1.0 | 1.0 |",
        "| b | 1.7 | 2.0 | 1.0 | 2.0 | 1.0 | 1.0 | 1.0 |",
    ]


def test_reward_models_learn_what_they_are_given() -> None:
    right = _right()
    wrong = np.arange(COUNT) % 10 < 4
    model = RewardModels(Case(with_flips(right, wrong), wrong, right, True))
    votes = [{"strength_mean": 1.0} for _ in range(COUNT)]
    given = apply_treatments(NO_TREATMENT, list(right.rows), votes, [None] * COUNT)
    is_flipped = torch.from_numpy(wrong)
    corrected = model.accuracy(given._replace(is_flipped=is_flipped))
    assert corrected == model.accuracy(given._replace(label=1 - is_flipped.double()))
    assert corrected > 0.85
    left = model.accuracy(given._replace(weight=(~is_flipped).double()))
    assert left > model.accuracy(given)
    assert model.accuracy(given._replace(is_flipped=~is_flipped)) < 0.2


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
