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

from trimtab.models.nets.packing import (
    Candidates,
    TrunkActivations,
    encode,
    encode_whole,
    merged_candidates,
    mismatched_candidates,
    pack,
    tokens_of_responses,
)
from trimtab.models.nets.scoring import (
    read_logprobs,
    response_logprobs,
    response_scores,
    response_values,
    reward_heads,
)
from trimtab.models.nets.trunk import hidden_states

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


def test_a_packed_batch_is_what_a_loop_over_tokens_finds() -> None:
    """With a prompt of no token and a response of one, and rows of one, two and three responses."""
    rows = [
        Candidates([4, 5], ([6, 7, 8],), category="a"),
        Candidates([], ([9], [3, 2]), category="b"),
        Candidates([5], ([6], [7, 8, 9, 10], [11, 12])),
    ]
    ids, positions, source, own, place, ends, prompt_ends = ([] for _ in range(7))
    responses = [(row, response) for row in rows for response in row.responses]
    for row in rows:
        prompt_end = len(ids) + len(row.prompt) - 1
        ids += row.prompt
        positions += range(len(row.prompt))
        for response in row.responses:
            for offset, token in enumerate(response):
                source.append(prompt_end if offset == 0 else len(ids) - 1)
                place.append(4 * len(ends) + offset)
                own.append(token)
                ids.append(token)
                positions.append(len(row.prompt) + offset)
            ends.append(len(ids) - 1)
            prompt_ends.append(prompt_end)
    batch = pack(rows)
    assert batch.input_ids.tolist() == ids
    assert batch.position_ids.tolist() == positions
    assert batch.response_end.tolist() == ends
    assert batch.prompt_end.tolist() == prompt_ends
    assert batch.tokens.source.tolist() == source
    assert batch.tokens.ids.tolist() == own
    assert batch.tokens.place.tolist() == place
    assert batch.tokens.mask.tolist() == [[n < len(r) for n in range(4)] for _, r in responses]
    assert batch.category.tolist() == [hash(row.category) for row, _ in responses]
    assert batch.lengths == ((2, 3), (0, 1, 2), (1, 1, 4, 2))


def test_logprobs_of_some_responses_are_those_of_all(policy: LlamaForCausalLM) -> None:
    batch, chosen = pack(ROWS), [4, 0, 3]
    logprobs, entropies, mask = response_logprobs(policy, batch)
    tokens = tokens_of_responses(ROWS, chosen)
    found = read_logprobs(policy, hidden_states(policy, batch), batch, chosen=tokens)
    longest = 4  # of responses 4, 0 and 3, which have 1, 3 and 4 tokens
    for ours, all_of_them in zip(found, (logprobs, entropies, mask), strict=True):
        torch.testing.assert_close(ours, all_of_them[chosen, :longest])


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


def _words(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer of these words, numbered in their order."""
    words = {word: number for number, word in enumerate(text.split())}
    inner = Tokenizer(models.WordLevel(words, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


def test_what_is_too_long_loses_the_prompts_beginning_and_the_responses_end() -> None:
    tokenizer = _words("<end> a b c d e")
    prompts, responses = ["a b c", "", "e"], [[" d", " e e"], [""], []]
    assert encode(tokenizer, prompts, responses) == [
        Candidates([1, 2, 3], ([4, 0], [5, 5, 0])),
        Candidates([], ([0],)),
        Candidates([5], ()),
    ]
    assert encode(tokenizer, prompts[:1], responses[:1], max_length=4) == [
        Candidates([3], ([4, 0], [5, 5, 0]))
    ]
    assert encode(tokenizer, ["a b"], [[" c d e e"]], max_length=4) == [
        Candidates([2], ([3, 4, 5],))
    ]


def test_prompt_and_response_are_one_text_that_ends_once() -> None:
    """A token that reaches across is the response's, in all rows of the prompt; `x` is no word."""
    tokenizer = _words("<end> a b c d")
    assert encode(tokenizer, ["a b"], [[" d<end>", " d <end>\n", "<end>"]]) == [
        Candidates([1, 2], ([4, 0], [4, 0], [0]))
    ]
    assert encode(tokenizer, ["a b", "a b"], [["x"], [" c"]]) == [
        Candidates([1], ([1, 0],)),
        Candidates([1], ([2, 3, 0],)),
    ]
    assert encode(tokenizer, ["b"], [["x"]]) == [Candidates([2], ([1, 0],))]


def test_whole_texts_are_learned_behind_their_prompts_and_cut_alike() -> None:
    """Words by number: a text's own end stands, and none is added."""
    tokenizer = _words("a b c d <end>")

    def encoded(prompt: str, text: str, limit: int | None = None) -> tuple[list[int], list[int]]:
        (row,) = encode_whole(tokenizer, [prompt], [text], limit)
        return row.prompt, row.responses[0]

    assert encoded("a b", "a b c d <end>") == ([0, 1], [2, 3, 4])
    assert encoded("a b", "a c d") == ([0], [2, 3])  # where the two part
    assert encoded("", "a b c") == ([0], [1, 2])  # nothing predicts the first
    assert encoded("b", "a b c") == ([0], [1, 2])
    assert encoded("a b", "a b c d", 3) == ([1], [2, 3])
    assert encoded("", "a b c d", 3) == ([0], [1, 2])
    with pytest.raises(ValueError, match="the text 'a b' has no token to learn"):
        encoded("a b", "a b")


def test_pairs_of_a_prompt_become_one_row_with_each_response_once() -> None:
    # Best to worst [8], [9, 9], [7, 7, 7]; all three pairs of them.
    prompt = [5, 6]
    ranked = ([8], [9, 9], [7, 7, 7])
    rows = [Candidates(prompt, (ranked[i], ranked[j])) for i, j in ((1, 2), (0, 2), (0, 1))]
    assert merged_candidates(rows) == Candidates(prompt, ([9, 9], [7, 7, 7], [8]))
    assert merged_candidates(rows[:1]) is rows[0]
    # A pair whose answers are alike stays two, as nothing else asks for one of them.
    twins = Candidates(prompt, ([8], [8]))
    assert merged_candidates([twins]).responses == ([8], [8])


def test_states_come_along_unless_prompts_were_cut_differently() -> None:
    owner = torch.nn.Linear(1, 1)

    def row(prompt: list[int], *responses: list[int]) -> Candidates:
        # A token's state: what it and the response that it is in are.
        values = [[token, 0] for token in prompt]
        values += [[token, sum(response)] for response in responses for token in response]
        return Candidates(prompt, responses, TrunkActivations(torch.tensor(values), owner, 2))

    whole = merged_candidates([row([5, 6], [9, 9], [8]), row([5, 6], [8], [7, 7])])
    assert whole.lower is not None
    assert (whole.lower.owner, whole.lower.depth) == (owner, 2)
    expected = [[5, 0], [6, 0], [9, 18], [9, 18], [8, 8], [7, 14], [7, 14]]
    assert whole.lower.values.tolist() == expected
    # [7, 7, 7] left no room for 5: encoded together, no response of the prompt would have it.
    cut = merged_candidates([row([5, 6], [9, 9], [8]), row([6], [8], [7, 7, 7])])
    assert cut == Candidates([6], ([9, 9], [8], [7, 7, 7]))
    assert cut.lower is None
    without = merged_candidates([row([5, 6], [9, 9], [8]), Candidates([5, 6], ([8], [7]))])
    assert without.lower is None


def test_each_prompt_gets_the_responses_of_the_one_before_it() -> None:
    rows = [
        Candidates([1, 2, 3], ([11], [12, 12]), category="a"),
        Candidates([4], ([13, 13, 13], [14]), category="b"),
        Candidates([4], ([15], [16])),  # the same prompt: its answer is no other one's
        Candidates([5, 6], ([17], [18])),
    ]
    found = mismatched_candidates(rows, 4)
    assert found == [
        Candidates([1, 2, 3], ([17], [18])),
        Candidates([4], ([11], [12, 12])),
        Candidates([5, 6], ([15], [16])),
    ]
    assert [row.category for row in found] == ["a", "b", None]
    # The longest response leaves one token of room.
    cut, _ = mismatched_candidates([rows[0], rows[1]], 4)
    assert cut == Candidates([3], ([13, 13, 13], [14]))
    assert mismatched_candidates(rows[:1], 4) == []
