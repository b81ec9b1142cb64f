"""What requests to an endpoint may use: tokens and money, counted before they are spent.

A request first reserves the most that it can use. When it ends, what it used is spent
instead. So spent and reserved together never pass a limit, however many requests are under way and
whatever comes back. Both are lines of a ledger on disk. A reservation is synced before its request
is sent, so no kill -9 makes the ledger forget what may be billed.

the most that a request can use: a byte of text makes at most one token, and a chat template
adds few tokens to each message. An attempt with an unknown outcome (lost connection, unreadable
answer, killed process) may be billed, and counts as its most.

There are two ledgers. `Ledger` is that of one stage: a file in its work folder, which goes with its
checkpoints to another machine. `RunLedger` is that of one run: a folder which the processes of all
its stages share, with one limit for all of them.

A ledger has JSON lines, two per request: what it reserves, and what it used. A request without a
second line counts as its most. A line that was cut off (killed process, full disk) counts for
nothing, which is safe: a request is not sent before its first line is complete, and without its
second line it counts as its most.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from trimtab.models.judge.chat import ChatRequest, Usage

# What a chat template adds to a message (role, separators), and to a request (a first message).
TOKENS_PER_MESSAGE = 32
TOKENS_PER_REQUEST = 64

LEDGER_NAME = "judge.ledger"
LIMITS_NAME = "limits.json"
# The folder of the run's ledger (`RunLedger.create`); not set, a run has no limit of its own.
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
    return (
        sum(
            usage.prompt_tokens * of_input + usage.completion_tokens * of_output
            for (of_input, of_output), usage in usages.items()
        )
        / 1e6
    )


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
    """Tokens spent and reserved by a stage, within its limits and those of its run. Thread-safe.

    input_price, output_price: of a million tokens. max_tokens, max_cost: None for no limit. ledger:
    what earlier processes have spent counts too; it is read when first needed, because a checkpoint
    may bring it. run: the ledger of all stages of the run.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
        ledger: Ledger | None = None,
        run: RunLedger | None = None,
    ) -> None:
        self._limits = Limits(max_tokens, max_cost)
        self._prices = input_price, output_price
        self._ledger, self._run = ledger, run
        self._spent: Usage | None = None
        self._reserved: dict[str, Usage] = {}
        self._changed = threading.Condition()

    @property
    def spent(self) -> Usage:
        """Tokens of all requests that were answered, or may have been."""
        with self._changed:
            if self._spent is None:
                self._spent = Usage() if self._ledger is None else self._ledger.total()
            return self._spent

    def cost(self, usage: Usage) -> float:
        """The cost of tokens, in the currency of the prices."""
        return cost_of({self._prices: usage})

    def reserve(self, usage: Usage) -> str:
        """Reserve the most that a request can use. Returns the request's id, for `settle`.

        Waits while requests under way may use less than they reserve. Raises BudgetError if
        none is under way and the request does not fit.
        """
        request = uuid4().hex
        with self._changed:
            while not self._fits(sum(self._reserved.values(), self.spent + usage)):
                if not self._reserved:
                    raise self._limits.error(
                        "this stage's", self._both(self.spent), self._both(usage)
                    )
                self._changed.wait()
            self._reserved[request] = usage
        with ExitStack() as undo:  # if a ledger cannot be written, the request is not sent
            undo.callback(self._release, request, Usage())
            if self._run is not None:
                self._run.reserve(request, usage, self._prices)
                undo.callback(self._run.settle, request, Usage(), self._prices)
            if self._ledger is not None:
                self._ledger.reserve(request, usage)
            undo.pop_all()
        return request

    def settle(self, request: str, used: Usage) -> None:
        """Spend what a request used, in place of what it reserved.

        The ledgers have it before another request may take what is left over: killed in between, a
        process would leave both at their most, and more than the limit.
        """
        try:
            if self._ledger is not None:
                self._ledger.settle(request, used)
            if self._run is not None:
                self._run.settle(request, used, self._prices)
        finally:
            self._release(request, used)

    def _release(self, request: str, used: Usage) -> None:
        with self._changed:
            del self._reserved[request]
            self._spent = self.spent + used
            self._changed.notify_all()

    def _fits(self, usage: Usage) -> bool:
        return self._limits.allow(*self._both(usage))

    def _both(self, usage: Usage) -> tuple[int, float]:
        return usage.total, self.cost(usage)


class Ledger:
    """The ledger of one stage: a file. Thread-safe; one process at a time.

    Its lines name their request, so the lines of two copies make one ledger
    (`trimtab.models.training.checkpoint`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()

    def total(self) -> Usage:
        """All that was spent, or may have been."""
        reserved: dict[str, Usage] = {}
        spent: dict[str, Usage] = {}
        for row in _rows(self.path.read_bytes() if self.path.exists() else b""):
            kind = spent if "spent" in row else reserved
            kind[row["request"]] = Usage(*row["spent" if "spent" in row else "reserved"])
        return sum((reserved | spent).values(), Usage())

    def reserve(self, request: str, most: Usage) -> None:
        """Write what a request reserves; it is on disk when this returns."""
        self._append({"request": request, "reserved": _tokens(most)}, is_synced=True)

    def settle(self, request: str, used: Usage) -> None:
        """Write what a request used."""
        self._append({"request": request, "spent": _tokens(used)})

    def _append(self, row: dict[str, Any], is_synced: bool = False) -> None:
        line = json.dumps(row).encode() + b"\n"
        with self.path.open("ab+") as stream:
            with self._writing:
                if stream.seek(0, os.SEEK_END):
                    stream.seek(-1, os.SEEK_END)
                    line = line if stream.read() == b"\n" else b"\n" + line
                stream.write(line)
                stream.flush()
            if is_synced:
                os.fsync(stream.fileno())


class RunLedger:
    """The ledger of one run: a folder that the processes of its stages share. Thread-safe.

    Each process appends to a file of its own, which it locks as long as it lives, and each
    reservation is made under one lock of the folder. The kernel frees both locks at kill -9. So the
    reservations of a process that was killed count as their most, and nobody waits for them. The
    folder may be on a network file system whose flock holds between hosts, as that of NFS does.
    """

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError without the file of limits, which `create` writes."""
        self.folder = folder
        self._limits = Limits(**json.loads((folder / LIMITS_NAME).read_text()))
        self._readers: dict[Path, _Reader] = {}
        with self._locked():
            self._own = (folder / f"{uuid4().hex}.jsonl").open("ab", buffering=0)
            fcntl.flock(self._own, fcntl.LOCK_EX)

    @classmethod
    def create(
        cls, folder: Path, *, max_tokens: int | None = None, max_cost: float | None = None
    ) -> None:
        """Make the folder and set its limits; what was spent in it still counts."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{uuid4().hex}"
        partial.write_text(json.dumps({"max_tokens": max_tokens, "max_cost": max_cost}))
        partial.replace(folder / LIMITS_NAME)

    def close(self) -> None:
        """Free the lock that says that this process lives."""
        self._own.close()

    def total(self) -> dict[Prices, Usage]:
        """All that was spent, or may have been, by the prices of its tokens."""
        with self._locked():
            return self._read()[0]

    def reserve(self, request: str, most: Usage, prices: Prices) -> None:
        """Write what a request reserves; it is on disk when this returns.

        Waits while requests of living processes may use less than they reserve. Raises
        BudgetError if none is under way and the request does not fit.
        """
        row = {"request": request, "reserved": _tokens(most), "prices": prices}
        while not self._fits(most, prices, row):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os.fsync(self._own.fileno())

    def settle(self, request: str, used: Usage, prices: Prices) -> None:
        """Write what a request used."""
        row = {"request": request, "spent": _tokens(used), "prices": prices}
        with self._locked():
            self._append(row)

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
            raise self._limits.error("the run's", _tokens_and_cost(spent), needed)
        return False

    def _read(self) -> tuple[dict[Prices, Usage], bool]:
        """The total, and whether a request of a living process is under way."""
        total: dict[Prices, Usage] = {}
        is_under_way = False
        for path in self.folder.glob("*.jsonl"):
            reader = self._readers.setdefault(path, _Reader(path))
            reader.read()
            for prices, usage in [*reader.spent.items(), *reader.reserved.values()]:
                total[prices] = total.get(prices, Usage()) + usage
            is_under_way = is_under_way or (bool(reader.reserved) and reader.has_living_writer())
        return total, is_under_way

    def _append(self, row: dict[str, Any]) -> None:
        """Empty lines end a line before that was cut off."""
        line = b"\n" + json.dumps(row).encode() + b"\n"
        if self._own.write(line) != len(line):
            raise OSError(f"{self._own.name} could not be written in full")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A descriptor of its own each time, so that threads exclude one another, too."""
        with (self.folder / "lock").open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


@dataclass
class _Reader:
    """One process's lines so far: what is spent, by prices, and what is reserved, by request."""

    path: Path
    spent: dict[Prices, Usage] = field(default_factory=dict)
    reserved: dict[str, tuple[Prices, Usage]] = field(default_factory=dict)
    offset: int = 0

    def read(self) -> None:
        """Read the complete lines that are new."""
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            content = stream.read()
        content = content[: content.rfind(b"\n") + 1]
        self.offset += len(content)
        for row in _rows(content):
            prices = (row["prices"][0], row["prices"][1])
            if "reserved" in row:
                self.reserved[row["request"]] = prices, Usage(*row["reserved"])
            else:
                self.reserved.pop(row["request"], None)
                self.spent[prices] = self.spent.get(prices, Usage()) + Usage(*row["spent"])

    def has_living_writer(self) -> bool:
        """Whether the process that writes the file still has its lock."""
        with self.path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # empty or cut off
            continue


def _tokens(usage: Usage) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def _tokens_and_cost(usages: Mapping[Prices, Usage]) -> tuple[int, float]:
    return sum(usage.total for usage in usages.values()), cost_of(usages)
