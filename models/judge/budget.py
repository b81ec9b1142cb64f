"""What a judge may use: tokens and money, counted before they are spent.

A request under way holds the most it can come to; once it is answered, what it did come to is spent
in its place. So the sum never passes the limit, whatever is under way and whatever comes back. Both
are noted in a ledger on disk, so that whoever goes on after a kill has the sum, too.

An upper bound of a request's tokens: a byte of text makes at most one token of it, and a chat
template adds few to each message. An attempt whose outcome nobody knows (the line went dead, the
answer came in pieces, the process was killed) may be billed, and counts as the most it can come to.

What a stage's requests may come to, and came to, where no kill can make it forgotten.

JSON lines that are only ever added to, two a request: the most it can come to, on disk before the
request is sent, and in the end what it did come to. A request without an end counts as its most.

A line that was cut off (the process was killed, the disk was full) counts for nothing, and may: it
is the first of a request that was not sent, or an end, without which the request counts as its
most. Lines name their request, so that two copies of a ledger make one of all their lines
(`models.training.checkpoint`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from models.judge.chat import ChatRequest, Usage

# What a chat template adds to a message (role, separators), and to all (a preset first message).
TOKENS_PER_MESSAGE = 32
TOKENS_PER_REQUEST = 64


class BudgetError(ValueError):
    """The next request might pass the limit."""


def worst_case(request: ChatRequest) -> Usage:
    """The most tokens that a request and its answer can come to."""
    written = sum(len(m.content.encode(errors="replace")) for m in request.messages)
    added = TOKENS_PER_REQUEST + TOKENS_PER_MESSAGE * len(request.messages)
    return Usage(written + added, request.max_tokens)


class Budget:
    """Tokens and cost so far, and their limits. Thread-safe.

    input_price, output_price: of a million tokens. None: no limit. ledger: what earlier processes
    have spent counts as well; it is read when it is first needed, for a checkpoint may bring it.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
        ledger: Ledger | None = None,
    ) -> None:
        self._max_tokens, self._max_cost = max_tokens, max_cost
        self._prices = input_price, output_price
        self._ledger = ledger
        self._spent: Usage | None = None
        self._held: dict[str, Usage] = {}
        self._changed = threading.Condition()

    @property
    def spent(self) -> Usage:
        """Tokens of all that was answered, or may have been."""
        with self._changed:
            if self._spent is None:
                self._spent = Usage() if self._ledger is None else self._ledger.total()
            return self._spent

    def cost(self, usage: Usage) -> float:
        """What tokens cost, in the prices' currency."""
        of_input, of_output = self._prices
        return (usage.prompt_tokens * of_input + usage.completion_tokens * of_output) / 1e6

    def hold(self, usage: Usage) -> str:
        """Set the most that a request can come to aside, once there is room for it.

        It waits while requests under way may come to less than they hold. Returns what `settle`
        knows the request by. Raises BudgetError when nothing is under way, and there is no room.
        """
        request = uuid4().hex
        with self._changed:
            while not self._fits(sum(self._held.values(), self.spent + usage)):
                if not self._held:
                    raise BudgetError(self._message(usage))
                self._changed.wait()
            self._held[request] = usage
        try:
            if self._ledger is not None:
                self._ledger.hold(request, usage)
        except BaseException:  # such as a full disk: the request is not sent
            self._release(request, Usage())
            raise
        return request

    def settle(self, request: str, came_to: Usage) -> None:
        """Spend what a request came to, in place of what it held."""
        self._release(request, came_to)
        if self._ledger is not None:
            self._ledger.settle(request, came_to)

    def _release(self, request: str, came_to: Usage) -> None:
        with self._changed:
            del self._held[request]
            self._spent = self.spent + came_to
            self._changed.notify_all()

    def _fits(self, usage: Usage) -> bool:
        return (self._max_tokens is None or usage.total <= self._max_tokens) and (
            self._max_cost is None or self.cost(usage) <= self._max_cost
        )

    def _message(self, usage: Usage) -> str:
        limits = []
        if self._max_tokens is not None:
            limits.append(
                f"{self.spent.total} tokens are spent of {self._max_tokens}, this stage's share of "
                f"max_total_tokens, and the next request may take {usage.total}"
            )
        if self._max_cost is not None:
            limits.append(
                f"{self.cost(self.spent):.6g} is spent of {self._max_cost:g}, this stage's share "
                f"of max_cost, and the next request may cost {self.cost(usage):.6g}"
            )
        return (
            f"the judge's budget is used up: {'; '.join(limits)}. What was answered is kept: raise "
            "the limit and run the same again, and only the rest is asked"
        )


LEDGER_NAME = "judge.ledger"


class Ledger:
    """A file of lines. Thread-safe; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()

    def total(self) -> Usage:
        """All that was spent, or may have been."""
        held: dict[str, Usage] = {}
        spent: dict[str, Usage] = {}
        for row in self._rows():
            kind = spent if "spent" in row else held
            kind[row["request"]] = Usage(*row["spent" if "spent" in row else "held"])
        return sum((held | spent).values(), Usage())

    def hold(self, request: str, most: Usage) -> None:
        """Note the most that a request can come to; when it returns, that is on disk."""
        self._append({"request": request, "held": _tokens(most)}, is_synced=True)

    def settle(self, request: str, came_to: Usage) -> None:
        """Note what a request came to."""
        self._append({"request": request, "spent": _tokens(came_to)})

    def _rows(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # cut off
                continue

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


def _tokens(usage: Usage) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]
