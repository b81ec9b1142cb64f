"""What the project asks of vLLM, by our own loop: for machines that do not have vLLM itself."""

from __future__ import annotations

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
    def __init__(self, model: str, logprobs_mode: str, max_model_len: int, **_: Any) -> None:
        assert logprobs_mode == "raw_logprobs"
        print("what vLLM says on standard output")
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        assert max_model_len == self.model.config.max_position_embeddings

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        assert method == "reload_weights"
        fresh = AutoModelForCausalLM.from_pretrained(kwargs["weights_path"])
        self.model.load_state_dict(fresh.state_dict())

    def reset_prefix_cache(self) -> None:
        """There is none."""

    @torch.no_grad()
    def generate(
        self, prompts: list[dict[str, Any]], params: list[SamplingParams], use_tqdm: bool
    ) -> list[SimpleNamespace]:
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
