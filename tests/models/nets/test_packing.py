"""Packing changes nothing: every score, log-probability and gradient equals the obvious way's."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from models.nets.packing import Candidates, encode, pack
from models.nets.scoring import response_logprobs, response_scores, response_values, reward_heads

PAD = 0
ROWS = [
    Candidates([5, 6, 7], ([8, 9, 1], [10, 1])),
    Candidates([5, 11, 12, 13, 14, 6], ([9, 1], [8, 8, 8, 1])),
    Candidates([7], ([1], [9, 10, 11, 12, 1])),
]


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=1,
        bos_token_id=None,
    )


@pytest.fixture
def scorer() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = _config()
    config.num_labels = 2
    return LlamaForSequenceClassification(config).double().eval()


@pytest.fixture
def policy() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(_config()).double().eval()


def _alone(model: LlamaForSequenceClassification, tokens: list[int]) -> torch.Tensor:
    """Head outputs (T, 2) of one unpadded sequence through transformers' own masking."""
    return model.score(model.model(torch.tensor([tokens])).last_hidden_state[0])


def test_heads_read_the_last_response_and_the_last_prompt_token(
    scorer: LlamaForSequenceClassification,
) -> None:
    rewards, expected = reward_heads(scorer, pack(ROWS))
    assert expected is not None
    place = 0
    for row in ROWS:
        for response in row.responses:
            heads = _alone(scorer, row.prompt + response)
            torch.testing.assert_close(rewards[place], heads[-1, 0])
            torch.testing.assert_close(expected[place], heads[len(row.prompt) - 1, 1])
            place += 1


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1], [0, 0, 0]])
def test_scores_do_not_depend_on_neighbours(
    scorer: LlamaForSequenceClassification, order: list[int]
) -> None:
    together = response_scores(scorer, pack([ROWS[index] for index in order])).view(-1, 2)
    for scores, index in zip(together, order, strict=True):
        torch.testing.assert_close(scores, response_scores(scorer, pack([ROWS[index]])))


def test_scores_equal_those_of_left_padded_batches(scorer: LlamaForSequenceClassification) -> None:
    sequences = [row.prompt + response for row in ROWS for response in row.responses]
    width = max(map(len, sequences))
    padded = torch.tensor([[PAD] * (width - len(s)) + s for s in sequences])
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences])
    position = mask.cumsum(1).sub(1).clamp(min=0)
    hidden = scorer.model(padded, attention_mask=mask, position_ids=position).last_hidden_state
    rewards, _ = reward_heads(scorer, pack(ROWS))
    torch.testing.assert_close(rewards, scorer.score(hidden[:, -1])[:, 0])


def test_gradients_equal_those_of_separate_sequences(
    scorer: LlamaForSequenceClassification,
) -> None:
    rewards, _ = reward_heads(scorer, pack(ROWS))
    rewards.square().sum().backward()
    packed = [p.grad.clone() for p in scorer.parameters() if p.grad is not None]
    scorer.zero_grad()
    for row in ROWS:
        for response in row.responses:
            _alone(scorer, row.prompt + response)[-1, 0].square().backward()
    alone = [p.grad for p in scorer.parameters() if p.grad is not None]
    for ours, theirs in zip(packed, alone, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_loop_over_tokens(policy: LlamaForCausalLM, temperature: float) -> None:
    logprobs, entropies, mask = response_logprobs(policy, pack(ROWS), temperature)
    place = 0
    for row in ROWS:
        for response in row.responses:
            logits = policy(torch.tensor([row.prompt + response])).logits[0] / temperature
            for offset, token in enumerate(response):
                distribution = logits[len(row.prompt) + offset - 1].log_softmax(-1)
                torch.testing.assert_close(logprobs[place, offset], distribution[token])
                entropy = -(distribution.exp() * distribution).sum()
                torch.testing.assert_close(entropies[place, offset], entropy)
            assert mask[place].tolist() == [i < len(response) for i in range(mask.shape[1])]
            place += 1


def test_values_are_of_the_state_before_each_token(scorer: LlamaForSequenceClassification) -> None:
    values, _ = response_values(scorer, pack(ROWS))
    place = 0
    for row in ROWS:
        for response in row.responses:
            heads = _alone(scorer, row.prompt + response)[:, 0]
            start = len(row.prompt) - 1
            torch.testing.assert_close(
                values[place, : len(response)], heads[start : start + len(response)]
            )
            place += 1


def test_what_is_too_long_loses_the_prompts_beginning_and_the_responses_end() -> None:
    words = {word: number for number, word in enumerate(["<end>", "a", "b", "c", "d", "e"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    prompts, responses = ["a b c", "", "e"], [["d", "e e"], [""], []]
    assert encode(tokenizer, prompts, responses) == [
        Candidates([1, 2, 3], ([4, 0], [5, 5, 0])),
        Candidates([], ([0],)),
        Candidates([5], ()),
    ]
    assert encode(tokenizer, prompts[:1], responses[:1], max_length=4) == [
        Candidates([3], ([4, 0], [5, 5, 0]))
    ]
    assert encode(tokenizer, ["a b"], [["c d e e"]], max_length=4) == [
        Candidates([2], ([3, 4, 5],))
    ]
