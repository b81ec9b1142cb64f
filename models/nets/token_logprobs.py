"""Log-probabilities and entropies of tokens from their logits, in one pass over memory.

The obvious way (`trimtab.models.functional.masked`: logprobs_of, entropy_of) goes a dozen times
over a tensor as wide as the vocabulary and keeps several of them. This one takes a few rows at a
time, as many as a core's cache holds or as keep a GPU busy, and leaves the probabilities in the
logits' place: they are all that the gradient needs.

On CUDA TRL's kernel does so in one launch each way, which reads logits once and writes nothing but
their gradient, if it is installed (extra `liger`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.models.nets.fused import compiles_kernels

NUMBERS_AT_ONCE = 2**17  # half a mebibyte: what is computed from it stays in a core's cache
NUMBERS_ON_GPU = 2**25  # 128 MiB: a dozen launches for hundreds of rows, not for one


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature) of the tokens, and the distributions' entropies.

    logits: (n, V), finite, nats; they may be overwritten, and are computed in float32 at least.
    tokens: (n,) long in [0, V). Returns (n,), (n,), nats; gradients pass through both.
    """
    kernel = one_launch() if compiles_kernels(logits.device) else None
    if kernel is not None:
        return kernel(logits, tokens, temperature)
    logprobs, entropies = _TokenLogprobs.apply(logits, tokens, temperature)
    return logprobs, entropies


@cache
def one_launch() -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    """`token_logprobs` by TRL's kernel in Triton, for at most float32; None without it."""
    try:
        from trl.kernels import selective_log_softmax_and_entropy as kernel  # from TRL 1.16 on
    except ImportError:
        return None
    return kernel


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        wide = logits.float() if logits.dtype.itemsize < torch.float32.itemsize else logits
        logprobs, entropies = wide.new_empty(len(wide)), wide.new_empty(len(wide))
        numbers = NUMBERS_AT_ONCE if wide.device.type == "cpu" else NUMBERS_ON_GPU
        rows = max(1, numbers // wide.shape[1])
        for start in range(0, len(wide), rows):
            part = slice(start, start + rows)
            logprobs[part], entropies[part] = _replace_by_probabilities(
                wide[part], tokens[part], temperature
            )
        ctx.save_for_backward(wide, tokens, entropies)
        ctx.temperature, ctx.rows, ctx.dtype = temperature, rows, logits.dtype
        ctx.set_materialize_grads(False)  # an entropy that no loss has in it costs nothing
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, gradient: Tensor | None, entropy_gradient: Tensor | None
    ) -> tuple[Tensor, None, None]:
        """Where p was kept: d log p(token) / d logits = (one-hot(token) - p) / temperature.

        And dH / d logits = -p (log p + H) / temperature.
        """
        probabilities, tokens, entropies = ctx.saved_tensors
        scaled = torch.zeros_like(entropies) if gradient is None else gradient / ctx.temperature
        scaled = scaled[:, None]
        for start in range(0, len(tokens), ctx.rows):
            part = slice(start, start + ctx.rows)
            found = probabilities[part]
            of_entropy = None
            if entropy_gradient is not None:
                of_entropy = torch.special.entr(found) - found * entropies[part, None]
                of_entropy *= entropy_gradient[part, None] / ctx.temperature
            found.mul_(-scaled[part]).scatter_add_(1, tokens[part, None], scaled[part])
            if of_entropy is not None:
                found += of_entropy
        return probabilities.to(ctx.dtype), None, None


def _replace_by_probabilities(
    logits: Tensor, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens and entropies; `logits` become probabilities, in place."""
    logits -= logits.amax(1, keepdim=True)
    if temperature != 1.0:
        logits /= temperature
    picked = logits.gather(1, tokens[:, None])[:, 0]
    exponentials = logits.exp()
    sums = exponentials.sum(1)
    # H = log sum_v e^l_v - sum_v p_v l_v
    mean_logit = torch.linalg.vecdot(exponentials, logits) / sums
    torch.div(exponentials, sums[:, None], out=logits)
    log_sums = sums.log()
    return picked - log_sums, log_sums - mean_logit
