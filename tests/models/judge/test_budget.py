"""The budget: by hand, and under random answers, faults and concurrency."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.models.judge.conftest import endpoint, limited, request
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.models.judge.budget import Budget, BudgetError, worst_case
from trimtab.models.judge.chat import Usage


def test_the_most_a_request_can_come_to_by_hand() -> None:
    # Two bytes for é and four for the other, one for each letter; 64 and 32 as documented.
    assert worst_case(request("aé😀b", max_tokens=9)) == Usage(8 + 64 + 32, 9)
    assert worst_case(request("\ud800", max_tokens=1)) == Usage(1 + 96, 1)


def test_cost_by_hand() -> None:
    # 2,000 tokens at 3 and 500 at 12 a million: .006 + .006.
    assert Budget(prices=(3, 12)).cost(Usage(2000, 500)) == pytest.approx(0.012)


def test_what_is_held_is_spent_in_part_and_the_rest_is_free_again(tmp_path: Path) -> None:
    budget = limited(tmp_path, max_tokens=100)
    budget.settle(budget.reserve(Usage(50, 10)), Usage(20, 5))
    budget.settle(budget.reserve(Usage(70, 5)), Usage())
    assert budget.spent == Usage(20, 5)
    share = "25 tokens are spent of 100, this stage's max_total_tokens"
    with pytest.raises(BudgetError, match=share):
        budget.reserve(Usage(76, 0))
    budget.settle(budget.reserve(Usage(75, 0)), Usage(75, 0))
    with pytest.raises(BudgetError, match="may take 1"):
        budget.reserve(Usage(0, 1))


def test_a_limit_of_cost_counts_both_kinds_of_tokens_at_their_prices(tmp_path: Path) -> None:
    budget = limited(tmp_path, max_cost=0.01, prices=(10, 100))
    budget.settle(budget.reserve(Usage(500, 50)), Usage(400, 50))  # .005 + .005 held
    budget.settle(budget.reserve(Usage(100, 0)), Usage(100, 0))
    share = r"0\.01 is spent of 0\.01, this stage's max_cost"
    with pytest.raises(BudgetError, match=share):
        budget.reserve(Usage(1, 0))


def test_one_waits_while_others_may_come_to_less(tmp_path: Path) -> None:
    budget = limited(tmp_path, max_tokens=100)
    held = budget.reserve(Usage(90, 0))
    got_it = threading.Event()

    def wait() -> None:
        budget.reserve(Usage(60, 0))
        got_it.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got_it.wait(0.05)
    budget.settle(held, Usage(40, 0))
    thread.join(20)
    assert got_it.is_set()


@pytest.mark.parametrize("seed", range(12))
def test_the_budget_is_never_exceeded(seed: int, tmp_path: Path) -> None:
    """Whatever comes back and however many ask: what the endpoint did is within the limit.

    It counts what it has worked for, as a bill would: every answer it made, also those that got
    lost on the way.
    """
    rng = random.Random(seed)
    choices: list[dict[str, Any]] = [
        {"max_tokens": rng.randint(500, 4000)},
        {"max_cost": rng.uniform(0.001, 0.01), "prices": (1.0, 5.0)},
    ]
    limits = choices[seed % 2]
    budget = limited(tmp_path, **limits)
    lock = threading.Lock()
    billed = Usage()

    def script(_: int, body: Body) -> Reply | Body:
        nonlocal billed
        with lock:
            draw = rng.random()
            size = len(body["messages"][0]["content"])
            usage = Usage(rng.randint(1, size + 90), rng.randint(0, body["max_tokens"]))
            if draw < 0.2:
                return Reply({}, status=rng.choice([429, 500, 503]))
            billed += usage
        body = completion(
            "A", prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )
        if draw < 0.3:
            return Reply(body, cut=rng.randint(0, 50))
        if draw < 0.4:
            return Reply(text="nonsense")
        if draw < 0.5:
            del body["usage"]
        return body

    questions = [
        (str(n), request("x" * rng.randint(1, 200), rng.randint(1, 60))) for n in range(60)
    ]
    found: list[str] = []
    with serving(script) as server:
        config = {"max_concurrency": rng.choice([1, 3, 16]), "first_wait_seconds": 0.001}
        answers = endpoint(server, budget, **config).answers(questions)
        with pytest.raises(BudgetError):
            found.extend(name for name, _ in answers)
    if "max_tokens" in limits:
        assert billed.total <= budget.spent.total <= limits["max_tokens"]
    else:
        assert budget.cost(billed) <= budget.cost(budget.spent) <= limits["max_cost"]
    assert len(found) == len(set(found)) > 0
