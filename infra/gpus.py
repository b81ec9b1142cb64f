"""The GPUs of this host, and holding some of them: trainers of one host never share one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from infra.launch import wait_unless_stopped
from infra.locks import some_of

DEVICES = Path("/dev")


class TooFewGPUsError(ValueError):
    """A trainer that takes more GPUs than its host has."""


def gpus_of_host(env: Mapping[str, str], devices: Path = DEVICES) -> tuple[str, ...]:
    """Names of the GPUs that trainers started here may use.

    Those in CUDA_VISIBLE_DEVICES where it is set (empty: none), else all whose device file the
    NVIDIA driver, or a container's runtime, has put there, by number.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return tuple(name for name in names if name not in ("", "-1"))
    files = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return tuple(str(number) for number in range(len(files)))


@contextmanager
def own_gpus(gpus: Sequence[str], count: int, locks: Path) -> Iterator[tuple[str, ...]]:
    """Hold `count` of a host's `gpus`, waiting for them as long as it takes; none if it has none.

    `locks` is the folder that all trainers of the host keep their locks in. Raises TooFewGPUsError,
    and TrainerStoppedError where it is asked to stop meanwhile.
    """
    if not gpus or count == 0:
        yield ()
        return
    if count > len(gpus):
        raise TooFewGPUsError(
            f"the stage's ranks (num_ranks) take a GPU each, {count} in all, and this host "
            f"has {len(gpus)} ({', '.join(gpus)}): lower their number, or use a larger host"
        )
    files = {locks / "gpus" / f"{name.replace('/', '_')}.lock": name for name in gpus}
    with some_of(list(files), count, wait=wait_unless_stopped) as held:
        yield tuple(files[path] for path in held)
