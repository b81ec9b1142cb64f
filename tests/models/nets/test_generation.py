"""Sampling: the cached loop draws from the model's own distribution, whatever the batch."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trimtab.models.nets import counts, generation
from trimtab.models.nets.generation import Sampling, decode, decoding_batches
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.world import word_tokenizer
from trimtab.models.training.sampling import encode_prompts, sample

EOS = 1


class Tokenizer:
    """All that sampling asks of a tokenizer."""

    eos_token_id = EOS
    pad_token_id = 0


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=EOS,
        bos_token_id=None,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


PROMPTS = [[5, 6], [7, 8, 9, 10], [4], [5, 6, 7], [11, 2], [3, 3, 3, 3, 3]]


def _greedy_slowly(model: LlamaForCausalLM, prompt: list[int], limit: int) -> list[int]:
    tokens, response = list(prompt), []
    while len(response) < limit and EOS not in response:
        token = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        tokens.append(token)
        response.append(token)
    return response


@pytest.mark.parametrize("cache_tokens", [15, 30, 32_768])
def test_near_zero_temperature_equals_the_greedy_loop(
    model: LlamaForCausalLM, cache_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "CACHE_TOKENS", cache_tokens)
    sampling = Sampling(temperature=1e-4, max_new_tokens=10)
    generator = torch.Generator().manual_seed(0)
    responses = sample(model, Tokenizer(), PROMPTS, sampling, generator).responses
    assert responses == [_greedy_slowly(model, prompt, 10) for prompt in PROMPTS]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_every_rank_has_a_batch(num_ranks: int) -> None:
    for count in (8, 9, 15, 64, 127):
        prompts = [[5, 6, 7]] * count
        batches = decoding_batches(prompts, 4, 32_768, at_least=num_ranks)
        assert len(batches) == num_ranks
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert len(decoding_batches([[5, 6]] * 3, 4, 32_768, at_least=8)) == 3
    assert decoding_batches([], 4, 32_768, at_least=num_ranks) == []


def test_batches_fit_into_the_cache() -> None:
    prompts = [[5] * (1 + number % 4) for number in range(50)]
    batches = decoding_batches(prompts, 6, 100, at_least=2)
    assert len(batches) == 5
    assert all(len(batch) * (4 + 6) <= 100 for batch in batches)


def test_equal_prompts_go_through_the_model_once(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four answers to each prompt are those of a batch in which every row has its own pass."""
    prompts = [prompt for prompt in PROMPTS for _ in range(4)]
    rows = []
    handle = model.register_forward_pre_hook(
        lambda _, __, named: rows.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    sampling = Sampling(temperature=1.0, max_new_tokens=10)
    draws = torch.rand(len(prompts), 10, generator=torch.Generator().manual_seed(0))
    shared = decode(model, Tokenizer(), prompts, sampling, draws).responses
    handle.remove()
    assert rows == [(len(PROMPTS), 5)] and len(shared) == len(prompts)

    monkeypatch.setattr(generation, "groupby", lambda rows: [(row, [row]) for row in rows])
    own = decode(model, Tokenizer(), prompts, sampling, draws).responses
    assert shared == own


def test_a_response_does_not_depend_on_those_it_shares_a_batch_with(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=10, top_p=0.9)

    def responses(cache_tokens: int) -> list[list[int]]:
        monkeypatch.setattr(counts, "CACHE_TOKENS", cache_tokens)
        generator = torch.Generator().manual_seed(0)
        return sample(model, Tokenizer(), PROMPTS * 9, sampling, generator).responses

    together = responses(10_000)
    assert responses(40) == together
    assert len({tuple(response) for response in together}) > 9


@torch.no_grad()
def test_first_token_frequencies_match_the_model(model: LlamaForCausalLM) -> None:
    count = 4000
    sampling = Sampling(temperature=0.8, max_new_tokens=1)
    responses = sample(
        model, Tokenizer(), [[5, 6]] * count, sampling, torch.Generator().manual_seed(0)
    ).responses
    expected = (model(torch.tensor([[5, 6]])).logits[0, -1] / 0.8).softmax(-1)
    seen = torch.bincount(torch.tensor([r[0] for r in responses]), minlength=12) / count
    # Standard error of a share is at most sqrt(.25 / 4000) = .008; four of them.
    assert float((seen - expected).abs().max()) < 0.032


def test_nucleus_never_leaves_the_smallest_set_of_mass_p(model: LlamaForCausalLM) -> None:
    probabilities = model(torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)
    ordered, index = probabilities.sort(descending=True)
    size = int((ordered.cumsum(0) < 0.5).sum()) + 1
    sampling = Sampling(temperature=1.0, max_new_tokens=1, top_p=0.5)
    responses = sample(
        model, Tokenizer(), [[5, 6]] * 500, sampling, torch.Generator().manual_seed(0)
    ).responses
    assert {response[0] for response in responses} <= set(index[:size].tolist())


def test_repetition_penalty_lowers_what_was_seen(model: LlamaForCausalLM) -> None:
    def repeats(penalty: float) -> int:
        sampling = Sampling(1.0, max_new_tokens=12, repetition_penalty=penalty)
        generator = torch.Generator().manual_seed(0)
        responses = sample(model, Tokenizer(), [[5, 6]] * 200, sampling, generator).responses
        return sum(len(response) - len(set(response)) for response in responses)

    assert repeats(3.0) < repeats(1.0)


def test_responses_end_at_the_end_token_or_the_limit(model: LlamaForCausalLM) -> None:
    sampling = Sampling(temperature=2.0, max_new_tokens=7)
    generator = torch.Generator().manual_seed(0)
    for response in sample(model, Tokenizer(), PROMPTS * 20, sampling, generator).responses:
        assert EOS not in response[:-1]
        assert response[-1] == EOS or len(response) == 7


def test_what_is_noted_of_tokens_is_what_a_pass_over_them_finds(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before penalty and nucleus; and nothing behind a response's end."""
    monkeypatch.setattr(counts, "CACHE_TOKENS", 60)
    sampling = Sampling(0.7, max_new_tokens=10, top_p=0.9, repetition_penalty=1.2)
    prompts = PROMPTS * 3
    samples = sample(model, Tokenizer(), prompts, sampling, torch.Generator().manual_seed(0))
    assert len({len(response) for response in samples.responses}) > 3
    rows = [Candidates(p, (r,)) for p, r in zip(prompts, samples.responses, strict=True)]
    logprobs, entropies, _ = response_logprobs(model, pack(rows), 0.7)
    for noted, found in ((samples.logprobs, logprobs), (samples.entropies, entropies)):
        expected = torch.zeros_like(noted)
        expected[:, : found.shape[1]] = found
        torch.testing.assert_close(noted, expected)


def test_an_answer_that_leaves_no_room_for_a_prompt_is_refused(model: LlamaForCausalLM) -> None:
    tokenizer = word_tokenizer()
    (prompt,) = encode_prompts(model, tokenizer, ["<user> add two two"], Sampling(1.0, 63))
    assert len(prompt) == 1
    with pytest.raises(ValueError, match="must leave room for a prompt in the policy's context of"):
        encode_prompts(model, tokenizer, ["<user> add two two"], Sampling(1.0, 64))
