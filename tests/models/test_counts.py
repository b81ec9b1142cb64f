"""Counts that trainers run by and plans count by: by hand, and against what trainers make."""

from __future__ import annotations

import random
from math import ceil

import pytest

from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.config.policy import RLOO, PolicyConfig, PPOConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.functional.strength import fold_of
from trimtab.models.nets import counts
from trimtab.models.training.batching import epoch_batches


def test_an_epoch_has_as_many_batches_as_are_counted() -> None:
    train = TrainConfig(batch_size=16, num_epochs=3)
    for rows in (1, 15, 16, 17, 255, 256, 257, 300):
        batches = epoch_batches(range(rows), 16, seed=0, epoch=0)
        assert sorted(row for batch in batches for row in batch) == list(range(rows))
        assert 3 * len(batches) == counts.optimiser_steps(train, [rows]) == 3 * ceil(rows / 16)
    # Each part has a short batch of its own: 2 and 1, not those of 33 rows.
    assert counts.optimiser_steps(train, [17, 16]) == 3 * (2 + 1)


def test_tokens_fill_batches_of_some_rows() -> None:
    lengths = [3, 4, 5, 6, 7, 30, 2]

    def cut(*bounds: int) -> list[list[int]]:
        return [[lengths[place] for place in s] for s in counts.token_spans(lengths, *bounds)]

    assert cut(12, 1, 3) == [[3, 4, 5], [6], [7], [30], [2]]
    assert cut(12, 2, 3) == [[3, 4, 5], [6, 7], [30, 2]]
    assert cut(18, 1, 3) == [[3, 4, 5], [6, 7], [30], [2]]
    assert cut(18, 1, 4) == [[3, 4, 5, 6], [7], [30], [2]]
    assert cut(1000, 1, 2) == [[3, 4], [5, 6], [7, 30], [2]]
    assert cut(1, 7, 9) == [lengths]


def test_batches_by_tokens_keep_their_bounds_and_are_no_more_than_planned() -> None:
    rng = random.Random(0)
    for number in range(200):
        lengths = [rng.randint(1, 60) for _ in range(rng.randint(1, 400))]
        most_tokens, least = rng.randint(1, 700), rng.randint(1, 6)
        most = least + rng.randint(0, 30)
        batches = epoch_batches(lengths, most, number, 0, most_tokens, least)
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        assert batches == epoch_batches(lengths, most, number, 0, most_tokens, least)
        too_few = [batch for batch in batches if len(batch) < least]
        assert len(too_few) <= 1 and max(map(len, batches)) <= most
        tokens = [sum(lengths[row] for row in batch) for batch in batches if len(batch) > least]
        assert max(tokens, default=0) <= most_tokens
        train = TrainConfig(batch_size=most, batch_tokens=most_tokens, least_batch_size=least)
        assert len(batches) <= counts.optimiser_steps(train, [len(lengths)], max(lengths))
        even = epoch_batches([7] * len(lengths), most, number, 0, most_tokens, least)
        assert len(even) == counts.optimiser_steps(train, [len(lengths)], 7)


def test_batches_by_tokens_differ_less_in_tokens_and_are_shared_out_by_them() -> None:
    """Of lengths as pairs of HH have them, of which half are at most 150 tokens and some 1,000."""
    rng = random.Random(1)
    lengths = [min(1000, round(rng.lognormvariate(5, 0.8))) for _ in range(4000)]

    def spread(batches: list[list[int]]) -> float:
        tokens = sorted(sum(lengths[row] for row in batch) for batch in batches)
        return tokens[round(0.9 * len(tokens))] / tokens[round(0.1 * len(tokens))]

    assert spread(epoch_batches(lengths, 32, 0, 0)) > 5
    batches = epoch_batches(lengths, 128, 0, 0, 6000, 4)
    assert spread(batches) < 1.3
    assert min(map(len, batches)) < 10 and max(map(len, batches)) == 128
    for batch in batches:
        if len(batch) >= 8:
            rows = sorted(batch, key=lengths.__getitem__)
            ranks = [sum(lengths[row] for row in share) for share in counts.shares(rows, 2)]
            assert max(ranks) < 1.35 * min(ranks)


def test_no_micro_batch_is_larger_than_is_counted() -> None:
    rng = random.Random(0)
    for _ in range(300):
        lengths = [rng.randint(1, 40) for _ in range(rng.randint(1, 30))]
        limit = rng.randint(1, 200)
        parts = list(counts.micro_batches(lengths, limit))
        assert [index for part in parts for index in part] == list(range(len(lengths)))
        largest = max(sum(lengths[index] for index in part) for part in parts)
        assert largest <= counts.most_micro_batch_tokens(len(lengths), max(lengths), limit)
    # The bound is met: by a row that is longer, by all rows, by as many as fit.
    for count, length, limit in ((5, 50, 40), (5, 50, 300), (6, 50, 200)):
        part = next(counts.micro_batches([length] * count, limit))
        most = counts.most_micro_batch_tokens(count, length, limit)
        assert length * len(part) == most


@pytest.mark.parametrize(("rows", "most"), [(12, 3), (13, 4), (4, 1), (3, 3)])
def test_ranks_share_out_rows(rows: int, most: int) -> None:
    """Of four ranks; fewer rows than ranks are everybody's."""
    shares = counts.shares(range(rows), 4)
    assert counts.rows_of_rank(rows, 4) == max(map(len, shares)) == most
    assert {row for share in shares for row in share} == set(range(rows))


def test_decoding_batches_are_few_and_of_one_size() -> None:
    # 100 tokens hold 3 rows of 30: 10 prompts take 4 batches, of 2 or 3.
    assert counts.decoding_batch_sizes(10, 30, 100, 1) == [2, 3, 2, 3]
    assert counts.decoding_batch_sizes(10, 30, 1000, 1) == [10]
    assert counts.decoding_batch_sizes(10, 30, 1000, 4) == [2, 3, 2, 3]
    assert counts.decoding_batch_sizes(2, 300, 100, 4) == [1, 1]
    assert counts.decoding_batch_sizes(0, 30, 100, 2) == []
    assert [counts.least_sampling_batches(ranks) for ranks in (1, 2, 3)] == [2, 2, 3]


def test_ppo_by_hand() -> None:
    config = PPOConfig(
        num_steps=5, critic_pretrain_steps=2, rollout_batch=32, train_batch=12, num_epochs=2
    )
    found = counts.ppo_counts(config, 100)
    # An epoch has train batches of 12, 12 and 8.
    assert (found.steps, found.policy_steps, found.rollout, found.updates) == (7, 5, 32, 6)
    assert [found.policy_updates(steps) for steps in (1, 2, 3, 7)] == [0, 0, 6, 30]
    assert counts.ppo_counts(config, 20).updates == 2 * 2
    # Four responses to each of 8 prompts, or to each of 5.
    grouped = config.model_copy(update={"objective": RLOO, "critic_pretrain_steps": 0})
    for available, prompts, updates in ((100, 8, 6), (5, 5, 4)):
        of_groups = counts.ppo_counts(grouped, available)
        assert (of_groups.prompts, of_groups.rollout) == (prompts, 4 * prompts)
        assert (of_groups.updates, of_groups.policy_steps) == (updates, 5)


def test_nll_batch_sizes() -> None:
    ppo = PPOConfig(rehearsal_coef=0.1, ptx_coef=0.1, rehearsal_batch=8)
    assert counts.nll_batch_sizes(ppo, True) == {"rehearsal": 8, "demonstrations": 8}
    assert counts.nll_batch_sizes(ppo, False) == {"demonstrations": 8}
    assert counts.nll_batch_sizes(PolicyConfig(rehearsal_coef=0.1, rehearsal_batch=3), True) == {
        "rehearsal": 3
    }
    assert counts.nll_batch_sizes(PolicyConfig(), True) == {}


def test_taken_rows_splits_and_room() -> None:
    assert [counts.num_taken(10, limit) for limit in (None, 3, 30)] == [10, 3, 10]
    shares = counts.split_shares(ComparisonsConfig(validation_share=0.25, test_share=0.5))
    assert shares == {"train": 0.25, "validation": 0.25, "test": 0.5}
    assert counts.prompt_room(64, 24, 3) == 37


def test_what_a_judge_answers() -> None:
    judge = JudgeConfig(gold_accuracy=1.0, top_logprobs=5, max_answer_tokens=9)
    assert counts.verdict_tokens(judge, 2) == 2
    assert counts.verdict_tokens(judge.model_copy(update={"top_logprobs": 0}), 2) == 9
    thinking = judge.model_copy(update={"chain_of_thought": True, "num_samples": 3})
    assert counts.answers_per_question(judge) == 1
    assert counts.answers_per_question(thinking) == 6


@pytest.mark.parametrize(("rows", "folds"), [(37, 2), (10, 3), (9, 3)])
def test_no_fold_is_smaller_than_plans_take_it_to_be(rows: int, folds: int) -> None:
    assert fold_of(rows, folds, seed=0).bincount().min() == rows // folds
