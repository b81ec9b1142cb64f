"""Stage judge_preferences: what it says of pairs is right, and it never asks anything twice."""

from __future__ import annotations

import json
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.models.asking import killing, prefer_longer, priced, requests_of, stopping
from tests.models.conftest import run_stage
from tests.models.jobs import job
from tests.models.judge.endpoint import Body, Reply, Script, ScriptedServer, completion, serving
from trimtab.infra.processes.launch import TrainerKilledError, launch
from trimtab.models.config.judge import JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.reward import StrengthConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.budget import BudgetError
from trimtab.models.judge.client import EndpointError
from trimtab.models.training import signals
from trimtab.models.training.data import SPLITS, write_rows

NUM_PAIRS = 12


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    signals._flag.raised = False


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """The endpoint prefers the longer answer, which is chosen two times in three."""
    rows = [
        {
            "id": f"pair-{n}",
            "prompt": f"Human: question {n}",
            "chosen": "x" * (n + 2 if n % 3 else 1),
            "rejected": "y" * (1 if n % 3 else n + 2),
        }
        for n in range(NUM_PAIRS)
    ]
    for split, own in (("train", rows), ("validation", []), ("test", [])):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", own)
    return tmp_path / "pairs"


def _config(server: ScriptedServer, **endpoint: Any) -> JudgePreferencesConfig:
    return JudgePreferencesConfig(
        judge=JudgeConfig(endpoint=priced(server, **endpoint)), pairs_at_once=5
    )


def _files(output: Path) -> list[str]:
    return [(output / name).read_text() for name in ("judgements.jsonl", "summary.json")]


def test_rows_and_summary_by_hand(tmp_path: Path, pairs: Path) -> None:
    """Longer: .9 where it is first, .7 where second (the other has .3): .8, and .2 for shorter."""
    with serving(prefer_longer) as server:
        output = run_stage("judge_preferences", _config(server), tmp_path / "w", preferences=pairs)
    rows = read_rows(output / "judgements.jsonl")
    assert [row["id"] for row in rows] == [f"pair-{n}" for n in range(NUM_PAIRS)]
    assert rows[1] == {
        "id": "pair-1",
        "split": "train",
        "preference": pytest.approx(0.8),
        "shown_first": pytest.approx(0.9),
        "shown_second": pytest.approx(0.7),
        "verdict": 1,
        "num_unparsed": 0,
        "prompt_tokens": 20,
        "completion_tokens": 2,
        "cost": pytest.approx(40e-6),
    }
    assert (rows[0]["preference"], rows[0]["verdict"]) == (pytest.approx(0.2), -1)
    scores = read_rows(output / "scores.jsonl")
    assert scores[1] == {
        "id": "pair-1",
        "split": "train",
        "chosen_score": pytest.approx(math.log(4)),
        "rejected_score": 0.0,
        "was_trained_on": False,
    }
    assert scores[0]["chosen_score"] == pytest.approx(-math.log(4))
    summary = json.loads((output / "summary.json").read_text())
    assert summary["train_alignment"] == summary["alignment"] == pytest.approx(2 / 3)
    assert summary["train_alignment_low"] < 2 / 3 < summary["train_alignment_high"]
    # Where the longer one is chosen, (.9 + .3)/2 - .5; where it is not, (.3 + .9)/2 - .5.
    assert summary["position_bias"] == pytest.approx(0.1)
    assert (summary["num_unparsed"], summary["share_same_position"], summary["share_tied"]) == (
        *(0, 0, 0),
    )
    assert summary["cost"] == pytest.approx(NUM_PAIRS * 40e-6)
    lines = [json.loads(line) for line in (tmp_path / "w/metrics.jsonl").read_text().splitlines()]
    done = [line["progress"] for line in lines if "progress" in line]
    assert done == sorted(done) and done[-1] == [NUM_PAIRS, NUM_PAIRS]
    last = [line["metrics"] for line in lines if "metrics" in line][-1]
    assert (last["num_asked"], last["num_known"], last["tokens"]) == (24, 0, 22 * NUM_PAIRS)


def _scores(script: Script, folder: Path, pairs: Path, **changes: Any) -> list[float | None]:
    """The votes on pairs of all splits, a single attempt each."""
    with serving(script) as server:
        config = _config(server).model_copy(update={"splits": SPLITS, **changes})
        output = run_stage("judge_preferences", config, folder, preferences=pairs)
    return [row["chosen_score"] for row in read_rows(output / "scores.jsonl")]


def test_it_has_no_vote_on_what_it_does_not_tell(tmp_path: Path, pairs: Path) -> None:
    """The first answer every time, as text: the orders outweigh each other. No answer in one order
    or in both. Pairs beyond the limit."""
    always_first = _scores(lambda *_: completion("A"), tmp_path / "a", pairs)
    never = _scores(lambda *_: completion("I cannot say"), tmp_path / "b", pairs)
    assert always_first == never == [None] * NUM_PAIRS

    def if_longer_is_first(_: int, body: Body) -> Body:
        lines = body["messages"][0]["content"].split("\n")
        first, second = (lines[lines.index(f"[response {place}]") + 1] for place in "AB")
        return completion("A" if len(first) > len(second) else "well")

    assert _scores(if_longer_is_first, tmp_path / "c", pairs) == [None] * NUM_PAIRS
    few = _scores(prefer_longer, tmp_path / "d", pairs, max_pairs=2)
    assert few[:2] == pytest.approx([-math.log(4), math.log(4)])
    assert few[2:] == [None] * (NUM_PAIRS - 2)


def test_an_endpoint_that_dies_and_comes_back_is_asked_for_the_rest(
    tmp_path: Path, pairs: Path
) -> None:
    """After ten answers it gives none: the stage ends, and run again no pair is asked twice."""
    is_dead = threading.Event()

    def dying(number: int, body: Body) -> Reply | Body:
        if number == 10:
            is_dead.set()
        return Reply(status=500) if is_dead.is_set() else prefer_longer(number, body)

    with serving(dying) as server:
        config = _config(server, max_retries=0, max_concurrency=1)
        with pytest.raises(EndpointError, match="status 500"):
            run_stage("judge_preferences", config, tmp_path / "w", preferences=pairs)
        answered = server.bodies[:10]
        assert len(server.bodies) == 11
        server.script = prefer_longer
        run_stage("judge_preferences", config, tmp_path / "w", preferences=pairs)
        again = server.bodies[11:]
    assert len(again) == 2 * NUM_PAIRS - 10
    assert not any(body in answered for body in again)


def test_labels_stay_within_the_bounds_and_a_constitution_is_read(
    tmp_path: Path, pairs: Path
) -> None:
    """.8 and .2 become .6 and .4: who wins stays, and so does what each order said."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.txt").write_text("Longer is better.")
    with serving(prefer_longer) as server:
        config = _config(server)
        changed = {"clamp": (0.4, 0.6), "constitution": "mine.txt"}
        config = config.model_copy(update={"judge": config.judge.model_copy(update=changed)})
        inputs = {"preferences": pairs, "constitution": tmp_path / "own"}
        output = run_stage("judge_preferences", config, tmp_path / "w", **inputs)
        asked = server.bodies[0]["messages"][0]["content"]
    assert "\nLonger is better.\n" in asked
    rows = read_rows(output / "judgements.jsonl")
    assert [row["preference"] for row in rows[:2]] == pytest.approx([0.4, 0.6])
    assert (rows[1]["shown_first"], rows[1]["verdict"]) == (pytest.approx(0.9), 1)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["alignment"] == pytest.approx(2 / 3)
    assert summary["mean_preference"] == pytest.approx((0.4 + 2 * 0.6) / 3)


@pytest.mark.parametrize("killed_at", [1, 7, 15])
def test_killed_and_run_again_it_asks_nothing_twice(
    tmp_path: Path, pairs: Path, killed_at: int
) -> None:
    """kill -9 while one request is under way: that alone is asked again."""
    with serving(prefer_longer) as server:
        whole = run_stage("judge_preferences", _config(server), tmp_path / "w", preferences=pairs)
        expected = requests_of(server)

    with serving(killing(prefer_longer, killed_at)) as server:
        config = _config(server, max_concurrency=1)
        path = job(tmp_path / "k", config, pairs, 1, "judge_preferences", {"preferences": pairs})
        with pytest.raises(TrainerKilledError):
            launch(path)
        launch(path)
        assert requests_of(server) == sorted([*expected, json.dumps(server.bodies[killed_at])])
    assert _files(tmp_path / "k" / "output") == _files(whole)


@pytest.mark.parametrize("stopped_at", [3, 14])
def test_stopped_it_goes_on_elsewhere_from_its_checkpoint_alone(
    tmp_path: Path, pairs: Path, stopped_at: int
) -> None:
    """Told to stop, it keeps what is under way: on another machine nothing is asked twice."""
    with serving(prefer_longer) as server:
        whole = run_stage("judge_preferences", _config(server), tmp_path / "w", preferences=pairs)
        expected = requests_of(server)

    with serving(stopping(prefer_longer, stopped_at)) as server:
        config = _config(server, max_concurrency=4)
        with pytest.raises(SystemExit) as stop:
            run_stage("judge_preferences", config, tmp_path / "here", preferences=pairs)
        assert stop.value.code == signals.EXIT_STOPPED
        assert len(server.bodies) < len(expected)
        signals._flag.raised = False
        shutil.copytree(tmp_path / "here" / "checkpoints", tmp_path / "there" / "checkpoints")
        output = run_stage("judge_preferences", config, tmp_path / "there", preferences=pairs)
        assert requests_of(server) == expected
    assert _files(output) == _files(whole)


def test_a_shared_folder_serves_stages_with_other_settings(
    tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_ANSWERS", str(tmp_path / "answers"))
    with serving(prefer_longer) as server:
        config = _config(server)
        first = run_stage("judge_preferences", config, tmp_path / "a", preferences=pairs)
        asked = len(server.bodies)
        other = config.model_copy(update={"pairs_at_once": 2})
        second = run_stage("judge_preferences", other, tmp_path / "b", preferences=pairs)
        assert len(server.bodies) == asked == 2 * NUM_PAIRS
    assert _files(first)[0] == _files(second)[0]


def test_a_spent_budget_ends_the_stage_and_a_larger_one_ends_it_well(
    tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_ANSWERS", str(tmp_path / "answers"))
    with serving(lambda *_: completion("A", prompt_tokens=1000)) as server:
        config = _config(server, max_total_tokens=10_000)
        with pytest.raises(BudgetError, match="raise the limit and run the same again"):
            run_stage("judge_preferences", config, tmp_path / "a", preferences=pairs)
        asked = len(server.bodies)
        assert 0 < asked < 10
        config = _config(server, max_total_tokens=200_000)
        run_stage("judge_preferences", config, tmp_path / "b", preferences=pairs)
        assert len(server.bodies) == 2 * NUM_PAIRS == len(set(requests_of(server)))


def test_the_gold_judge_at_its_best_finds_the_worlds_wrong_labels(
    tmp_path: Path, comparisons: Path
) -> None:
    config = JudgePreferencesConfig(judge=JudgeConfig(gold_accuracy=1.0), splits=("train", "test"))
    output = run_stage("judge_preferences", config, tmp_path, preferences=comparisons)
    truth = {row["id"]: row for row in read_rows(comparisons / "truth.jsonl")}
    rows = read_rows(output / "judgements.jsonl")
    assert {row["split"] for row in rows} == {"train", "test"}
    right = []
    for row in rows:
        gap = truth[row["id"]]["gold_chosen"] - truth[row["id"]]["gold_rejected"]
        expected = 0.5 if gap == 0 else 1.0 if gap > 0 else 0.0
        assert row["preference"] == expected
        assert row["verdict"] == (gap > 0) - (gap < 0)
        right.append(expected)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["alignment"] == pytest.approx(sum(right) / len(right))
    assert summary["position_bias"] == summary["cost"] == 0


def test_the_votes_of_the_gold_judge_contradict_the_worlds_wrong_labels(
    tmp_path: Path, comparisons: Path
) -> None:
    config = JudgePreferencesConfig(judge=JudgeConfig(gold_accuracy=1.0), splits=SPLITS)
    judged = run_stage("judge_preferences", config, tmp_path / "j", preferences=comparisons)
    truth = {row["id"]: row for row in read_rows(comparisons / "truth.jsonl")}
    scores = read_rows(judged / "scores.jsonl")
    gaps = [truth[row["id"]]["gold_chosen"] - truth[row["id"]]["gold_rejected"] for row in scores]
    assert {row["split"] for row in scores} == set(SPLITS) and min(gaps) < 0 < max(gaps)
    assert [row["chosen_score"] for row in scores] == [
        None if gap == 0 else pytest.approx(math.copysign(math.log(999), gap)) for gap in gaps
    ]
    config = StrengthConfig(mode="calibrated")
    voted = run_stage("strength", config, tmp_path / "s", member_0=judged)
    strength = [row["strength_mean"] for row in read_rows(voted / "strength.jsonl")]
    assert [math.copysign(bool(each), each) for each in strength] == [
        math.copysign(bool(gap), gap) for gap in gaps
    ]


def test_only_wanted_categories_are_judged(tmp_path: Path, comparisons: Path) -> None:
    rows = read_rows(comparisons / "train.jsonl")
    wanted = rows[-1]["category"]
    expected = [row["id"] for row in rows if row["category"] == wanted][:3]
    assert expected != [row["id"] for row in rows[:3]]
    config = JudgePreferencesConfig(
        judge=JudgeConfig(gold_accuracy=1.0), categories=(wanted,), max_pairs=3
    )
    output = run_stage("judge_preferences", config, tmp_path / "w", preferences=comparisons)
    assert [row["id"] for row in read_rows(output / "judgements.jsonl")] == expected
    config = config.model_copy(update={"categories": ("weather",)})
    with pytest.raises(ValueError, match=r"train\.jsonl holds no pairs of the categories \['weath"):
        run_stage("judge_preferences", config, tmp_path / "v", preferences=comparisons)


def test_a_split_without_pairs_is_an_error(tmp_path: Path, pairs: Path) -> None:
    (pairs / "test.jsonl").write_text("")
    config = JudgePreferencesConfig(judge=JudgeConfig(gold_accuracy=1.0), splits=("test",))
    with pytest.raises(ValueError, match=r"test\.jsonl holds no pairs"):
        run_stage("judge_preferences", config, tmp_path / "w", preferences=pairs)
