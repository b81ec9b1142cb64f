"""The gold judge is right as often as it is told to be, and shows it as any judge does."""

from __future__ import annotations

import math
import random

import pytest
import torch

from trimtab.models.config.judge import JudgeConfig
from trimtab.models.functional.verdicts import alignment, debiased_preference
from trimtab.models.judge.batch import CachedChatModel
from trimtab.models.judge.gold import GoldModel
from trimtab.models.judge.judge import Comparison, Judge
from trimtab.models.synthetic.demonstrations import (
    corrupted_response,
    draw_prompts,
    perfect_response,
)
from trimtab.models.synthetic.gold import quality
from trimtab.models.synthetic.tasks import MAIN

NUM_PAIRS = 1200


@pytest.fixture(scope="module")
def pairs() -> list[Comparison]:
    """The better response first, told apart by gold, in a seeded world."""
    rng = random.Random(0)
    found = []
    for prompt in draw_prompts(MAIN, NUM_PAIRS, rng):
        one, other = perfect_response(prompt, rng), corrupted_response(prompt, rng)
        if quality(prompt, one) > quality(prompt, other):
            found.append(Comparison(prompt, one, other))
    return found


def _judge(accuracy: float, seed: int = 0) -> Judge:
    return Judge(CachedChatModel(GoldModel(accuracy, seed)), JudgeConfig(gold_accuracy=accuracy))


@pytest.mark.parametrize("accuracy", [0.5, 0.7, 0.9, 1.0])
def test_its_alignment_is_its_accuracy(pairs: list[Comparison], accuracy: float) -> None:
    """Four standard errors of a share of some 1,200 at most; nothing to spare where it is 1."""
    verdicts = _judge(accuracy).compare(pairs)
    first = torch.tensor([v.shown_first for v in verdicts], dtype=torch.float64)
    second = torch.tensor([v.shown_second for v in verdicts], dtype=torch.float64)
    preference, bias = debiased_preference(first, second)
    if accuracy > 0.5:  # else it says 1/2 of every pair
        share = float(alignment(preference).mean())
        assert abs(share - accuracy) <= 4 * math.sqrt(accuracy * (1 - accuracy) / len(pairs))
    # It says how sure it may be, and in both orders the same.
    assert torch.allclose((preference - 0.5).abs(), torch.tensor(accuracy - 0.5).double())
    assert float(bias["position_bias"]) == pytest.approx(0.0, abs=1e-12)
    assert all(v.num_unparsed == 0 for v in verdicts)


def test_equal_responses_are_a_tie(pairs: list[Comparison]) -> None:
    (verdict,) = _judge(0.9).compare([Comparison(pairs[0].prompt, "okay done", "okay done")])
    assert (verdict.shown_first, verdict.shown_second) == (0.5, 0.5)


def test_errors_depend_on_seed_and_pair_alone(pairs: list[Comparison]) -> None:
    few = pairs[:100]
    found = _judge(0.7).compare(few)
    assert _judge(0.7).compare(few[::-1])[::-1] == found
    assert _judge(0.7, seed=1).compare(few) != found


@pytest.mark.parametrize("accuracy", [0.75, 1.0])
def test_its_ratings_order_pairs_as_often(pairs: list[Comparison], accuracy: float) -> None:
    """At 1 a rating is 1 + 9 quality, rounded; below, the order is right at least as often."""
    judge = _judge(accuracy)
    better = judge.score([p.prompt for p in pairs], [p.first for p in pairs])
    worse = judge.score([p.prompt for p in pairs], [p.second for p in pairs])
    right = [
        1.0 if a.score > b.score else 0.5 if a.score == b.score else 0.0
        for a, b in zip(better, worse, strict=True)
    ]
    share, error = sum(right) / len(right), math.sqrt(0.25 / len(right))
    assert accuracy - 4 * error < share
    if accuracy == 1.0:
        for pair, verdict in zip(pairs, better, strict=True):
            assert abs(verdict.score - (1 + 9 * quality(pair.prompt, pair.first))) <= 0.5
    else:
        assert share < 0.95


def test_thoughts_and_texts_alone_serve_as_well(pairs: list[Comparison]) -> None:
    few = pairs[:20]
    config = JudgeConfig(gold_accuracy=1.0, chain_of_thought=True, top_logprobs=0, num_examples=8)
    verdicts = Judge(CachedChatModel(GoldModel(1.0, 0)), config).compare(few)
    assert all((v.shown_first, v.shown_second) == (1.0, 1.0) for v in verdicts)


def test_a_prompt_of_another_world_is_an_error() -> None:
    with pytest.raises(ValueError, match="belongs to no task family"):
        _judge(0.9).compare([Comparison("Human: hi", "hello", "bye")])
