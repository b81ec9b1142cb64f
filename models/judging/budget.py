"""What a judge may use: tokens and money, counted before they are spent.

A request under way holds the most it can come to; once it is answered, what it did come to is spent
in its place. So the sum never passes the limit, whatever is under way and whatever comes back.

An upper bound of a request's tokens: a byte of text makes at most one token of it, and a chat
template adds few to each message. An attempt whose outcome nobody knows (the line went dead, the
answer came in pieces) may be billed, and counts as the most it can come to. What was under way when
a process was killed is not counted.
"""

from __future__ import annotations

import threading

from models.judging.chat import ChatRequest, Usage

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

    input_price, output_price: of a million tokens. None: no limit.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
    ) -> None:
        self._max_tokens, self._max_cost = max_tokens, max_cost
        self._prices = input_price, output_price
        self._spent = Usage()
        self._held = Usage()
        self._changed = threading.Condition()

    @property
    def spent(self) -> Usage:
        """Tokens of all that was answered, or may have been."""
        return self._spent

    def cost(self, usage: Usage) -> float:
        """What tokens cost, in the prices' currency."""
        of_input, of_output = self._prices
        return (usage.prompt_tokens * of_input + usage.completion_tokens * of_output) / 1e6

    def count(self, usage: Usage) -> None:
        """Count what an earlier process has spent: it needs no permission any more."""
        with self._changed:
            self._spent += usage

    def hold(self, usage: Usage) -> None:
        """Set the most that a request can come to aside, once there is room for it.

        It waits while requests under way may come to less than they hold. Raises BudgetError when
        nothing is under way, and there is no room.
        """
        with self._changed:
            while not self._fits(self._spent + self._held + usage):
                if self._held == Usage():
                    raise BudgetError(self._message(usage))
                self._changed.wait()
            self._held += usage

    def settle(self, held: Usage, came_to: Usage) -> None:
        """Spend what a request came to, in place of what it held."""
        with self._changed:
            self._held -= held
            self._spent += came_to
            self._changed.notify_all()

    def _fits(self, usage: Usage) -> bool:
        return (self._max_tokens is None or usage.total <= self._max_tokens) and (
            self._max_cost is None or self.cost(usage) <= self._max_cost
        )

    def _message(self, usage: Usage) -> str:
        limits = []
        if self._max_tokens is not None:
            limits.append(
                f"{self._spent.total} tokens are spent of max_total_tokens = {self._max_tokens}, "
                f"and the next request may take {usage.total}"
            )
        if self._max_cost is not None:
            limits.append(
                f"{self.cost(self._spent):.6g} is spent of max_cost = {self._max_cost:g}, and the "
                f"next request may cost {self.cost(usage):.6g}"
            )
        return (
            f"the judge's budget is used up: {'; '.join(limits)}. What was answered is kept: raise "
            "the limit and run the same again, and only the rest is asked"
        )
