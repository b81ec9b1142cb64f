"""Prompts in, sampled responses out: batches of the decoding loop, shared out among ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.reward import ExpectedRewardConfig, MetaRMConfig
from trimtab.models.nets import counts
from trimtab.models.nets.free_memory import decoding_rows
from trimtab.models.nets.freezing import find_layers
from trimtab.models.nets.generation import Samples, Sampling, decode, decoding_batches
from trimtab.models.nets.packing import Candidates, encode, token_ids, with_categories
from trimtab.models.nets.precision import narrow_copies
from trimtab.models.training import distributed
from trimtab.models.training.progress import Progress
from trimtab.models.training.stage import Stage
from trimtab.models.training.vllm_sampler import active_sampler, vllm_sampler


def encode_prompts(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    sampling: Sampling,
) -> list[list[int]]:
    """Token ids of each prompt, of too long a one the end, and the instruction behind it."""
    behind, *encoded = token_ids(tokenizer, [sampling.instruction, *prompts])
    context = int(policy.config.max_position_embeddings)
    limit = counts.prompt_room(context, sampling.max_new_tokens, len(behind))
    if limit < 1:
        raise ValueError(
            f"max_new_tokens must leave room for a prompt in the policy's context of {context:,} "
            f"tokens, found {sampling.max_new_tokens:,} and an instruction of {len(behind):,}"
        )
    return [ids[-limit:] + behind for ids in encoded]


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    progress: Progress | None = None,
) -> Samples:
    """One sampled response for every prompt, in order.

    Every response has random numbers of its own, so that but for rounding it does not depend on
    those it shares a batch with, nor on the number of ranks. All ranks get all responses. Inside
    `vllm_sampler` vLLM samples.
    """
    vllm = active_sampler()
    if vllm is not None:
        end_token = tokenizer.eos_token_id
        sampled = vllm.sample(model, end_token, prompts, sampling, generator)
        if progress is not None:
            progress.advance(len(prompts), len(prompts))
        return sampled
    was_training = model.training
    model.eval()
    length, device = sampling.max_new_tokens, model.device
    draws = torch.rand(len(prompts), length, generator=generator, device="cpu").to(device)
    # Token ids are stored as one more each, before zeros.
    shape = len(prompts), length
    tokens, logprobs, entropies = (torch.zeros(shape, device=device) for _ in range(3))
    done = 0
    with narrow_copies(*(find_layers(model) or ())):
        for batch in distributed.shard(_batches(model, prompts, length)):
            texts = [prompts[row] for row in batch]
            samples = decode(model, tokenizer, texts, sampling, draws[batch])
            logprobs[batch], entropies[batch] = samples.logprobs, samples.entropies
            rows = [[*ids, *[-1] * (length - len(ids))] for ids in samples.responses]
            tokens[batch] = torch.tensor(rows, dtype=tokens.dtype, device=device) + 1
            done = min(done + distributed.world_size() * len(batch), len(prompts))
            if progress is not None:
                progress.advance(done, len(prompts))
    model.train(was_training)
    distributed.all_reduce_sum([tokens, logprobs, entropies])
    responses = [[token for token in row if token >= 0] for row in (tokens.long() - 1).tolist()]
    return Samples(responses, logprobs, entropies)


def _batches(model: PreTrainedModel, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
    """Indices of the prompts in each decoding batch, the same on all ranks.

    On a GPU the fewest that are as many on each rank, and that the rank with the least free memory
    has room for.
    """
    num_ranks = distributed.world_size()
    longest = max(map(len, prompts), default=0) + length
    rows = decoding_rows(model, longest)
    if rows is None:
        at_least = counts.least_sampling_batches(num_ranks)
        return decoding_batches(prompts, length, counts.CACHE_TOKENS, at_least)
    of_ranks = torch.zeros(num_ranks, device=model.device)
    of_ranks[distributed.rank()] = rows
    distributed.all_reduce_sum([of_ranks])
    rows = int(of_ranks.min())
    at_least = counts.even_sampling_batches(len(prompts), num_ranks, rows)
    return decoding_batches(prompts, length, rows * longest, at_least)


def respond(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    sampling: Sampling,
    generator: torch.Generator,
) -> list[str]:
    """One sampled response for each prompt, as text without the end token, in order."""
    answers = respond_often(policy, tokenizer, prompts, 1, sampling, generator)
    return [response for (response,) in answers]


def respond_often(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    num_responses: int,
    sampling: Sampling,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> list[list[str]]:
    """`num_responses` sampled texts for each prompt, in order."""
    encoded = encode_prompts(policy, tokenizer, prompts, sampling)
    repeated = [ids for ids in encoded for _ in range(num_responses)]
    sampled = sample(policy, tokenizer, repeated, sampling, generator, progress=progress)
    texts: list[str] = tokenizer.batch_decode(sampled.responses, skip_special_tokens=True)
    return [texts[index : index + num_responses] for index in range(0, len(texts), num_responses)]


def sample_answers(
    config: ExpectedRewardConfig | MetaRMConfig,
    stage: Stage,
    prompt_rows: Sequence[Mapping[str, Any]],
    seed: int,
    limit: int,
    reader: PreTrainedTokenizerBase | None = None,
) -> list[Candidates]:
    """Several answers of the input `policy` to each prompt, one row a prompt.

    prompt_rows: rows with a `prompt` and, if it is known, its `category`. limit: most tokens of a
    prompt and an answer. reader: whose tokens the rows have; None: the policy's.
    """
    prompts = [row["prompt"] for row in prompt_rows]
    policy, tokenizer = stage.policy("policy", is_frozen=True)
    with vllm_sampler(config, stage.workdir):
        answers = respond_often(
            policy,
            tokenizer,
            prompts,
            config.num_responses,
            Sampling(config.temperature, config.max_new_tokens),
            torch.Generator().manual_seed(seed),
            Progress(stage.workdir),
        )
    rows = encode(reader or tokenizer, prompts, answers, limit)
    return with_categories(rows, [row.get("category") for row in prompt_rows])
