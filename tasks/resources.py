"""Resources of a stage: cores, as threads or ranks, and devices.

GPU slots are a global concurrency limit of the Prefect server that trainers take a slot of.
`trimtab deploy --gpus N` makes it; without it nothing is limited. It is taken around the trainer,
not around the task: a stage that is found in the store, or waits for another, holds no GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from httpx import HTTPStatusError, TransportError
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from pydantic import BaseModel

from trimtab.infra.prefect.server import EMBEDDED_VARIABLE
from trimtab.infra.processes.launch import wait_unless_stopped
from trimtab.infra.settings import Settings
from trimtab.models.config.training import TrainerConfig, trainer_of

GPU_SLOTS = "trimtab-gpu"
# The shortest lease Prefect grants; that of a holder that died runs out by itself.
LEASE_SECONDS = 60.0
TURN_SECONDS = 5.0
TOO_MANY = "Slots requested is greater than the limit"


class Slot(NamedTuple):
    """The position of a stage among `number` similar stages that run at once, from 0."""

    position: int
    number: int


@dataclass(frozen=True)
class Resources:
    """The cores that a stage asks for.

    slot: its share of them among similar stages that run at once; None: one core.
    by_ranks: several cores are a rank each, rather than threads of one process, unless the machine
    has GPUs or the configuration a number of ranks.
    is_patient: it starts only while no other stage waits for a core.
    """

    slot: Slot | None = None
    by_ranks: bool = False
    is_patient: bool = False


ALONE = Slot(0, 1)
ONE_CORE = Resources()
ALL_CORES = Resources(ALONE)


class Share(NamedTuple):
    """A stage's ranks, the threads of each, and its GPUs, or slots for them, in all.

    is_patient: as in `Resources`.
    """

    num_threads: int = 1
    num_ranks: int = 1
    num_devices: int = 0
    is_patient: bool = False


ONE_THREAD = Share()


def share_of(
    settings: Settings, config: BaseModel, resources: Resources, *, takes_gpu: bool
) -> Share:
    """The share of a stage of the machine that `settings` describe."""
    trainer = trainer_of(config)
    shared = trainer or config
    # A stage on a CPU may have the configuration of one that samples.
    ranks = getattr(shared, "ranks", 1) if takes_gpu else 1
    # DeepSpeed's ranks count as if they had a GPU each also where there is none.
    has_gpus = settings.gpus or (trainer is not None and trainer.zero is not None)
    num_devices = (ranks if has_gpus else 1) if takes_gpu else 0
    threads = max(1, cores_of(resources.slot, settings.max_parallel) // ranks)
    is_free = getattr(shared, "num_ranks", "auto") == "auto"
    if resources.by_ranks and not has_gpus and is_free:
        ranks, threads = _auto_ranks(trainer, threads)
    return Share(threads, ranks, num_devices, resources.is_patient)


def _auto_ranks(trainer: TrainerConfig | None, cores: int) -> tuple[int, int]:
    """Ranks, and threads of each, on so many cores: a rank a core, but none without rows.

    Where a batch has fewer rows than there are ranks, each would pass all of them.
    """
    rows = getattr(trainer, "batch_size", None) or getattr(trainer, "train_batch", None) or cores
    ranks = min(cores, rows)
    return ranks, cores // ranks


def cores_of(slot: Slot | None, cores: int) -> int:
    """One core for each of similar stages, as often as they fill the machine; the rest share it.

    Five on two cores: 1, 1, 1, 1 and 2. Three on eight cores: 2 each.
    """
    if slot is None:
        return 1
    rest = slot.number % cores
    return cores // rest if slot.position >= slot.number - rest else 1


class SlotsError(ValueError):
    """A stage that takes more GPU slots than there are."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of Prefect's is more than that a turn was over before a slot was free."""
    return "raised TimeoutError" not in record.getMessage()


logging.getLogger("prefect._internal.concurrency").addFilter(_is_news)


def _is_outage(error: BaseException | None) -> bool:
    """Whether the server, or its database, is away for a while."""
    if isinstance(error, HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, TransportError)


@contextmanager
def gpu_slots(count: int) -> Iterator[None]:
    """Hold slots, none or more, waiting for them as long as it takes.

    A command's own server has none: the host's locks (trimtab.infra.processes.gpus) do.

    It waits in short turns, so that a flow can be stopped meanwhile, and through an outage of the
    server or its database. A renewal that fails in an outage does not stop training: the host's own
    slots still hold. Raises SlotsError for more slots than there are.
    """
    with ExitStack() as held:
        while count and EMBEDDED_VARIABLE not in os.environ:
            try:
                held.enter_context(
                    concurrency(
                        GPU_SLOTS,
                        occupy=count,
                        timeout_seconds=TURN_SECONDS,
                        lease_duration=LEASE_SECONDS,
                        raise_on_lease_renewal_failure=False,
                    )
                )
                break
            except TimeoutError:
                pass
            except ConcurrencySlotAcquisitionError as error:
                if TOO_MANY in str(error.__cause__):
                    raise SlotsError(
                        f"the stage's ranks (num_ranks) take {count} GPU slots, and there are "
                        "fewer: lower their number, or make more slots with "
                        f"`trimtab deploy --gpus {count}`"
                    ) from None
                if not _is_outage(error.__cause__):
                    raise
            wait_unless_stopped()
        yield
