"""A GPU computes as much at a time as its free memory holds; a CPU what it always does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.nets.test_static_steps import PROMPTS, Tokenizer
from trimtab.models.nets import counts, free_memory
from trimtab.models.nets.free_memory import decoding_rows, pass_tokens
from trimtab.models.nets.generation import Samples, Sampling
from trimtab.models.training import distributed, sampling
from trimtab.models.training.sampling import sample

SHAPE = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1}


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, bos_token_id=None)).eval()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Bytes that are free on what is then a GPU."""
    memory: dict[str, int | None] = {"bytes": None}
    monkeypatch.setattr(free_memory, "free_bytes", lambda _: memory["bytes"])
    return memory


def test_a_cpu_has_limits_of_its_own(model: LlamaForCausalLM) -> None:
    assert pass_tokens(model.device) == counts.PASS_TOKENS
    assert decoding_rows(model, 10) is None


def test_where_all_must_be_deterministic_free_memory_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 7)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 4)
    assert free_memory.free_bytes(device) == 2**40 + 3
    try:
        torch.use_deterministic_algorithms(True)
        assert free_memory.free_bytes(device) is None
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert free_memory.free_bytes(device) == 2**40 + 3
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_pass_takes_what_half_of_the_free_memory_holds(free: dict[str, int | None]) -> None:
    """But no fewer tokens than plans count, and no more than a pass gains by."""
    device, token = torch.device("cpu"), 2 * counts.TOKEN_BYTES
    for free["bytes"], tokens in (
        (0, counts.PASS_TOKENS),
        (9000 * token, 9000),
        (9000 * token - 1, 8999),
        (2**60, counts.GPU_PASS_TOKENS),
    ):
        assert pass_tokens(device) == tokens


def test_rows_take_keys_values_and_their_draws(
    model: LlamaForCausalLM, free: dict[str, int | None]
) -> None:
    """Of 30 tokens, in 3 layers 2 heads of 4 numbers for both; twice 8 rows of the vocabulary."""
    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 2)):
        row = 30 * 3 * 2 * 2 * 4 * width + 2 * 8 * 12 * 4
        free["bytes"] = 2 * row * 5 + row
        assert decoding_rows(model.to(dtype), 30) == 5
    free["bytes"] = 0
    assert decoding_rows(model, 30) == 1
    free["bytes"] = 2**60
    assert decoding_rows(model, 30) == counts.GPU_DECODING_ROWS


def _batches(model: LlamaForCausalLM, prompts: Sequence[list[int]]) -> tuple[Samples, list[int]]:
    """Responses, and rows of each batch."""
    rows: list[int] = []
    decode = sampling.decode

    def noted(*arguments: object) -> Samples:
        rows.append(len(arguments[2]))  # type: ignore[arg-type]
        return decode(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "decode", noted)
        generator = torch.Generator().manual_seed(0)
        return sample(model, Tokenizer(), prompts, Sampling(1.0, 6), generator), rows


def test_a_gpu_samples_in_one_batch_if_it_can(
    model: LlamaForCausalLM, free: dict[str, int | None]
) -> None:
    prompts = PROMPTS * 3
    expected, rows = _batches(model, prompts)
    assert rows == [9, 9]
    row = 11 * 3 * 2 * 2 * 4 * 4 + 2 * 8 * 12 * 4
    for fitting, expected_rows in ((100, [18]), (18, [18]), (17, [9, 9]), (6, [6, 6, 6])):
        free["bytes"] = 2 * row * fitting
        found, rows = _batches(model, prompts)
        assert rows == expected_rows
        assert found.responses == expected.responses


def test_ranks_agree_on_what_the_fullest_of_them_can(
    model: LlamaForCausalLM, free: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has as many batches, of what rank 1 has room for."""
    row = 11 * 3 * 2 * 2 * 4 * 4 + 2 * 8 * 12 * 4
    sums: list[list[float]] = []

    def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1:
            tensors[0][1] = 4  # what the other rank adds
            sums.append(tensors[0].tolist())

    free["bytes"] = 2 * row * 100
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "shard", lambda batches: batches[::2])
    monkeypatch.setattr(distributed, "all_reduce_sum", all_reduce_sum)
    _, rows = _batches(model, PROMPTS * 3)
    assert sums == [[100, 4]]
    assert rows == [3, 3, 3]


def test_batches_are_as_many_on_each_rank() -> None:
    alone = [counts.even_sampling_batches(100, 1, rows) for rows in (512, 100, 99, 40)]
    assert alone == [1, 1, 2, 3]
    assert [counts.even_sampling_batches(100, 4, rows) for rows in (512, 25, 24)] == [4, 4, 8]
    assert counts.even_sampling_batches(0, 4, 10) == 0
