"""What reward models cost on rankings, with two views and with a language-model head, by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.models.estimates.conftest import AMOUNTS, HIDDEN, SHAPE, TRAIN
from trimtab.models.config.reward import (
    ContrastiveConfig,
    RewardModelConfig,
)
from trimtab.models.config.training import LoraConfig
from trimtab.models.estimates.memory import FLOAT_BYTES
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import StageInputs, Work


def _work(config: RewardModelConfig) -> Work:
    return work_of("reward_model", config, StageInputs(SHAPE, AMOUNTS))


def test_rankings_are_fewer_and_longer_examples() -> None:
    work = _work(RewardModelConfig(train=TRAIN, ranking="k_wise"))
    # 20 rankings of four responses, twice a pair's 42 tokens: 2 batches an epoch, of 1,680 tokens,
    # but all pairs one by one are no more than 37 * 42 = 1,554.
    assert (work.examples, work.optimiser_steps, work.trained_tokens) == (20, 4, 2 * 1554)
    crossed = _work(RewardModelConfig(train=TRAIN, ranking="k_wise", fold=0))
    assert (crossed.examples, crossed.trained_tokens) == (10, 2 * 19 * 42)
    # Of 100 tokens at once, pairs have further keys and values for as many; rankings of 84, with
    # three further responses of 42, for 150.
    pairs = _work(RewardModelConfig(train=TRAIN)).phases["training"]
    keys = 2 * SHAPE.num_kv_heads * SHAPE.head_dim * SHAPE.num_layers
    further = work.phases["training"].activations - pairs.activations
    assert further == FLOAT_BYTES * 50 * keys
    # What is scored are pairs in either case.
    assert work.forward_tokens == 50 * 42


def test_two_views_are_two_passes_kept_at_once() -> None:
    dropped = TRAIN.model_copy(update={"dropout": 0.05})
    one = _work(RewardModelConfig(train=dropped))
    term = ContrastiveConfig(kind="swav", num_prototypes=20)
    two = _work(RewardModelConfig(train=dropped, contrastive=term))
    assert two.trained_tokens == 2 * one.trained_tokens
    assert two.optimiser_steps == one.optimiser_steps
    assert two.phases["training"].activations == 2 * one.phases["training"].activations
    assert two.parameters - one.parameters == 20 * HIDDEN
    # Masks of 100 tokens, 2 x 576 floats in each of 30 layers.
    plain = _work(RewardModelConfig(train=TRAIN)).phases["training"]
    masks = one.phases["training"].activations - plain.activations
    assert masks == FLOAT_BYTES * 100 * 2 * HIDDEN * 30


def test_imitation_has_logits_and_where_it_is_not_tied_a_head() -> None:
    plain = _work(RewardModelConfig(train=TRAIN))
    imitating = RewardModelConfig(train=TRAIN, imitation_coef=1.0)
    tied = _work(imitating)
    assert tied.parameters == plain.parameters
    # Of short pairs all of the 100 tokens at once may be the better answers.
    logits = tied.phases["training"].activations - plain.phases["training"].activations
    assert logits == FLOAT_BYTES * 100 * SHAPE.vocab_size
    assert tied.phases["scoring"] == plain.phases["scoring"]
    head = SHAPE.vocab_size * HIDDEN
    inputs = StageInputs(replace(SHAPE, is_tied=False, head_parameters=head), AMOUNTS)
    assert work_of("reward_model", imitating, inputs).parameters == plain.parameters + head
    # Adapters leave it alone, but it is there.
    adapted = TRAIN.model_copy(update={"lora": LoraConfig(rank=8)})
    with_head, without = (
        work_of("reward_model", RewardModelConfig(train=adapted, imitation_coef=coef), inputs)
        for coef in (1.0, 0.0)
    )
    assert with_head.parameters == without.parameters
    frozen = [work.phases["training"].frozen for work in (with_head, without)]
    assert frozen[0] - frozen[1] == FLOAT_BYTES * head
