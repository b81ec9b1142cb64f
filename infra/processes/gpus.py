"""The GPUs of this host, and holding some of them: trainers of one host never share one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from trimtab.infra.processes.launch import wait_unless_stopped
from trimtab.infra.processes.locks import hold_slots

DEVICES = Path("/dev")
WSL = Path("/usr/lib/wsl/lib")  # where WSL2 puts the Windows driver's libraries


class TooFewGPUsError(ValueError):
    """A trainer that takes more GPUs than its host has."""


def gpus_of_host(env: Mapping[str, str], devices: Path = DEVICES) -> tuple[str, ...]:
    """Names of the GPUs that trainers started here may use.

    CUDA_VISIBLE_DEVICES names them where it is set (empty: none). Otherwise they are all GPUs with
    a device file, which the NVIDIA driver or a container's runtime makes, by number.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return tuple(name for name in names if name not in ("", "-1"))
    files = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return tuple(str(number) for number in range(len(files)))


def unused_gpus(
    env: Mapping[str, str], devices: Path = DEVICES, wsl: Path = WSL, build: str | None = None
) -> str | None:
    """A line about GPUs that torch can compute on and `gpus_of_host` does not name; None: none.

    GPUs of WSL2 and of AMD's driver have no device file each, so that they cannot be counted.
    `build` is the installed torch's, such as "cpu" or "rocm7.1"; PyPI's, for CUDA, is "".
    """
    if "CUDA_VISIBLE_DEVICES" in env or gpus_of_host(env, devices):
        return None
    build = version("torch").partition("+")[2] if build is None else build
    if build != "cpu" and (devices / "dxg").exists() and (wsl / "libcuda.so.1").exists():
        kind = "WSL2"
    elif build.startswith("rocm") and (devices / "kfd").exists():
        kind = "ROCm"
    else:
        return None
    return (
        f"this host has a GPU ({kind}) that trainers do not use: they cannot see how many there "
        "are. CUDA_VISIBLE_DEVICES=0 lets them use the first; empty, it means the CPU"
    )


def memory_of(gpus: Sequence[str]) -> int | None:
    """Bytes of memory of the smallest of these GPUs, as the driver's `nvidia-smi` says.

    None if it cannot be read.
    """
    try:
        return min(int(line) for line in _driver_says("memory.total", gpus)) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def name_of(gpus: Sequence[str]) -> str | None:
    """The name of these GPUs, as the driver's `nvidia-smi` says; None if not all the same."""
    try:
        names = set(_driver_says("name", gpus))
    except (OSError, subprocess.SubprocessError):
        return None
    return names.pop() if len(names) == 1 else None


def _driver_says(field: str, gpus: Sequence[str]) -> list[str]:
    """A line for each of the GPUs."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        [*command, "-i", ",".join(gpus)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


@contextmanager
def hold_gpus(gpus: Sequence[str], count: int, locks: Path) -> Iterator[tuple[str, ...]]:
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
    with hold_slots(list(files), count, wait=wait_unless_stopped) as held:
        yield tuple(files[path] for path in held)
