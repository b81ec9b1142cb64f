"""What was spent before a kill counts after it: lines by hand, cut off anywhere, and kill -9."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.forked import FORKED
from tests.models.judge.conftest import endpoint_config, request
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.models.config.judge import EndpointConfig
from trimtab.models.judge.batch import AnswerCache, CachedChatModel
from trimtab.models.judge.budget import Budget, BudgetError, Ledger
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.client import Endpoint

LIMIT = 8000
SPENT_UP = 3  # exit status


def _written(folder: Path) -> Path:
    """Held 60 and came to 25, held 75 and came to nothing, held 40: open."""
    ledger = Ledger(folder / "judge.ledger")
    for name, held in (("a", Usage(50, 10)), ("b", Usage(70, 5)), ("c", Usage(30, 10))):
        ledger.reserve(name, held)
    ledger.settle("b", Usage())
    ledger.settle("a", Usage(20, 5))
    return ledger.path


def test_ends_count_as_they_are_and_what_has_none_as_its_most(tmp_path: Path) -> None:
    path = _written(tmp_path)
    assert Ledger(path).total() == Usage(20 + 30, 5 + 10)
    assert Ledger(tmp_path / "none").total() == Usage()
    budget = Budget(max_tokens=70, ledger=Ledger(path))
    with pytest.raises(BudgetError, match="65 tokens are spent of 70"):
        budget.reserve(Usage(6, 0))
    budget.settle(budget.reserve(Usage(5, 0)), Usage(4, 0))
    assert budget.spent == Usage(54, 15) == Ledger(path).total()


def test_cut_off_anywhere_it_counts_no_less_than_was_spent(tmp_path: Path) -> None:
    """What a request whose first line is there in full came to, or else its most; then goes on."""
    whole = _written(tmp_path).read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    # Tokens after each whole line: three holds, b came to nothing, a to 25.
    totals = [0, 60, 135, 175, 100, 65]
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut"
        path.write_bytes(whole[:cut])
        # A line that lacks nothing but its end can be read.
        complete = sum(end <= cut for end in ends)
        assert Ledger(path).total().total == totals[complete], whole[:cut]
        Ledger(path).reserve("d", Usage(1, 0))
        Ledger(path).settle("c", Usage(2, 0))
        later = [json.loads(line) for line in path.read_bytes().splitlines()[-2:]]
        assert [row["request"] for row in later] == ["d", "c"]


def test_what_cannot_be_noted_is_not_sent(tmp_path: Path) -> None:
    budget = Budget(max_tokens=100, ledger=Ledger(tmp_path / "no such folder" / "judge.ledger"))
    with pytest.raises(FileNotFoundError):
        budget.reserve(Usage(90, 0))
    (tmp_path / "no such folder").mkdir()
    budget.reserve(Usage(90, 0))


def test_what_is_left_over_is_taken_only_once_the_ledger_has_it(tmp_path: Path) -> None:
    """Else a kill in between would leave two requests at their most: 90 + 50 of 100."""
    noting, goes_on = threading.Event(), threading.Event()

    class Slow(Ledger):
        def settle(self, request: str, used: Usage) -> None:
            noting.set()
            assert goes_on.wait(60)
            super().settle(request, used)

    ledger = Slow(tmp_path / "judge.ledger")
    budget = Budget(max_tokens=100, ledger=ledger)
    first = budget.reserve(Usage(90, 0))
    ends = threading.Thread(target=budget.settle, args=(first, Usage(10, 0)), daemon=True)
    waits = threading.Thread(target=budget.reserve, args=(Usage(50, 0),), daemon=True)
    ends.start()
    assert noting.wait(60)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    assert ledger.total().total == 90
    goes_on.set()
    ends.join(60)
    waits.join(60)
    assert ledger.total().total == 10 + 50


def _ask_until_killed(config: EndpointConfig, folder: Path, first: int) -> None:
    """What a stage does, in a process of its own: new questions in every life, and old ones."""
    budget = Budget(max_tokens=LIMIT, ledger=Ledger(folder / "judge.ledger"))
    chat = CachedChatModel(Endpoint(config, budget), AnswerCache(folder / "answers"), budget)
    try:
        chat.ask([request(f"{n}" + "x" * (n % 50), 20) for n in range(first, first + 60)])
    except BudgetError:
        raise SystemExit(SPENT_UP) from None


@dataclass
class _Till:
    """An endpoint that bills every answer it makes; it loses some, and kills who asks."""

    seed: int
    billed: int = 0
    victim: multiprocessing.process.BaseProcess | None = None
    rng: random.Random = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def __call__(self, _: int, body: Body) -> Reply | Body:
        with self.lock:
            size = len(body["messages"][0]["content"])
            usage = Usage(self.rng.randint(1, size + 90), self.rng.randint(0, 20))
            draw = self.rng.random()
            self.billed += usage.total
        if draw < 0.12 and self.victim is not None and self.victim.pid:
            self.victim.kill()
        answer = completion(
            "A", prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )
        return Reply(answer, cut=30) if draw > 0.85 else answer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_it_never_spends_more(tmp_path: Path, seed: int) -> None:
    """kill -9 at random requests, answers lost on the way, last lines cut off: what the endpoint
    has billed is within the limit, whatever those who were killed knew of it."""
    ledger = tmp_path / "judge.ledger"
    till, lives, kills = _Till(seed), 0, 0
    with serving(till) as server:
        config = endpoint_config(server, max_concurrency=4, first_wait_seconds=0.001)
        while True:
            process = FORKED.Process(target=_ask_until_killed, args=(config, tmp_path, 20 * lives))
            till.victim = process
            process.start()
            process.join()
            lives += 1
            assert till.billed <= Ledger(ledger).total().total <= LIMIT
            if process.exitcode == SPENT_UP:
                break
            kills += process.exitcode == -signal.SIGKILL
            assert process.exitcode in (0, -signal.SIGKILL)
            with ledger.open("ab") as stream:
                stream.write(b'{"request": "cut off", "re' if lives % 2 else b"")
    assert kills >= 3
    assert till.billed > LIMIT / 4
