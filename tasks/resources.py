"""Resources of a stage: cores, as threads or ranks, and devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel

from trimtab.infra.settings import Settings
from trimtab.models.config.training import TrainerConfig, trainer_of


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
    """What a stage gets on the machine that `settings` describe."""
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
