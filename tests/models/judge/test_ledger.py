"""Limits hold for a stage and for all stages of a run: in threads, in processes, over kill -9."""

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
from typing import Any

import pytest

from tests.forked import FORKED
from tests.models.judge.conftest import endpoint_config, limited, request
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.models.config.judge import EndpointConfig, JudgeConfig
from trimtab.models.judge.batch import AnswerCache, CachedChatModel
from trimtab.models.judge.budget import Budget, BudgetError, Ledger, Limits
from trimtab.models.judge.build import build_budget
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.client import Endpoint

ROOT = Path(__file__).parents[3]
CHEAP, DEAR = (1.0, 2.0), (10.0, 50.0)
LIMIT = 12_000
SPENT_UP = 3  # exit status


def _tokens(folder: Path) -> int:
    return sum(usage.total for usage in Ledger(folder).total().values())


def _run(folder: Path, max_tokens: int | None = None, max_cost: float | None = None) -> Ledger:
    folder.mkdir(exist_ok=True)
    return Ledger(folder, Limits(max_tokens, max_cost), "the run's")


def test_stages_of_different_prices_share_a_limit_of_cost(tmp_path: Path) -> None:
    # 1000 and 500 tokens cost .002 at 1 and 2 a million, and .035 at 10 and 50.
    one, other = (_run(tmp_path, max_cost=0.04) for _ in range(2))
    one.reserve("a", Usage(2000, 1000), CHEAP)
    one.settle("a", Usage(1000, 500), CHEAP)
    other.reserve("b", Usage(1000, 500), DEAR)
    other.settle("b", Usage(1000, 500), DEAR)
    assert one.total() == other.total() == {CHEAP: Usage(1000, 500), DEAR: Usage(1000, 500)}
    with pytest.raises(BudgetError, match=r"0\.037 is spent of 0\.04, the run's max_cost.* 0\.004"):
        one.reserve("c", Usage(2000, 1000), CHEAP)
    one.reserve("d", Usage(1000, 1000), CHEAP)
    assert Ledger(tmp_path).total()[CHEAP] == Usage(2000, 1500)


def test_a_higher_limit_goes_on_from_what_was_spent(tmp_path: Path) -> None:
    _run(tmp_path, 100).reserve("a", Usage(90, 0), CHEAP)
    _run(tmp_path, 110).reserve("b", Usage(20, 0), CHEAP)
    assert _tokens(tmp_path) == 110


def test_one_process_waits_while_another_may_come_to_less(tmp_path: Path) -> None:
    one, other = (_run(tmp_path, 100) for _ in range(2))
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
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from trimtab.models.judge.budget import Ledger, Usage\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
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
                _run(tmp_path, 100).reserve("b", Usage(31, 0), CHEAP)
            errors.append(error.value)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        os.kill(process.pid, signal.SIGKILL)
        thread.join(20)
    assert "70 tokens are spent of 100, the run's max_total_tokens" in str(errors[0])
    _run(tmp_path, 100).reserve("c", Usage(30, 0), CHEAP)


@pytest.mark.slow
def test_a_file_that_is_cut_off_anywhere_counts_no_less_than_was_spent(tmp_path: Path) -> None:
    ledger = _run(tmp_path / "run")
    totals = [0]  # tokens after each line
    for name, held in (("a", 60), ("b", 75), ("c", 40)):
        ledger.reserve(name, Usage(held, 0), CHEAP)
        totals.append(totals[-1] + held)
    for name, came_to, held in (("b", 0, 75), ("a", 25, 60)):
        ledger.settle(name, Usage(came_to, 0), CHEAP)
        totals.append(totals[-1] - held + came_to)
    (path,) = (tmp_path / "run").glob("*.ledger")
    whole = path.read_bytes()
    (tmp_path / "cut").mkdir()
    for cut in range(len(whole) + 1):
        (tmp_path / "cut" / "dead.ledger").write_bytes(whole[:cut])
        complete = len([line for line in whole[:cut].split(b"\n")[:-1] if line])
        assert _tokens(tmp_path / "cut") == totals[complete], whole[:cut]


def test_a_line_behind_one_that_was_cut_off_is_read(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.reserve("a", Usage(60, 0), CHEAP)
    (path,) = tmp_path.glob("*.ledger")
    with path.open("ab") as stream:
        stream.write(b'\n{"request": "b", "re')
    assert _tokens(tmp_path) == 60
    ledger.settle("a", Usage(10, 0), CHEAP)
    assert _tokens(tmp_path) == 10


def test_threads_and_processes_append_at_once_and_no_line_is_lost(tmp_path: Path) -> None:
    ledgers = [_run(tmp_path, 10**9) for _ in range(3)]

    def spend(number: int) -> None:
        ledger = ledgers[number % 3]
        ledger.reserve(str(number), Usage(1000, 0), CHEAP)
        ledger.settle(str(number), Usage(number, 1), CHEAP)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(spend, range(200)))
    assert Ledger(tmp_path).total() == {CHEAP: Usage(sum(range(200)), 200)}


def test_what_a_full_run_refuses_is_reserved_nowhere(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    stage, run = Ledger(tmp_path / "stage", Limits(1000)), _run(tmp_path / "run", 100)
    budget = Budget([run, stage])
    budget.settle(budget.reserve(Usage(80, 0)), Usage(50, 0))
    with pytest.raises(BudgetError, match="50 tokens are spent of 100, the run's"):
        budget.reserve(Usage(60, 0))
    assert _tokens(tmp_path / "stage") == _tokens(tmp_path / "run") == 50


def test_what_cannot_be_noted_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: the one ledger forgets what the other could not write."""
    (tmp_path / "stage").mkdir()
    stage, run = Ledger(tmp_path / "stage"), _run(tmp_path / "run", 100)
    with monkeypatch.context() as full:
        full.setattr(stage, "_stream", (tmp_path / "full").open("ab", buffering=0))
        stage._stream.close()
        with pytest.raises(OSError, match="could not be written"):
            Budget([run, stage]).reserve(Usage(90, 0))
    assert _tokens(tmp_path / "run") == 0
    Budget([run, stage]).reserve(Usage(90, 0))


def test_nobody_waits_for_what_may_not_be_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _run(tmp_path, 100)

    def fail(_: int) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="could not be written: Input/output error"):
            ledger.reserve("a", Usage(70, 0), CHEAP)
    with pytest.raises(BudgetError, match="70 tokens are spent of 100"):
        _run(tmp_path, 100).reserve("b", Usage(31, 0), CHEAP)


def test_nobody_waits_for_what_could_not_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _run(tmp_path, 100)
    ledger.reserve("a", Usage(70, 0), CHEAP)

    def fail(_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_append", fail)
        with pytest.raises(OSError, match="No space left"):
            ledger.settle("a", Usage(10, 0), CHEAP)
    with pytest.raises(BudgetError, match="70 tokens are spent of 100"):
        _run(tmp_path, 100).reserve("b", Usage(31, 0), CHEAP)
    with pytest.raises(OSError, match="could not be written"):
        ledger.reserve("c", Usage(1, 0), CHEAP)


def test_what_is_left_over_is_taken_only_once_the_ledger_has_it(tmp_path: Path) -> None:
    """Else a kill in between would leave two requests at their most: 90 + 50 of 100."""
    noting, goes_on = threading.Event(), threading.Event()

    class Slow(Ledger):
        def settle(self, *what: Any) -> None:
            noting.set()
            assert goes_on.wait(60)
            super().settle(*what)

    budget = Budget([Slow(tmp_path, Limits(100))])
    first = budget.reserve(Usage(90, 0))
    ends = threading.Thread(target=budget.settle, args=(first, Usage(10, 0)), daemon=True)
    waits = threading.Thread(target=budget.reserve, args=(Usage(50, 0),), daemon=True)
    ends.start()
    assert noting.wait(60)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    assert _tokens(tmp_path) == 90
    goes_on.set()
    ends.join(60)
    waits.join(60)
    assert _tokens(tmp_path) == 10 + 50


def test_ends_count_as_they_are_and_what_has_none_as_its_most(tmp_path: Path) -> None:
    """Of a process before, for which nobody waits: 20 and 5, nothing, at most 30 and 10."""
    rows: list[dict[str, Any]] = [
        {"request": "a", "reserved": [50, 10]},
        {"request": "b", "reserved": [70, 5]},
        {"request": "c", "reserved": [30, 10]},
        {"request": "b", "spent": [0, 0]},
        {"request": "a", "spent": [20, 5]},
    ]
    lines = [json.dumps({**row, "prices": [0, 0]}) + "\n" for row in rows]
    (tmp_path / "before.ledger").write_text("".join(lines))
    budget = limited(tmp_path, max_tokens=70)
    assert budget.spent == Usage(50, 15)
    with pytest.raises(BudgetError, match="65 tokens are spent of 70"):
        budget.reserve(Usage(6, 0))
    budget.settle(budget.reserve(Usage(5, 0)), Usage(4, 0))
    assert budget.spent == Usage(54, 15) == limited(tmp_path).spent


def test_the_environment_names_the_run_s_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_JUDGE_LEDGER", str(tmp_path / "run"))
    config = JudgeConfig(endpoint=EndpointConfig(model="m", max_total_tokens=100))
    with pytest.raises(FileNotFoundError, match="run"):
        build_budget(config, tmp_path)
    (tmp_path / "run").mkdir()
    for stage in ("one", "two"):
        (tmp_path / stage).mkdir()
        budget = build_budget(config, tmp_path / stage)
        if stage == "one":
            budget.settle(budget.reserve(Usage(60, 0)), Usage(60, 0))
    with pytest.raises(BudgetError, match="60 tokens are spent of 100, the run's"):
        budget.reserve(Usage(41, 0))
    assert budget.spent == Usage()


def _ask_until_killed(config: EndpointConfig, folder: Path, first: int) -> None:
    """A stage in a process of its own."""
    (folder / f"{first}").mkdir()
    budget = Budget([_run(folder / "run", LIMIT), Ledger(folder / f"{first}")])
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
    (tmp_path / "run").mkdir()
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
    stages = sum(_tokens(path) for path in tmp_path.iterdir() if path.name != "run")
    assert till.billed <= stages <= _tokens(tmp_path / "run")


def _ask_as_a_stage(config: EndpointConfig, folder: Path, first: int) -> None:
    """What a stage does, in a process of its own: new questions in every life, and old ones."""
    budget = limited(folder, max_tokens=LIMIT)
    chat = CachedChatModel(Endpoint(config, budget), AnswerCache(folder / "answers"), budget)
    try:
        chat.ask([request(f"{n}" + "x" * (n % 50), 20) for n in range(first, first + 60)])
    except BudgetError:
        raise SystemExit(SPENT_UP) from None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_it_never_spends_more(tmp_path: Path, seed: int) -> None:
    """kill -9 at random requests, answers lost on the way, last lines cut off: what the endpoint
    has billed is within the limit, whatever those who were killed knew of it."""
    till, lives, kills = _Till(seed), 0, 0
    with serving(till) as server:
        config = endpoint_config(server, max_concurrency=4, first_wait_seconds=0.001)
        while True:
            process = FORKED.Process(target=_ask_as_a_stage, args=(config, tmp_path, 20 * lives))
            process.start()
            till.victims = [process]
            process.join()
            lives += 1
            assert till.billed <= _tokens(tmp_path) <= LIMIT
            if process.exitcode == SPENT_UP:
                break
            kills += process.exitcode == -signal.SIGKILL
            assert process.exitcode in (0, -signal.SIGKILL)
            with next(tmp_path.glob("*.ledger")).open("ab") as stream:
                stream.write(b'{"request": "cut off", "re' if lives % 2 else b"")
    assert kills >= 3
    assert till.billed > LIMIT / 4
