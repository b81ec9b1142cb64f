"""A last layer's feed-forward part passes only the tokens whose states are read.

It sees each token alone, and above it nothing else is computed of the others, most of which are of
prompts: of a pair's tokens a scorer reads three. The attention of that layer still needs all keys.
On a CPU only: elsewhere it takes six more launches a step, and what it saves was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_places: dict[nn.Module, Tensor] = {}  # of the layers inside a context


@contextmanager
def feed_forward_at(layer: nn.Module, places: Tensor | None) -> Iterator[None]:
    """Inside, the layer's feed-forward part passes the tokens (n,), each once; others it leaves.

    None: all. So does a layer whose part has another name than `mlp` or takes more than states
    (1, N, H).
    """
    part = getattr(layer, "mlp", None)
    if places is None or part is None or places.device.type != "cpu":
        yield
        return
    whole: list[Tensor] = []

    def select(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named or len(positional) != 1:
            return None
        whole.append(positional[0])
        return (positional[0].index_select(1, places),), named

    def spread(_: nn.Module, __: Any, output: Any) -> Any:
        if not whole:
            return None
        states, *further = output if isinstance(output, tuple) else (output,)
        states = states.new_zeros(whole.pop().shape).index_copy(1, places, states)
        return (states, *further) if isinstance(output, tuple) else states

    handles = [
        part.register_forward_pre_hook(select, with_kwargs=True),
        part.register_forward_hook(spread),
    ]
    _places[layer] = places
    try:
        yield
    finally:
        _places.pop(layer)
        for handle in handles:
            handle.remove()


def current_places(layer: nn.Module) -> Tensor | None:
    """The places of the context that the layer is in, for when it runs again."""
    return _places.get(layer)
