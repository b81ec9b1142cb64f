"""How many steps, rows and tokens a stage takes, and how much is computed or sent at a time.

Trainers run by these functions and numbers and plans (`trimtab.models.estimates`) count by them, so
that neither can change alone. Imports no torch, as plans do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trimtab.models.config.data import ComparisonsConfig, PreferencesConfig
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.config.policy import ConstitutionalSFTConfig, PolicyConfig, PPOConfig
from trimtab.models.config.training import ModelConfig, TrainConfig

T = TypeVar("T")

# Pairs that an embedding model learns from; those beyond are voted on alone.
EMBEDDING_MODEL_PAIRS = 10_000
# A judge is shown the two responses of a pair in both orders.
NUM_ORDERS = 2

# How much is computed or sent at a time, where no setting decides it. Most tokens in one pass
# without gradient.
PASS_TOKENS = 8192
# Most tokens of key-value cache in generation.
CACHE_TOKENS = 32_768
# On a GPU as many as so large a share of the memory holds that is free at the time, but at most:
# tokens in one pass, each of which takes what a layer of 13 billion parameters has of it (float32,
# in bytes, rounded up); rows in generation.
GPU_PASS_TOKENS = 32_768
TOKEN_BYTES = 2**18
GPU_DECODING_ROWS = 512
FREE_SHARE = 0.5
# Vocabulary-wide rows a response has where a token is drawn: logits, these over temperature,
# probabilities, sorted values, their int64 places (two), cumulative sum, that without the value.
SAMPLING_ROWS = 8
# Most requests that a local judge answers in one batch.
REQUESTS_AT_ONCE = 64
# Most logits where log-probabilities are taken (a GiB): more are computed in turns, and again for
# the gradient. Probabilities and then the gradient take their place.
LOGITS_AT_ONCE = 2**28
# Numbers that ranks with torch.distributed add up in one message (64 MiB).
BUCKET = 2**24
# ZeRO's own: numbers of gradients in one message; under stage 3 of parameters that are whole at a
# time, kept for the next pass or fetched before they are needed. Smaller ones, norms, always are.
ZERO_BUCKET = 2**27
ZERO_LIVE = 2**28
ZERO_PREFETCH = 2**25
ZERO_WHOLE = 10**5


def spans(count: int, size: int) -> list[range]:
    """`count` rows cut into consecutive spans of `size`; the last may be shorter."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def num_taken(available: int, limit: int | None) -> int:
    """How many of the available rows are taken, where `limit` (None: no limit) are asked for."""
    return available if limit is None else min(limit, available)


def layer_of_vectors(layer: int | None, num_layers: int) -> int:
    """The policy's layer whose output makes an answer's vector: the given one, else the one after
    four fifths of them."""
    return max(1, round(0.8 * num_layers)) if layer is None else layer


def split_shares(config: ComparisonsConfig | PreferencesConfig) -> dict[str, float]:
    """The share of pairs in each split, on average."""
    return {
        "train": 1 - config.validation_share - config.test_share,
        "validation": config.validation_share,
        "test": config.test_share,
    }


def optimiser_steps(config: TrainConfig, parts: Iterable[int], longest: int = 1) -> int:
    """Steps of the supervised loop: of all epochs over each part's rows, part after part.

    Where tokens fill a batch most steps, those of rows that are all of `longest` tokens.
    """
    size = config.batch_size
    if config.batch_tokens is not None:
        size = min(size, max(config.least_batch_size, config.batch_tokens // longest))
    return config.num_epochs * sum(len(spans(rows, size)) for rows in parts)


def token_spans(lengths: Sequence[int], most_tokens: int, least: int, most: int) -> Iterator[range]:
    """Consecutive rows of so many tokens (`lengths`) cut into batches of at most `most_tokens`,
    but of `least` to `most` rows each; the last may have fewer."""
    start = tokens = 0
    for place, length in enumerate(lengths):
        size, tokens = place - start, tokens + length
        if size == most or (size >= least and tokens > most_tokens):
            yield range(start, place)
            start, tokens = place, length
    yield range(start, len(lengths))


def shares(rows: Sequence[T], num_ranks: int) -> list[Sequence[T]]:
    """Every rank's rows of a batch: every so many, from its own number on.

    A batch with fewer rows than ranks is everybody's.
    """
    is_shared = len(rows) >= num_ranks
    return [rows[number::num_ranks] if is_shared else rows for number in range(num_ranks)]


def rows_of_rank(count: int, num_ranks: int) -> int:
    """Most rows of a batch of `count` that one rank has."""
    return len(shares(range(count), num_ranks)[0])


def micro_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Cut a batch into parts of at most `max_tokens` tokens (a longer row goes alone).

    lengths: tokens of each row. Yields the rows' indices.
    """
    part: list[int] = []
    tokens = 0
    for index, length in enumerate(lengths):
        if part and tokens + length > max_tokens:
            yield part
            part, tokens = [], 0
        part.append(index)
        tokens += length
    if part:
        yield part


def most_micro_batch_tokens(count: int, longest: int, max_tokens: int) -> int:
    """Most tokens in a part of `micro_batches` of `count` rows of at most `longest` tokens."""
    return max(longest, min(max_tokens, count * longest))


def decoding_batch_sizes(count: int, longest: int, cache_tokens: int, at_least: int) -> list[int]:
    """Rows of each batch in which `count` prompts are answered, all of about one size.

    As few batches as `cache_tokens` tokens of key-value cache allow rows of `longest` tokens,
    answers included, but `at_least` so many if there are as many prompts.
    """
    at_once = max(1, cache_tokens // longest)
    num_batches = min(count, max(at_least, -(-count // at_once)))
    ends = [count * number // num_batches for number in range(1, num_batches + 1)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def least_sampling_batches(num_ranks: int) -> int:
    """Batches that a policy samples in at least, on a CPU: one a rank.

    However few ranks there are: one samples in the same batches as two, so the same to the bit.
    """
    return max(2, num_ranks)


def even_sampling_batches(num_prompts: int, num_ranks: int, rows: int) -> int:
    """The fewest batches of at most `rows` prompts of which every rank has as many, on GPUs."""
    return num_ranks * -(-num_prompts // (num_ranks * rows))


def prompt_room(context: int, max_new_tokens: int, instruction: int = 0) -> int:
    """Most tokens of a prompt: what its answer and an instruction leave of the context."""
    return context - max_new_tokens - instruction


@dataclass(frozen=True)
class PPOCounts:
    """steps: of sampling and updating, the first `critic_steps` of which update the critic only.

    prompts: of a step. rollout: responses to them. updates: optimiser steps in each, of each model
    that is updated.
    """

    steps: int
    critic_steps: int
    prompts: int
    rollout: int
    updates: int

    @property
    def policy_steps(self) -> int:
        """Steps that update the policy too."""
        return self.steps - self.critic_steps

    def policy_updates(self, steps: int) -> int:
        """Optimiser steps of the policy in the first `steps`."""
        return self.updates * max(0, steps - self.critic_steps)


def ppo_counts(config: PPOConfig, num_prompts: int) -> PPOCounts:
    """The steps of PPO on so many prompts, of which each has several responses if the objective
    compares them."""
    num_responses = config.objective.num_responses
    prompts = num_taken(num_prompts, config.rollout_batch // num_responses)
    rollout = prompts * num_responses
    return PPOCounts(
        steps=config.critic_pretrain_steps + config.num_steps,
        critic_steps=config.critic_pretrain_steps,
        prompts=prompts,
        rollout=rollout,
        updates=config.num_epochs * len(spans(rollout, config.train_batch)),
    )


def nll_batch_sizes(config: PPOConfig | PolicyConfig, has_rehearsal: bool) -> dict[str, int]:
    """Dialogues that every update of the policy draws, by source: rehearsal, demonstrations."""
    sizes = {}
    if config.rehearsal_coef > 0 and has_rehearsal:
        sizes["rehearsal"] = config.rehearsal_batch
    if isinstance(config, PPOConfig) and config.ptx_coef > 0:
        sizes["demonstrations"] = config.rehearsal_batch
    return sizes


def risk_passes(config: PPOConfig, counted: PPOCounts, has_rehearsal: bool) -> int:
    """Passes of all measured answers by which PPO measures risk: one of the reference, then one of
    the policy every so many steps; 0 where no weight follows it."""
    draws = config.rehearsal_weights == "risk" and config.rehearsal_coef > 0
    if not has_rehearsal or not (draws or config.kl_weights == "risk"):
        return 0
    return 1 + len(spans(counted.policy_steps, config.risk_every))


def num_helpful(config: ConstitutionalSFTConfig, revisions: int, demonstrations: int) -> int:
    """Demonstrations that are mixed in with so many revisions."""
    return num_taken(demonstrations, round(config.helpful_per_revision * revisions))


def answers_per_question(judge: JudgeConfig) -> int:
    """Answers of a judge to one question, without retries: its reasoning, then the verdict."""
    return judge.num_samples * (2 if judge.chain_of_thought else 1)


def verdict_tokens(judge: JudgeConfig, longest_option: int) -> int:
    """Most tokens of a verdict: of an option if its probabilities are read, else of an answer."""
    return longest_option if judge.top_logprobs else judge.max_answer_tokens


def llama_fields(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """Dimensions of the small Llama that is trained from scratch where no base model is named.

    By the names of transformers' LlamaConfig and so of a `config.json`.
    """
    return {
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.hidden_size * 3,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": True,
    }
