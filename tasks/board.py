"""How far the run of this process is: stages done of all, what runs now, and the time left.

Tasks fill it in; the command line shows it, as a part of its log lines or live.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

LEAST_SHARE = 0.05  # of the work that must be done before it tells how long the rest takes
LEAST_SECONDS = 5.0


@dataclass
class Running:
    """A stage under way. metrics: the newest value of each. part: what it does after training."""

    label: str
    stage: str
    done: int = 0
    total: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    part: str = ""

    @property
    def share(self) -> float:
        """How much of its training is done, 0 to 1; what follows is counted apart."""
        return 1.0 if self.part else self.done / self.total if self.total else 0.0


class Board:
    """The stages of one run. All methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.is_live = False  # whether what runs is shown anyway, so that no lines need say it
        self.clear()

    def clear(self) -> None:
        """Forget the run before."""
        self._costs: dict[str, float] = {}
        self._planned, self._submitted, self._is_counted = 0, 0, False
        self._running: dict[str, Running] = {}
        self._ended: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._all_costs, self._started = 0.0, 0.0

    def expect(self, costs: Mapping[str, Sequence[float]]) -> None:
        """Say what the plan has: the cost of every stage in one unit, by the stage's name."""
        with self._lock:
            self.clear()
            self._costs = {stage: fmean(costs_of_stage) for stage, costs_of_stage in costs.items()}
            self._planned = sum(map(len, costs.values()))
            self._all_costs = sum(map(sum, costs.values()))
            self._is_counted = True

    def expect_submitted(self) -> None:
        """Say that all stages there will be are those submitted, soon after the start."""
        with self._lock:
            self.clear()
            self._is_counted = True

    def submitted(self, *, is_last: bool = False) -> None:
        """A stage was submitted; after the last one no more of the plan follows."""
        with self._lock:
            self._submitted += 1
            if is_last:
                self._planned = min(self._planned, self._submitted)

    def began(self, key: str, label: str, stage: str) -> None:
        """A stage starts, once it has its cores; `key` tells it from others of that label."""
        with self._lock:
            self._started = self._started or self._clock()
            self._running[key] = Running(label, stage)

    def advanced(
        self, key: str, done: int, total: int, metrics: Mapping[str, float], part: str = ""
    ) -> None:
        """A stage has done so much, of the part that it is at."""
        with self._lock:
            if stage := self._running.get(key):
                stage.done, stage.total, stage.part = done, total, part
                stage.metrics.update(metrics)

    def failed(self, key: str) -> None:
        """A stage ended without a result."""
        with self._lock:
            self._running.pop(key, None)

    def ended(self, key: str, stage: str, *, was_found: bool) -> None:
        """A stage is done, or was found in the store."""
        with self._lock:
            self._running.pop(key, None)
            (self._found if was_found else self._ended)[stage] += 1

    @property
    def running(self) -> list[Running]:
        """What runs now, in the order of its start."""
        with self._lock:
            return list(self._running.values())

    @property
    def done(self) -> int:
        """Stages done or found."""
        return self._ended.total() + self._found.total()

    @property
    def total(self) -> int:
        """Stages that the run has, as far as is known; 0 where nothing is."""
        return max(self._planned, self._submitted, self.done) if self._is_counted else 0

    def seconds_left(self) -> float | None:
        """Seconds that the run still takes, by the plan's costs and the time so far."""
        with self._lock:
            done = self._cost_of(self._ended)
            done += sum(
                run.share * self._costs.get(run.stage, 0.0) for run in self._running.values()
            )
            everything = self._all_costs - self._cost_of(self._found)
            taken = self._clock() - self._started if self._started else 0.0
        if not 0 < done <= everything or done < LEAST_SHARE * everything or taken < LEAST_SECONDS:
            return None
        return taken * (everything - done) / done

    def _cost_of(self, stages: Counter[str]) -> float:
        return sum(count * self._costs.get(stage, 0.0) for stage, count in stages.items())

    def standing(self) -> str:
        """Stages done of all and the time left, as text; nothing where no number is known."""
        if not self.total:
            return ""
        counts, left = f"{self.done} of {self.total} stages", self.seconds_left()
        if left is None or self.done == self.total:
            return counts
        return f"{counts}, {duration_text(left)} left"


def duration_text(seconds: float) -> str:
    """About how long, no more exactly than it can be known."""
    if seconds < 45:
        return "under a minute"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {max(1, minutes)} min"
    return f"about {minutes // 60} h {minutes % 60} min"


board = Board()
