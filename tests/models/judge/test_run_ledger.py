"""A run's limit holds for all its stages: by hand, in threads, in processes, over kill -9."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.forked import FORKED
from tests.models.judge.conftest import endpoint_config, request
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.models.config.judge import EndpointConfig, JudgeConfig
from trimtab.models.judge.budget import LEDGER_NAME, Budget, BudgetError, Ledger, RunLedger
from trimtab.models.judge.build import budget_of
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.client import Endpoint

ROOT = Path(__file__).parents[3]
CHEAP, DEAR = (1.0, 2.0), (10.0, 50.0)
LIMIT = 12_000
SPENT_UP = 3  # exit status


def _tokens(folder: Path) -> int:
    return sum(usage.total for usage in RunLedger(folder).total().values())


def test_stages_of_different_prices_share_a_limit_of_cost(tmp_path: Path) -> None:
    # 1000 and 500 tokens cost .002 at 1 and 2 a million, and .035 at 10 and 50.
    RunLedger.create(tmp_path, max_cost=0.04)
    one, other = RunLedger(tmp_path), RunLedger(tmp_path)
    one.reserve("a", Usage(2000, 1000), CHEAP)
    one.settle("a", Usage(1000, 500), CHEAP)
    other.reserve("b", Usage(1000, 500), DEAR)
    other.settle("b", Usage(1000, 500), DEAR)
    assert one.total() == other.total() == {CHEAP: Usage(1000, 500), DEAR: Usage(1000, 500)}
    with pytest.raises(BudgetError, match=r"0\.037 is spent of 0\.04, the run's max_cost.* 0\.004"):
        one.reserve("c", Usage(2000, 1000), CHEAP)
    one.reserve("d", Usage(1000, 1000), CHEAP)
    assert RunLedger(tmp_path).total()[CHEAP] == Usage(2000, 1500)


def test_a_higher_limit_goes_on_from_what_was_spent(tmp_path: Path) -> None:
    RunLedger.create(tmp_path, max_tokens=100)
    RunLedger(tmp_path).reserve("a", Usage(90, 0), CHEAP)
    RunLedger.create(tmp_path, max_tokens=110)
    ledger = RunLedger(tmp_path)
    ledger.reserve("b", Usage(20, 0), CHEAP)
    assert _tokens(tmp_path) == 110


def test_one_process_waits_while_another_may_come_to_less(tmp_path: Path) -> None:
    RunLedger.create(tmp_path, max_tokens=100)
    one, other = RunLedger(tmp_path), RunLedger(tmp_path)
    one.reserve("a", Usage(90, 0), CHEAP)
    has_room = threading.Event()

    def wait() -> None:
        other.reserve("b", Usage(60, 0), CHEAP)
        has_room.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not has_room.wait(0.3)
    one.settle("a", Usage(40, 0), CHEAP)
    thread.join(20)
    assert has_room.is_set()


def test_nobody_waits_for_a_process_that_was_killed(tmp_path: Path) -> None:
    """What it had reserved counts as spent: the endpoint may bill it."""
    RunLedger.create(tmp_path, max_tokens=100)
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from trimtab.models.judge.budget import RunLedger, Usage\n"
        "ledger = RunLedger(Path(sys.argv[1]))\n"
        "ledger.reserve('a', Usage(70, 0), (1.0, 1.0))\n"
        "print('under way', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "under way\n"
        errors: list[BudgetError] = []

        def wait() -> None:
            with pytest.raises(BudgetError) as error:
                RunLedger(tmp_path).reserve("b", Usage(31, 0), CHEAP)
            errors.append(error.value)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        os.kill(process.pid, signal.SIGKILL)
        thread.join(20)
    assert "70 tokens are spent of 100, the run's max_total_tokens" in str(errors[0])
    RunLedger(tmp_path).reserve("c", Usage(30, 0), CHEAP)


@pytest.mark.slow
def test_a_file_that_is_cut_off_anywhere_counts_no_less_than_was_spent(tmp_path: Path) -> None:
    RunLedger.create(tmp_path / "run")
    ledger = RunLedger(tmp_path / "run")
    totals = [0]  # tokens after each line
    for name, held in (("a", 60), ("b", 75), ("c", 40)):
        ledger.reserve(name, Usage(held, 0), CHEAP)
        totals.append(totals[-1] + held)
    for name, came_to, held in (("b", 0, 75), ("a", 25, 60)):
        ledger.settle(name, Usage(came_to, 0), CHEAP)
        totals.append(totals[-1] - held + came_to)
    ledger.close()
    (path,) = (tmp_path / "run").glob("*.jsonl")
    whole = path.read_bytes()
    RunLedger.create(tmp_path / "cut")
    for cut in range(len(whole) + 1):
        (tmp_path / "cut" / "dead.jsonl").write_bytes(whole[:cut])
        complete = len([line for line in whole[:cut].split(b"\n")[:-1] if line])
        assert _tokens(tmp_path / "cut") == totals[complete], whole[:cut]


def test_a_line_behind_one_that_was_cut_off_is_read(tmp_path: Path) -> None:
    RunLedger.create(tmp_path)
    ledger = RunLedger(tmp_path)
    ledger.reserve("a", Usage(60, 0), CHEAP)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as stream:
        stream.write(b'\n{"request": "b", "re')
    assert _tokens(tmp_path) == 60
    ledger.settle("a", Usage(10, 0), CHEAP)
    assert _tokens(tmp_path) == 10


def test_threads_and_processes_append_at_once_and_no_line_is_lost(tmp_path: Path) -> None:
    RunLedger.create(tmp_path, max_tokens=10**9)
    ledgers = [RunLedger(tmp_path) for _ in range(3)]

    def spend(number: int) -> None:
        ledger = ledgers[number % 3]
        ledger.reserve(str(number), Usage(1000, 0), CHEAP)
        ledger.settle(str(number), Usage(number, 1), CHEAP)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(spend, range(200)))
    assert RunLedger(tmp_path).total() == {CHEAP: Usage(sum(range(200)), 200)}


def test_what_a_full_run_refuses_is_reserved_nowhere(tmp_path: Path) -> None:
    RunLedger.create(tmp_path / "run", max_tokens=100)
    own = Ledger(tmp_path / LEDGER_NAME)
    budget = Budget(max_tokens=1000, ledger=own, run=RunLedger(tmp_path / "run"))
    budget.settle(budget.reserve(Usage(80, 0)), Usage(50, 0))
    with pytest.raises(BudgetError, match="50 tokens are spent of 100, the run's"):
        budget.reserve(Usage(60, 0))
    assert budget.spent == own.total() == Usage(50, 0)
    assert _tokens(tmp_path / "run") == 50
    own.path.unlink()
    own.path.mkdir()  # the stage's ledger cannot be written
    with pytest.raises(IsADirectoryError):
        budget.reserve(Usage(10, 0))
    assert _tokens(tmp_path / "run") == 50


def test_the_environment_names_the_run_s_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunLedger.create(tmp_path / "run", max_tokens=100)
    monkeypatch.setenv("TRIMTAB_JUDGE_LEDGER", str(tmp_path / "run"))
    config = JudgeConfig(endpoint=EndpointConfig(model="m", max_total_tokens=1000))
    for stage in ("one", "two"):
        (tmp_path / stage).mkdir()
        budget = budget_of(config, Ledger(tmp_path / stage / LEDGER_NAME))
        if stage == "one":
            budget.settle(budget.reserve(Usage(60, 0)), Usage(60, 0))
    with pytest.raises(BudgetError, match="60 tokens are spent of 100, the run's"):
        budget.reserve(Usage(41, 0))
    assert budget.spent == Usage()


def _ask_until_killed(config: EndpointConfig, folder: Path, first: int) -> None:
    """A stage in a process of its own."""
    budget = Budget(ledger=Ledger(folder / f"{first}.ledger"), run=RunLedger(folder / "run"))
    questions = [(f"{n}", request(f"{n}" + "x" * (n % 50), 20)) for n in range(first, first + 60)]
    try:
        list(Endpoint(config, budget).answers(questions))
    except BudgetError:
        raise SystemExit(SPENT_UP) from None


@dataclass
class _Till:
    """An endpoint that bills every answer it makes; it loses some, and kills one who asks."""

    seed: int
    billed: int = 0
    victims: list[multiprocessing.process.BaseProcess] = field(default_factory=list)
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
            victim = self.rng.choice(self.victims)
        if draw < 0.1 and victim.pid:
            victim.kill()
        answer = completion(
            "A", prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )
        return Reply(answer, cut=30) if draw > 0.9 else answer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_stages_at_once_killed_at_random_never_spend_more_than_the_run_may(
    tmp_path: Path, seed: int
) -> None:
    """Three processes at a time, kill -9 at random requests: what the endpoint has billed is within
    the run's limit at any time, and the last ones end with the limit's error."""
    RunLedger.create(tmp_path / "run", max_tokens=LIMIT)
    till, lives, kills, ends = _Till(seed), 0, 0, []
    with serving(till) as server:
        config = endpoint_config(server, max_concurrency=3, first_wait_seconds=0.001)
        while SPENT_UP not in ends:
            till.victims = [
                FORKED.Process(
                    target=_ask_until_killed, args=(config, tmp_path, 100 * (3 * lives + number))
                )
                for number in range(3)
            ]
            for process in till.victims:
                process.start()
            for process in till.victims:
                process.join()
            lives += 1
            ends = [process.exitcode for process in till.victims]
            assert set(ends) <= {0, SPENT_UP, -signal.SIGKILL}
            kills += ends.count(-signal.SIGKILL)
            assert till.billed <= _tokens(tmp_path / "run") <= LIMIT
    assert kills >= 3
    assert till.billed > LIMIT / 4
    # Of the run as of its stages: the same sum.
    stages = sum(Ledger(path).total().total for path in tmp_path.glob("*.ledger"))
    assert till.billed <= stages <= _tokens(tmp_path / "run")


def test_limits_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"limits\.json"):
        RunLedger(tmp_path)
    RunLedger.create(tmp_path, max_tokens=5)
    assert json.loads((tmp_path / "limits.json").read_text()) == {"max_tokens": 5, "max_cost": None}
