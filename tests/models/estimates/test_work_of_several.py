"""What several scorers and behaviour policies cost, and a base model that is not trained."""

from __future__ import annotations

from tests.models.estimates.test_work import HIDDEN, POLICY, TRAIN, TRUNK, _ppo, _work
from trimtab.models.config.reward import AdvantageModelConfig, ExpectedRewardConfig
from trimtab.models.config.training import SFTConfig, ZeroConfig


def test_every_further_scorer_is_another_pass_and_another_model() -> None:
    one = _work("ppo_max", _ppo(), scorer_heads=(2,))
    three = _work("ppo_max", _ppo(), scorer_heads=(2, 1, 1))
    answers = 7 * 32
    assert three.forward_tokens - one.forward_tokens == 2 * answers * 31
    assert three.trained_tokens == one.trained_tokens
    for name, phase in three.phases.items():
        assert phase.frozen - one.phases[name].frozen == 2 * 4 * (TRUNK + HIDDEN)
    # The critic is a copy of the first, an Advantage Model.
    assert three.parameters == one.parameters == POLICY + TRUNK + 2 * HIDDEN
    # In parts, one of them is whole at a time.
    zero = {"num_ranks": 4, "zero": ZeroConfig(stage=3)}
    parts = _work("ppo_max", _ppo(**zero), scorer_heads=(1, 2)).phases["scoring"]
    held = _work("ppo_max", _ppo(num_ranks=4), scorer_heads=(1, 2)).phases["scoring"]
    assert parts.frozen == held.frozen / 4 + 4 * max(POLICY, TRUNK + 2 * HIDDEN)


def test_a_base_model_is_loaded_and_not_trained() -> None:
    work = _work("sft", SFTConfig(train=TRAIN, fine_tune=False))
    assert (work.optimiser_steps, work.trained_tokens, work.parameters) == (0, 0, 0)
    assert work.peak[1].total == 4 * POLICY


def test_policies_that_weigh_pass_all_training_pairs() -> None:
    plain = _work("advantage_model", AdvantageModelConfig(train=TRAIN))
    weighed = _work("advantage_model", AdvantageModelConfig(train=TRAIN), num_behaviours=2)
    # The current policy and two others, one at a time beside the model to train.
    assert weighed.forward_tokens - plain.forward_tokens == 3 * 37 * 42
    assert weighed.phases["likelihoods"].frozen == 4 * (POLICY + TRUNK + 2 * HIDDEN)
    assert "likelihoods" not in plain.phases


def test_expected_rewards_take_samples_first_and_rows_of_several_answers_in_every_step() -> None:
    samples = ExpectedRewardConfig(
        num_prompts=12,
        num_responses=3,
        num_held_out=5,
        held_out_responses=7,
        batch_size=4,
        max_new_tokens=20,
    )
    plain = _work("advantage_model", AdvantageModelConfig(train=TRAIN))
    work = _work("advantage_model", AdvantageModelConfig(train=TRAIN, expected_reward=samples))
    answers = 12 * 3 + 5 * 7
    assert (work.sampled_tokens, plain.sampled_tokens) == (answers * 20, 0)
    # A prompt of 10 tokens and three answers of 20 and an end token each.
    again = 12 * (10 + 3 * 21) + 5 * (10 + 7 * 21)  # once trained, those and new ones
    assert work.forward_tokens - plain.forward_tokens == answers * 10 + again
    assert work.trained_tokens - plain.trained_tokens == work.optimiser_steps * 4 * (10 + 3 * 21)
    assert work.phases["sampling"].frozen == 4 * (POLICY + TRUNK + 2 * HIDDEN)
    assert work.phases["training"].total >= plain.phases["training"].total
