"""What requests to an endpoint may use: tokens and money, counted before they are spent.

A request first reserves the most that it can use. When it ends, what it used is spent
instead. So spent and reserved together never pass a limit, however many requests are under way and
whatever comes back. Both are lines of a ledger on disk. A reservation is synced before its request
is sent, so no kill -9 makes the ledger forget what may be billed.

The most that a request can use: a byte of text makes at most one token, and a chat template
adds few tokens to each message. An attempt with an unknown outcome (lost connection, unreadable
answer, killed process) may be billed, and counts as its most.

A request is in two ledgers. That of its stage lies in the stage's work folder and goes with its
checkpoints to another machine. That of its run lies in a folder which the processes of all its
stages share.

A ledger has JSON lines, two per request: what it reserves, and what it used. A request without a
second line counts as its most. A line that was cut off (killed process, full disk) counts for
nothing, which is safe: a request is not sent before its first line is complete, and without its
second line it counts as its most.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from trimtab.models.judge.chat import ChatRequest, Usage

# What a chat template adds to a message (role, separators), and to a request (a first message).
TOKENS_PER_MESSAGE = 32
TOKENS_PER_REQUEST = 64

# A process's file of a ledger; checkpoints take along what is called so.
LEDGER_SUFFIX = ".ledger"
# The folder of the run's ledger; not set, a run has no limit of its own.
RUN_LEDGER_VARIABLE = "TRIMTAB_JUDGE_LEDGER"
SECONDS_BETWEEN_LOOKS = 0.05

# Prices of a million tokens of requests and of answers.
Prices = tuple[float, float]


class BudgetError(ValueError):
    """The next request could pass a limit."""


def worst_case(request: ChatRequest) -> Usage:
    """The most tokens that a request and its answer can use."""
    written = sum(len(m.content.encode(errors="replace")) for m in request.messages)
    added = TOKENS_PER_REQUEST + TOKENS_PER_MESSAGE * len(request.messages)
    return Usage(written + added, request.max_tokens)


def cost_of(usages: Mapping[Prices, Usage]) -> float:
    """The cost of tokens by their prices, in the currency of the prices."""
    costs = (
        usage.prompt_tokens * input_price + usage.completion_tokens * output_price
        for (input_price, output_price), usage in usages.items()
    )
    return sum(costs) / 1e6


@dataclass(frozen=True)
class Limits:
    """The most tokens, of requests and answers together, and the most cost. None: no limit."""

    max_tokens: int | None = None
    max_cost: float | None = None

    def allow(self, tokens: int, cost: float) -> bool:
        """Whether both are within the limits."""
        return (self.max_tokens is None or tokens <= self.max_tokens) and (
            self.max_cost is None or cost <= self.max_cost
        )

    def error(self, whose: str, spent: tuple[int, float], most: tuple[int, float]) -> BudgetError:
        """`spent` and `most`, which the next request may take, are tokens and cost."""
        problems = []
        if self.max_tokens is not None:
            problems.append(
                f"{spent[0]} tokens are spent of {self.max_tokens}, {whose} max_total_tokens, and "
                f"the next request may take {most[0]}"
            )
        if self.max_cost is not None:
            problems.append(
                f"{spent[1]:.6g} is spent of {self.max_cost:g}, {whose} max_cost, and the next "
                f"request may cost {most[1]:.6g}"
            )
        return BudgetError(
            f"the judge's budget is used up: {'; '.join(problems)}. All answers are kept: raise "
            "the limit and run the same again, and only the rest is asked"
        )


class Budget:
    """What requests use, in each of the ledgers that they must fit in. Thread-safe.

    ledgers: the run's, if it has one, and the stage's. A kill at any moment leaves the run's no
    less than its stages' together. prices: of the tokens.
    """

    def __init__(self, ledgers: Sequence[Ledger] = (), prices: Prices = (0.0, 0.0)) -> None:
        self._ledgers, self._prices = ledgers, prices

    @property
    def spent(self) -> Usage:
        """Tokens of all requests of the stage that were answered, or may have been."""
        return sum(self._ledgers[-1].total().values(), Usage()) if self._ledgers else Usage()

    def cost(self, usage: Usage) -> float:
        """The cost of tokens, in the currency of the prices."""
        return cost_of({self._prices: usage})

    def reserve(self, usage: Usage) -> str:
        """Reserve the most that a request can use. Returns the request's id, for `settle`.

        Waits and raises as `Ledger.reserve` does.
        """
        request = uuid4().hex
        with ExitStack() as undo:  # if a ledger cannot be written, the request is not sent
            for ledger in self._ledgers:
                ledger.reserve(request, usage, self._prices)
                undo.callback(ledger.settle, request, Usage(), self._prices)
            undo.pop_all()
        return request

    def settle(self, request: str, used: Usage) -> None:
        """Spend what a request used, in place of what it reserved."""
        for ledger in reversed(self._ledgers):
            ledger.settle(request, used, self._prices)


class Ledger:
    """A folder in which processes count what they use together, within limits. Thread-safe.

    Each process appends to a file of its own, which it locks as long as it lives, and each
    reservation is made under one lock of the folder. The kernel frees both locks at kill -9. So the
    reservations of a process that was killed count as their most, and nobody waits for them. The
    folder may be on a network file system whose flock holds between hosts, as that of NFS does.
    What a checkpoint brings (`trimtab.models.training.checkpoint`) counts from then on.
    """

    def __init__(
        self, folder: Path, limits: Limits = Limits(), whose: str = "this stage's"
    ) -> None:
        """whose: the limits are, in messages. Raises FileNotFoundError without the folder."""
        self._folder, self._limits, self._whose = folder, limits, whose
        self._readers: dict[Path, _Reader] = {}
        with self._locked():
            self._stream = (folder / f"{uuid4().hex}{LEDGER_SUFFIX}").open("ab", buffering=0)
            fcntl.flock(self._stream, fcntl.LOCK_EX)

    def total(self) -> dict[Prices, Usage]:
        """All that was spent, or may have been, by the prices of its tokens."""
        with self._locked():
            return self._read()[0]

    def reserve(self, request: str, most: Usage, prices: Prices) -> None:
        """Write what a request reserves; it is on disk when this returns.

        Waits while requests of living processes may use less than they reserve. Raises
        BudgetError if none is under way and the request does not fit.
        """
        row = {"request": request, "reserved": astuple(most), "prices": prices}
        while not self._fits(most, prices, row):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            os.fsync(self._stream.fileno())
        except (OSError, ValueError) as error:  # the disk's, or another thread has closed the file
            self._stream.close()
            raise OSError(f"{self._stream.name} could not be written: {error}") from error

    def settle(self, request: str, used: Usage, prices: Prices) -> None:
        """Write what a request used.

        Only then may another request take what is left over: killed in between, a process would
        leave both at their most, and more than the limit.
        """
        row = {"request": request, "spent": astuple(used), "prices": prices}
        try:
            with self._locked():
                self._append(row)
        except OSError:
            self._stream.close()  # its lock goes: nobody waits for what was reserved
            raise

    def _fits(self, most: Usage, prices: Prices, row: dict[str, Any]) -> bool:
        """Append `row` if there is room for it."""
        with self._locked():
            spent, is_waiting_useful = self._read()
            after = {**spent, prices: spent.get(prices, Usage()) + most}
            if self._limits.allow(*_tokens_and_cost(after)):
                self._append(row)
                return True
        if not is_waiting_useful:
            needed = _tokens_and_cost({prices: most})
            raise self._limits.error(self._whose, _tokens_and_cost(spent), needed)
        return False

    def _read(self) -> tuple[dict[Prices, Usage], bool]:
        """The total, and whether a request of a living process is under way."""
        total: dict[Prices, Usage] = defaultdict(Usage)
        is_under_way = False
        for path in self._folder.glob(f"*{LEDGER_SUFFIX}"):
            reader = self._readers.setdefault(path, _Reader(path))
            reader.read()
            for prices, usage in [*reader.spent.items(), *reader.reserved.values()]:
                total[prices] += usage
            is_under_way = is_under_way or (bool(reader.reserved) and reader.has_living_writer())
        return total, is_under_way

    def _append(self, row: dict[str, Any]) -> None:
        """Empty lines end a line before that was cut off."""
        line = b"\n" + json.dumps(row).encode() + b"\n"
        if self._stream.closed or self._stream.write(line) != len(line):
            raise OSError(f"{self._stream.name} could not be written in full")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A descriptor of its own each time, so that threads exclude one another, too."""
        with (self._folder / ".ledger.lock").open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


@dataclass
class _Reader:
    """One process's lines so far: what is spent, by prices, and what is reserved, by request."""

    path: Path
    spent: dict[Prices, Usage] = field(default_factory=lambda: defaultdict(Usage))
    reserved: dict[str, tuple[Prices, Usage]] = field(default_factory=dict)
    offset: int = 0

    def read(self) -> None:
        """Read the complete lines that are new."""
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            content = stream.read()
        content = content[: content.rfind(b"\n") + 1]
        self.offset += len(content)
        for line in content.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # empty or cut off
                continue
            prices = (row["prices"][0], row["prices"][1])
            if "reserved" in row:
                self.reserved[row["request"]] = prices, Usage(*row["reserved"])
            else:
                self.reserved.pop(row["request"], None)
                self.spent[prices] += Usage(*row["spent"])

    def has_living_writer(self) -> bool:
        """Whether the process that writes the file still has its lock."""
        with self.path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def _tokens_and_cost(usages: Mapping[Prices, Usage]) -> tuple[int, float]:
    return sum(usage.total for usage in usages.values()), cost_of(usages)
