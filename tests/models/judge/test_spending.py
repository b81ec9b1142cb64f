"""What a stage has spent stays spent: over kills, steps back and machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.models.asking import killing, priced
from tests.models.jobs import job
from tests.models.judge.endpoint import Body, Reply, completion, serving
from trimtab.infra.processes.launch import TrainerError, TrainerKilledError, launch
from trimtab.models.config.judge import JudgeConfig, JudgePreferencesConfig
from trimtab.models.judge.budget import BudgetError, Ledger
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.reward import JudgeReward
from trimtab.models.training import signals
from trimtab.models.training.checkpoint import newest_checkpoint, save_checkpoint
from trimtab.models.training.data import write_rows

HELD = Usage(100, 10)
PRICES = (1.0, 10.0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    signals._flag.raised = False


def _total(folder: Path) -> Usage:
    return sum(Ledger(folder).total().values(), Usage())


def test_a_step_back_unspends_nothing(tmp_path: Path) -> None:
    """Behind the checkpoint a request ended and another began; the record is as it was."""
    ledger, record = Ledger(tmp_path), tmp_path / "metrics.jsonl"
    ledger.reserve("a", HELD, PRICES)
    record.write_text("1\n")
    save_checkpoint(tmp_path, 1, {})
    ledger.settle("a", Usage(20, 2), PRICES)
    ledger.reserve("b", HELD, PRICES)
    record.write_text("1\n2\n")
    newest_checkpoint(tmp_path)
    assert record.read_text() == "1\n"
    assert _total(tmp_path) == Usage(120, 12)
    ledger.settle("b", Usage(1, 1), PRICES)  # the file that was open is still the ledger
    assert _total(tmp_path) == sum(ledger.total().values(), Usage()) == Usage(21, 3)


def test_two_machines_copies_become_one(tmp_path: Path) -> None:
    """There and back: `a` is of here, `b` of there; a line that was cut off is of neither."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    first = Ledger(here)
    first.reserve("a", HELD, PRICES)
    save_checkpoint(here, 1, {})
    shutil.copytree(here / "checkpoints", there / "checkpoints")
    first.settle("a", Usage(1, 1), PRICES)
    (path,) = here.glob("*.ledger")
    with path.open("ab") as stream:
        stream.write(b'{"request": "c", "reserved": [5')
    newest_checkpoint(there)
    assert _total(there) == HELD
    Ledger(there).reserve("b", HELD, PRICES)
    save_checkpoint(there, 2, {})
    shutil.copytree(there / "checkpoints", here / "checkpoints", dirs_exist_ok=True)
    for _ in range(2):
        newest_checkpoint(here)
        assert _total(here) == HELD + Usage(1, 1)
    texts = [path.read_text() for path in here.glob("*.ledger")]
    lines = [line for text in texts for line in text.splitlines() if line.endswith("}")]
    assert len(lines) == 3


def test_a_judge_that_is_opened_before_its_checkpoint_knows_of_it(tmp_path: Path) -> None:
    """As PPO's is: what was spent elsewhere comes with the checkpoint."""
    with serving(lambda *_: completion("5")) as server:
        config = JudgeConfig(endpoint=priced(server, max_total_tokens=2000))
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
        rater = JudgeReward(config, tmp_path / "there", 0)
        Ledger(tmp_path / "here").reserve("a", Usage(1900, 0), PRICES)
        save_checkpoint(tmp_path / "here", 1, {})
        shutil.copytree(tmp_path / "here" / "checkpoints", tmp_path / "there" / "checkpoints")
        newest_checkpoint(tmp_path / "there")
        with pytest.raises(BudgetError, match="1900 tokens are spent of 2000"):
            rater.rate(["p"], ["r"])
        assert server.bodies == []


@pytest.mark.slow
def test_a_stage_killed_again_and_again_stays_within_its_limit(tmp_path: Path) -> None:
    """kill -9 in the middle of its requests; what the endpoint then bills, nobody hears of."""
    limit, billed = 30_000, 0
    pairs = [
        {"id": f"{n}", "prompt": f"Human: question {n}", "chosen": "x", "rejected": "y"}
        for n in range(60)
    ]
    for split, own in (("train", pairs), ("validation", []), ("test", [])):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", own)

    def dear(_: int, body: Body) -> Body:
        return completion("A", prompt_tokens=500)

    def billing(number: int, body: Body) -> Reply | Body:
        nonlocal billed
        billed += 501
        return script(number, body)

    def go_on(**limits: Any) -> None:
        endpoint = priced(server, max_concurrency=4, **limits)
        config = JudgePreferencesConfig(judge=JudgeConfig(endpoint=endpoint), pairs_at_once=5)
        inputs = {"preferences": tmp_path / "pairs"}
        launch(job(tmp_path / "w", config, tmp_path, 1, "judge_preferences", inputs))

    with serving(billing) as server:
        for killed_at in (5, 20):
            script = killing(dear, killed_at)
            with pytest.raises(TrainerKilledError):
                go_on(max_total_tokens=limit)
            assert billed <= _total(tmp_path / "w").total <= limit
        script = dear
        with pytest.raises(TrainerError, match="this stage's max_total_tokens"):
            go_on(max_total_tokens=limit)
        assert limit / 2 < billed <= _total(tmp_path / "w").total <= limit
        # A higher limit goes on from there, and asks nothing of what it knows.
        go_on(max_total_tokens=10 * limit)
        assert len({str(body) for body in server.bodies}) == 2 * len(pairs)
        assert len(server.bodies) <= 2 * len(pairs) + 2 * 8  # twice four that nobody could keep
        assert billed <= _total(tmp_path / "w").total
