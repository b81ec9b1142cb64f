"""Logits of hidden states, and from them log-probabilities and entropies of tokens.

With narrow products on a GPU the head multiplies bfloat16 operands and adds in float32: logits are
float32 and are not rounded. bfloat16 has eight bits, so that a rounded operand is off by a factor
of at most 1 + 2^-8, and a logit by at most (2^-7 + 2^-16) sum_k |h_k w_k|; in every pass alike, so
that PPO's ratio is 1 until a weight changes. Logits in bfloat16, as the fused kernels of TRL and
liger-kernel keep them, would be rounded once more, each by up to 2^-8 of itself: by .06 at a logit
of 30, which the ratio of two passes has twice.

The obvious way to log-probabilities and entropies (`trimtab.models.functional.masked`: logprobs_of,
entropy_of) goes a dozen times over a tensor as wide as the vocabulary and keeps several of them.
This one passes over memory once. It takes a few rows at a time, as many as a core's cache holds or
as keep a GPU busy, and leaves the probabilities in the logits' place: they are all that the
gradient needs. On CUDA TRL's kernel does so in one launch each way, which reads logits once and
writes nothing but their gradient, if it is installed (extra `liger`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from trimtab.models.nets.fused import compiles_kernels
from trimtab.models.nets.precision import has_narrow_products

NUMBERS_AT_ONCE = 2**17  # half a mebibyte: what is computed from it stays in a core's cache
NUMBERS_ON_GPU = 2**25  # 128 MiB: a dozen launches for hundreds of rows, not for one
_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()  # from torch 2.8 on


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits (n, V), nats, float32 at least, of last hidden states (n, H)."""
    head = model.get_output_embeddings()
    if has_narrow_products() and hidden.device.type != "cpu" and type(head) is nn.Linear:
        head.__class__ = Head
    # The module itself is called: under ZeRO 3 its weight is there only then.
    logits: Tensor = head(hidden, is_narrow=True) if isinstance(head, Head) else head(hidden)
    scale, cap = _scale(model), getattr(model.config, "final_logit_softcapping", None)
    if scale != 1:
        logits = logits * scale
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _scale(model: PreTrainedModel) -> float:
    """By what a model multiplies its head's output: Cohere, HyperCLOVA X, Granite."""
    config = model.config
    if config.model_type.startswith("cohere"):
        return float(config.logit_scale)
    scaling = float(getattr(config, "logits_scaling", 1.0))
    return scaling if config.model_type == "hyperclovax" else 1 / scaling


class Head(nn.Linear):
    """A language-model head that multiplies narrow where it is asked to; decoding does not ask."""

    def forward(self, hidden: Tensor, is_narrow: bool = False) -> Tensor:
        """hidden (n, H) -> logits (n, V)."""
        if not is_narrow:
            return super().forward(hidden)
        logits: Tensor = NarrowProduct.apply(hidden, self.weight)
        return logits if self.bias is None else logits + self.bias


class NarrowProduct(torch.autograd.Function):
    """hidden (n, H), weight (V, H) -> hidden weight^T (n, V), float32; and so both gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        """Both in bfloat16."""
        operands = hidden.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(*operands)
        ctx.dtypes = hidden.dtype, weight.dtype
        return _product(operands[0], operands[1].t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Of both, in the data types that they had."""
        hidden, weight = ctx.saved_tensors
        gradient = gradients[0].bfloat16()
        of_hidden, of_weight = None, None
        if ctx.needs_input_grad[0]:
            of_hidden = _product(gradient, weight).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            of_weight = _product(gradient.t(), hidden).to(ctx.dtypes[1])
        return of_hidden, of_weight


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left (n, k) right (k, m) in bfloat16 -> (n, m), added up and kept in float32."""
    # Before Ampere it is refused.
    if left.is_cuda and _HAS_OUT_DTYPE and torch.cuda.get_device_capability(left.device) >= (8, 0):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # also TF32 holds these operands as they are


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
    @once_differentiable
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
            p = probabilities[part]
            of_entropy = None
            if entropy_gradient is not None:
                of_entropy = torch.special.entr(p) - p * entropies[part, None]
                of_entropy *= entropy_gradient[part, None] / ctx.temperature
            # From here on p holds the gradient in the same memory.
            p.mul_(-scaled[part]).scatter_add_(1, tokens[part, None], scaled[part])
            if of_entropy is not None:
                p += of_entropy
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
