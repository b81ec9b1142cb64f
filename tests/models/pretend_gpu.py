"""A GPU that is none: tensors that say they lie on another device, and are computed on the CPU.

What torch refuses on a real one is refused here: to compute with tensors of both devices, to read
one's memory from Python. From a seed it draws other numbers than the CPU, as a real one does. So a
stage that ends well has put everything where it belongs, and its results equal those of the CPU bit
for bit where all that counts is drawn there.

As an entry of the warm server it runs a job like `trimtab.models.training.entry`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.forked import FORKED
from trimtab.models.nets.device import current_device, set_device

T = TypeVar("T")
NAME = "pretend"
# Of these, the first two read from any device; the others take indices from the CPU.
_MIXING = ("_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_")

# Of what autocast multiplies narrow, as on a real one, that which layers do.
_NARROW = ("linear", "matmul", "mm", "bmm", "addmm", "scaled_dot_product_attention")

_generators: list[torch.Generator] = []  # those of this device; computing, they are the CPU's


class PretendTensor(Tensor):
    """`inner` is the tensor on the CPU that holds the values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        made: PretendTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:
        return f"PretendTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(op, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: PretendTensor) -> None:
        Tensor.data.__set__(self, value)
        self.inner = value.inner

    # What takes the values of a real one out copies them first.
    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner.__reduce_ex__(protocol)


class _Mode(TorchDispatchMode):
    """Catches what makes new tensors; the rest comes by way of PretendTensor."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(op, args, kwargs or {})


def _compute(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run `op` on the CPU; what it makes lies where its arguments do, or where it is asked to."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    asked = kwargs.get("device")
    is_ours = bool(ours) if asked is None else torch.device(asked).type == NAME
    _check_places(op, args, tensors)
    _check_generator(op, kwargs.get("generator"), is_ours)
    _refuse_cumsum(op, ours)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    draws = is_ours and torch.Tag.nondeterministic_seeded in op.tags
    with _own_numbers() if draws and kwargs.get("generator") is None else nullcontext():
        result = op(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if op._schema.name == "aten::copy_":
        return args[0]
    if not is_ours:
        return result
    known = {id(tensor.inner): tensor for tensor in ours}
    return tree_map(lambda leaf: known.get(id(leaf), _wrapped(leaf)), result)


@contextmanager
def _own_numbers() -> Iterator[None]:
    """Inside, torch draws what it would not draw on the CPU, and leaves its generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch.initial_seed() ^ 0x5EED)
        yield


def _check_places(op: Any, args: Any, tensors: Sequence[Tensor]) -> None:
    """Numbers, which have no place, go with both."""
    ours = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    others = [t for t in tensors if not isinstance(t, PretendTensor) and t.dim() > 0]
    name = op._schema.name.removeprefix("aten::")
    may_mix = name in _MIXING and ("copy" in name or isinstance(args[0], PretendTensor))
    assert may_mix or not (ours and others), (
        f"{op}: tensors on {NAME} {[t.shape for t in ours]} and the CPU {[t.shape for t in others]}"
    )


def _check_generator(op: Any, generator: torch.Generator | None, is_ours: bool) -> None:
    if generator is not None:
        belongs = any(generator._cdata == one._cdata for one in _generators)
        assert belongs == is_ours, f"{op}: drawn from a generator of the other device"


def _refuse_cumsum(op: Any, ours: Sequence[Tensor]) -> None:
    """As CUDA does, of floats, where only what is deterministic is allowed."""
    is_strict = torch.are_deterministic_algorithms_enabled()
    if is_strict and "cumsum" in op._schema.name and ours and ours[0].is_floating_point():
        raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")


def _inner(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, PretendTensor) else leaf


def _wrapped(leaf: Any) -> Any:
    return PretendTensor(leaf) if isinstance(leaf, Tensor) else leaf


def _narrow(op: Any) -> Any:
    """The operation as autocast has it: of operands cast from float32."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(leaf: Any) -> Any:
        is_wide = isinstance(leaf, Tensor) and leaf.dtype == torch.float32
        return leaf.to(torch.get_autocast_dtype(NAME)) if is_wide else leaf

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*tree_map(cast, args), **tree_map(cast, kwargs))

    return run


def install() -> None:
    """Make the device known to torch; once a process."""
    _setup_privateuseone_for_python_backend(NAME)
    module = getattr(torch, NAME)
    module.get_rng_state = torch.get_rng_state
    module.set_rng_state = torch.set_rng_state
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    real = torch.Generator

    def generator(device: Any = "cpu") -> torch.Generator:
        made = real("cpu")
        if torch.device(device).type == NAME:
            _generators.append(made)
        return made

    torch.Generator = generator
    inference_mode = torch.inference_mode  # in which there are no subclasses
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else inference_mode(False)
    library = torch.library.Library("aten", "IMPL")
    aten = torch.ops.aten

    def made_by(op: Any) -> Any:
        return lambda *args, **kwargs: _compute(op, args, kwargs)

    def copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        return _compute(aten.copy_.default, (target, source, non_blocking), {})

    library.impl("empty_strided", made_by(aten.empty_strided.default), "PrivateUse1")
    library.impl("empty.memory_format", made_by(aten.empty.memory_format), "PrivateUse1")
    library.impl("_copy_from", copied, "PrivateUse1")
    for name in _NARROW:
        library.impl(name, _narrow(getattr(aten, name).default), "AutocastPrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    install.libraries = library, others  # they last as long as these objects
    _Mode().__enter__()


def run_on_pretended_gpu(function: Callable[..., T], *arguments: Any) -> T:
    """What a function finds in a process whose models are on the device."""
    # Not a fork of this process: where autograd has run, it knows of no further device.
    with ProcessPoolExecutor(1, FORKED, initializer=_use) as pool:
        return pool.submit(function, *arguments).result()


def _use() -> None:
    install()
    set_device(torch.device(NAME, 0))


def main(job_path: str) -> None:
    install()
    from trimtab.models.training import distributed, entry

    real = distributed.all_reduce_sum

    def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
        places = {tensor.device.type for tensor in tensors}
        assert places <= {NAME}, f"ranks of GPUs cannot sum what lies on {places}"
        real(tensors)

    distributed.all_reduce_sum = all_reduce_sum

    entry.main(job_path)
    is_strict = os.environ.get(entry.DETERMINISTIC) == "1"
    assert torch.are_deterministic_algorithms_enabled() is is_strict
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is is_strict
    assert current_device().type == NAME and torch.get_default_device().type == "cpu"
