"""CUDA graphs without CUDA: what recording keeps of a function is replayed operation by operation.

As a graph's, an operation's arguments are those it was recorded with: tensors at their addresses,
and numbers of the host as they were. What recording computes is taken back, and what it made is
poisoned, as CUDA records without computing. What waits for the device is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trimtab.models.nets import static_steps

_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}
_FREE = {"empty", "empty_like", "empty_strided", "new_empty"}  # launch nothing


def waits(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host would wait for the device, as values come from there or go there."""
    name = op._schema.name.removeprefix("aten::")
    if name in _WAITS:
        return True
    if name == "index" or name.startswith(("index_put", "_index_put")):
        return any(i is not None and i.dtype == torch.bool for i in args[1])
    places = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    asked = kwargs.get("device")
    return len(places | ({torch.device(asked)} if asked and places else set())) > 1


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if waits(op, args, kwargs or {}):
            raise RuntimeError(f"{op} waits for the device")
        return op(*args, **(kwargs or {}))


class Recording(_Refusing):
    """Operations with their arguments and results, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._made: set[int] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value, argument in zip(args, op._schema.arguments, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and _address(value) not in self._made:
                self._before.append((value, value.clone()))
        result = super().__torch_dispatch__(op, types, args, kwargs)
        self.calls.append((op, args, kwargs, result))
        if not _is_alias(op):
            self._made |= {_address(leaf) for leaf in _tensors(result)}
        return result

    def end(self) -> None:
        """Take back what was computed."""
        for value, before in reversed(self._before):
            value.copy_(before)
        for op, _, _, result in self.calls:
            for leaf in () if _is_alias(op) else _tensors(result):
                leaf.fill_(torch.nan if leaf.is_floating_point() else 1)

    def replay(self) -> None:
        """Run all again, into the results that were recorded."""
        for op, args, kwargs, result in self.calls:
            again = op(*args, **kwargs)
            if not _is_alias(op):
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    old.copy_(new)

    @property
    def launches(self) -> Counter[str]:
        """Kernels by operation; views and memory to be written take none."""
        names = [
            op._schema.name.removeprefix("aten::") for op, *_ in self.calls if not _is_view(op)
        ]
        return Counter(name for name in names if name not in _FREE)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_alias(op: Any) -> bool:
    """Whether what an operation returns are its arguments, or views of them."""
    return any(each.alias_info is not None for each in op._schema.returns)


def _is_view(op: Any) -> bool:
    aliases = [each.alias_info for each in op._schema.returns if each.alias_info is not None]
    is_unsafe = op._schema.name in ("aten::_unsafe_view", "aten::_reshape_alias")
    return is_unsafe or any(not each.is_write for each in aliases)


@contextmanager
def pretended_graphs() -> Iterator[list[tuple[Recording, Counter[str]]]]:
    """A context in which decoding on any device records graphs: yields each with its `replays`."""
    recordings: list[tuple[Recording, Counter[str]]] = []

    def record(function: Callable[[], None], pool: Any) -> Callable[[], None]:
        recording, times = Recording(), Counter[str]()
        with recording:
            function()
        recording.end()
        recordings.append((recording, times))

        def replay() -> None:
            times["replays"] += 1
            recording.replay()

        return replay

    class Graphs(static_steps.Graphs):
        def __init__(self, device: torch.device, are_wanted: bool = True) -> None:
            super().__init__(device)
            self.are_used = are_wanted

        def replayed(self, *functions: Callable[[], None]) -> list[static_steps.Replayed]:
            return [static_steps.Replayed(function, self, None) for function in functions]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_steps, "record", record)
        patch.setattr(static_steps, "refused_waiting", _Refusing)
        patch.setattr("trimtab.models.nets.generation.Graphs", Graphs)
        yield recordings
