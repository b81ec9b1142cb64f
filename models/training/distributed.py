"""Data parallelism: ranks with the same parameters share each batch and sum their gradients.

Ranks are processes of one host, forked by the trainer. After `start` they sum in memory that all of
them map: a million numbers in 0.7 ms on two cores, where gloo takes 7 ms and a whole step of the
recipe `smoke` 13 ms. After `start_group` and `join_group` they sum with torch.distributed: over
gloo, on GPUs over NCCL. A trainer by itself is rank 0 of one rank, and nothing here does anything.

`use_gpu` gives a rank its GPU, which is its `current_device` from then on.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn

from trimtab.models.nets import counts
from trimtab.models.nets.device import current_device, set_device
from trimtab.models.training import signals

T = TypeVar("T")

HOST = "127.0.0.1"
# How long ranks of a group wait for one: the first asks a judge or writes a large checkpoint alone.
# A rank that has died is noticed by its parent at once, so that this ends a deadlock only.
TIMEOUT = timedelta(hours=12)

_WINDOW = 1 << 20  # floats that are added up at a time
_REAP_SECONDS = 5.0
_BLAME_SECONDS = 1.0


@dataclass
class _Ranks:
    """windows: (2, ranks, _WINDOW), used in turns. links: to the first rank, or from it to all.

    is_group: whether they add up with torch.distributed instead. listener: where they will meet.
    """

    count: int = 1
    number: int = 0
    windows: Tensor | None = None
    links: Sequence[socket.socket] = ()
    turn: int = 0
    is_group: bool = False
    listener: socket.socket | None = None


_ranks = _Ranks()


def start(count: int) -> None:
    """Become `count` ranks: this process forks the others, which die with it.

    To be called before torch has started any thread.
    """
    global _ranks
    if count == 1:
        return
    shared = mmap.mmap(-1, 2 * count * _WINDOW * torch.float32.itemsize)
    windows = torch.frombuffer(shared, dtype=torch.float32).view(2, count, _WINDOW)
    links: list[socket.socket] = []
    for number in range(1, count):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            signals.die_with_parent()
            for link in (ours, *links):
                link.close()
            _ranks = _Ranks(count, number, windows, [theirs])
            return
        theirs.close()
        links.append(ours)
    _ranks = _Ranks(count, 0, windows, links)


def start_group(count: int) -> None:
    """Fork `count` ranks, which are to `join_group`; this process waits, and ends as they do.

    A rank that fails ends the others. All die with this process. To be called before torch has
    started any thread or has used a GPU.
    """
    global _ranks
    listener = socket.create_server((HOST, 0))
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            signals.die_with_parent()
            # Read by DeepSpeed and by libraries that log on the first rank only.
            names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count}
            os.environ.update({name: str(value) for name, value in names.items()})
            _ranks = _Ranks(count, number, listener=listener)
            return
        children.append(child)
    listener.close()
    # A SIGTERM is for the ranks, which save first. One to the group they have had already.
    signal.signal(signal.SIGTERM, lambda *_: _kill(children, signal.SIGTERM))
    _wait_and_exit_like(children)


def join_group() -> None:
    """Let the ranks that `start_group` forked find each other, on their `current_device`."""
    global _ranks
    count, number, listener = _ranks.count, _ranks.number, _ranks.listener
    assert listener is not None
    host, port = listener.getsockname()
    # Of the listening socket: torch would choose a port that another may take, on all interfaces.
    descriptor = listener.detach() if number == 0 else None
    store = torch.distributed.TCPStore(
        host, port, count, is_master=number == 0, master_listen_fd=descriptor
    )
    listener.close()
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The defaults rather than an argument: DeepSpeed makes groups of its own and gives them none.
    c10d = torch.distributed.distributed_c10d
    c10d.default_pg_timeout = c10d.default_pg_nccl_timeout = TIMEOUT
    backend = torch.distributed.get_default_backend_for_device(current_device())
    torch.distributed.init_process_group(backend, store=store, rank=number, world_size=count)
    _ranks = _Ranks(count, number, is_group=True)


def world_size() -> int:
    """How many ranks there are."""
    return _ranks.count


def rank() -> int:
    """The number of this rank, from 0."""
    return _ranks.number


def is_rank_zero() -> bool:
    """Whether this is the rank that writes metrics, checkpoints and outputs."""
    return _ranks.number == 0


def shard(items: Sequence[T]) -> Sequence[T]:
    """This rank's items: every `world_size`-th, starting at its own number."""
    return items[_ranks.number :: _ranks.count]


def rank_batch(batch: Sequence[int]) -> list[int]:
    """This rank's part of a batch in order of length."""
    return rank_batches(batch)[_ranks.number]


def rank_batches(batch: Sequence[int]) -> list[list[int]]:
    """Every rank's rows of a batch in order of length, as `counts.shares` assigns them.

    A batch with fewer rows than ranks goes to every rank whole: means over ranks stay the same.
    """
    return [list(share) for share in counts.shares(batch, _ranks.count)]


def replication(batch: Sequence[object]) -> int:
    """How many ranks compute each row of a batch: all if it has fewer rows than ranks, else 1."""
    return _ranks.count if len(batch) < _ranks.count else 1


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor by its sum over ranks (float32), the same to the bit on each of them.

    The tensors are contiguous.
    """
    if _ranks.count == 1 or not tensors:
        return
    if not _ranks.is_group:
        for pieces in _bundles(tensors, _WINDOW):
            _add_up_in_window(pieces)
        return
    for pieces in _bundles(tensors, counts.BUCKET):
        flat = torch.cat(pieces)
        torch.distributed.all_reduce(flat)
        for piece, total in zip(pieces, flat.split([len(piece) for piece in pieces]), strict=True):
            piece.copy_(total)


def _bundles(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Flat pieces of all tensors in order, at a time as many as have `size` numbers together."""
    pieces: list[Tensor] = []
    room = size
    for tensor in tensors:
        rest = tensor.view(-1)
        while len(rest) > 0:
            pieces.append(rest[:room])
            rest, room = rest[room:], room - len(pieces[-1])
            if room == 0:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces


def _add_up_in_window(pieces: Sequence[Tensor]) -> None:
    assert _ranks.windows is not None
    # A rank is never more than one turn ahead: two windows are enough.
    window = _ranks.windows[_ranks.turn % 2]
    sizes = [len(piece) for piece in pieces]
    places = [values[: sum(sizes)].split(sizes) for values in window]
    for piece, place in zip(pieces, places[_ranks.number], strict=True):
        place.copy_(piece)
    _meet()
    for piece, first, second, *others in zip(pieces, *places, strict=True):
        torch.add(first, second, out=piece)
        for other in others:
            piece += other
    _ranks.turn += 1


def any_rank(flag: bool) -> bool:
    """Whether the argument is true on any rank; a barrier for all ranks."""
    if _ranks.count == 1:
        return flag
    total = torch.tensor(float(flag), device=current_device())
    all_reduce_sum([total])
    return bool(total)


def barrier() -> None:
    """Wait until all ranks are here."""
    any_rank(False)


def broadcast_parameters(model: nn.Module) -> None:
    """Replace every rank's parameters of a group by the first rank's, which alone must be whole.

    Tied ones stay tied.
    """
    parameters = dict(model.named_parameters())
    described = [{name: (p.shape, p.dtype, p.requires_grad) for name, p in parameters.items()}]
    torch.distributed.broadcast_object_list(described)
    if not is_rank_zero():
        for parameter in parameters.values():  # what is left of them may be as large
            parameter.data = parameter.data.new_empty(0)
    new, device = {}, current_device()
    for name, (shape, dtype, requires_grad) in described[0].items():
        if is_rank_zero():
            value = parameters[name].data
        else:
            value = torch.empty(shape, dtype=dtype, device=device)
        torch.distributed.broadcast(value, 0)
        new[id(parameters[name])] = nn.Parameter(value, requires_grad)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, new[id(parameter)])


def leave() -> None:
    """End all ranks but the first, which goes on alone."""
    global _ranks
    barrier()
    if _ranks.is_group:
        torch.distributed.destroy_process_group()
    if not is_rank_zero():
        raise SystemExit(0)
    _ranks = _Ranks()


def _meet() -> None:
    """A barrier: returns once all ranks have called it."""
    try:
        if is_rank_zero():
            arrived = [link.recv(1) for link in _ranks.links]
            if not all(arrived):
                _exit_like_lost_rank()
        for link in _ranks.links:
            link.send(b".")
        if not is_rank_zero() and not _ranks.links[0].recv(1):
            raise SystemExit(1)
    except OSError:
        _exit_like_lost_rank()


def _exit_like_lost_rank() -> NoReturn:
    """Another rank is gone: it was killed, and so is this; or it raised, and the log has why."""
    deadline = time.monotonic() + _REAP_SECONDS
    with suppress(ChildProcessError):  # those who are not the first have no children
        while time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid and os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            if pid:
                break
            time.sleep(0.01)
    raise SystemExit(1)


def _wait_and_exit_like(children: Iterable[int]) -> NoReturn:
    """Wait for the ranks, and exit as the first that failed or stopped; the rest are killed later.

    Later, because a rank that misses a killed one may raise first. No rank stops before rank 0 has
    saved.
    """
    left, code, deadline = set(children), 0, math.inf
    while left and code >= 0 and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG if code else 0)
        if not child:
            time.sleep(0.01)
            continue
        left.discard(child)
        ended = os.waitstatus_to_exitcode(status)
        if ended and code in (0, signals.EXIT_STOPPED):
            code = ended
            seconds = _REAP_SECONDS if ended == signals.EXIT_STOPPED else _BLAME_SECONDS
            deadline = time.monotonic() + seconds
    _kill(left, signal.SIGKILL)
    for rank in left:
        os.waitpid(rank, 0)  # only then is its GPU's memory free
    if code < 0:
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


def _kill(ranks: Iterable[int], number: int) -> None:
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.kill(rank, number)


# Settings of torch's allocator on a GPU: since torch 2.9, and before.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def limit_visible_gpus(gpus: Sequence[str]) -> None:
    """Let this process see the GPUs of these names (as in CUDA_VISIBLE_DEVICES) and no others.

    To be called before CUDA is asked for anything.
    """
    os.environ[VISIBLE] = ",".join(gpus)
    # Micro batches differ in length: of fixed segments torch held twice what was in tensors.
    if gpus and not any(os.environ.get(name) for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"


def use_gpu() -> None:
    """From now on compute on this rank's GPU of those that it sees.

    Raises ValueError where torch sees none.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise ValueError(
            f"{VISIBLE} is {os.environ.get(VISIBLE)!r}, but torch {torch.__version__} sees no GPU: "
            f"install a build of torch for it, or set {VISIBLE}= where the stages are started from "
            "to compute on the CPU"
        )
    index = int(os.environ.get("LOCAL_RANK", "0"))
    # cuDNN's attention plans anew for every length, which takes longer than the attention, and
    # fails for some (seen with torch 2.11 on an H200).
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.accelerator.set_device_index(index)
    set_device(torch.device(device.type, index))
