"""GPU slots: a global concurrency limit of the Prefect server that trainers take a slot of.

`trimtab deploy --gpus N` makes it; without it nothing is limited. It is taken around the trainer,
not around the task: a stage that is found in the store, or waits for another, holds no GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from httpx import HTTPStatusError, TransportError
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency

from trimtab.infra.prefect.server import EMBEDDED_VARIABLE
from trimtab.infra.processes.launch import wait_unless_stopped

GPU_SLOTS = "trimtab-gpu"
# The shortest lease Prefect grants; that of a holder that died runs out by itself.
LEASE_SECONDS = 60.0
TURN_SECONDS = 5.0
TOO_MANY = "Slots requested is greater than the limit"


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

    It waits in short turns, so that a flow that is stopped meanwhile gets a word in, and through an
    outage of the server or its database. A renewal that
    fails in an outage does not stop training: the host's own slots still hold. Raises SlotsError
    for more slots than there are.
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
                wait_unless_stopped()
            except ConcurrencySlotAcquisitionError as error:
                if _is_outage(error.__cause__):
                    wait_unless_stopped()
                    continue
                if TOO_MANY not in str(error.__cause__):
                    raise
                raise SlotsError(
                    f"the stage's ranks (num_ranks) take {count} GPU slots, and there are "
                    "fewer: lower their number, or make more slots with "
                    f"`trimtab deploy --gpus {count}`"
                ) from None
        yield
