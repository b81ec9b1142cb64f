"""What the project asks of vLLM, by our own loop: for machines that do not have vLLM itself.

It refuses what vLLM 0.32 refuses, or would do wrong in silence: the environment of another process
group, sleep mode beside expandable segments, work while it sleeps, other orders of waking up.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from trimtab.models.nets.generation import Sampling, decode
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs


class SamplingParams:
    """One prompt's; arguments that vLLM has and nobody here gives are refused."""

    def __init__(
        self,
        seed: int,
        temperature: float,
        top_p: float,
        repetition_penalty: float,
        max_tokens: int,
        stop_token_ids: list[int],
        detokenize: bool,
        logprobs: int,
    ) -> None:
        assert (detokenize, logprobs) == (False, 0)
        draws = torch.Generator().manual_seed(seed)
        self.draws = torch.rand(max_tokens, generator=draws)
        self.sampling = Sampling(temperature, max_tokens, top_p, repetition_penalty)
        (end,) = stop_token_ids
        self.special = SimpleNamespace(eos_token_id=end, pad_token_id=0)


class LLM:
    def __init__(
        self,
        model: str,
        dtype: str,
        logprobs_mode: str,
        max_model_len: int,
        enable_sleep_mode: bool,
        **_: Any,
    ) -> None:
        assert logprobs_mode == "raw_logprobs"
        foreign = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & {*os.environ}
        assert not foreign, f"{foreign} are of a process group that this engine is not in"
        assert "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ""), "it would take the first GPU"
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            is_expandable = "expandable_segments:True" in os.environ.get(name, "")
            assert not (enable_sleep_mode and is_expandable), "no expandable segments beside a pool"
        print("what vLLM says on standard output")
        self.dtype = getattr(torch, dtype)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=self.dtype).eval()
        assert max_model_len == self.model.config.max_position_embeddings
        self.can_sleep, self.gone = enable_sleep_mode, set[str]()

    def sleep(self, level: int) -> None:
        assert self.can_sleep and level == 2 and not self.gone
        self.gone = {"weights", "kv_cache"}
        for parameter in self.model.parameters():
            parameter.data.fill_(float("nan"))

    def wake_up(self, tags: list[str]) -> None:
        assert {*tags} <= self.gone, f"{tags} are awake"
        assert tags == ["weights"] or "weights" not in self.gone, "both would be there twice"
        assert tags == ["weights"] or not self._has_no_weights(), "there would be no room for them"
        self.gone -= {*tags}

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        assert method == "reload_weights" and "weights" not in self.gone, "an illegal memory access"
        fresh = AutoModelForCausalLM.from_pretrained(kwargs["weights_path"], dtype=self.dtype)
        self.model.load_state_dict(fresh.state_dict())

    def _has_no_weights(self) -> bool:
        return any(bool(value.isnan().any()) for value in self.model.parameters())

    def reset_prefix_cache(self) -> None:
        assert not self.gone, "an illegal memory access"

    @torch.no_grad()
    def generate(
        self, prompts: list[dict[str, Any]], params: list[SamplingParams], use_tqdm: bool
    ) -> list[SimpleNamespace]:
        assert not self.gone, f"{self.gone} are not there: the engine sleeps"
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        draws = torch.stack([each.draws for each in params])
        one = params[0]
        found = decode(self.model, one.special, ids, one.sampling, draws).responses  # type: ignore[arg-type]
        rows = [Candidates(prompt, (got,)) for prompt, got in zip(ids, found, strict=True)]
        logprobs, _, _ = response_logprobs(self.model, pack(rows))
        return [_output(*pair) for pair in zip(found, logprobs.tolist(), strict=True)]


def _output(tokens: list[int], logprobs: list[float]) -> SimpleNamespace:
    pairs = zip(tokens, logprobs, strict=False)  # those behind a response's end are none
    noted = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=noted)])
