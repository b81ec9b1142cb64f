"""Stage revise: what it makes of answers is right, and it never asks anything twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.models.asking import killing, priced, requests_of, stopping
from tests.models.conftest import run_stage
from tests.models.jobs import job
from tests.models.judge.endpoint import Body, Reply, ScriptedServer, completion, serving
from trimtab.infra.processes.launch import TrainerKilledError, launch
from trimtab.models.config.judge import ChatModelConfig
from trimtab.models.config.policy import ReviseConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.budget import BudgetError
from trimtab.models.judge.chat import Message
from trimtab.models.judge.constitutions import load_constitution
from trimtab.models.judge.prompts import read_blocks
from trimtab.models.judge.rubrics import load_questions
from trimtab.models.stages import revise
from trimtab.models.training import signals

NUM_PROMPTS, NUM_STEPS = 6, 2
ASKED = 2 * NUM_STEPS * NUM_PROMPTS
ANSWER = load_questions()["revise answer"]
FILES = ("revisions.jsonl", "demonstrations.jsonl", "summary.json")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    signals._flag.raised = False


def _shown(body: Body, name: str) -> str:
    messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
    return read_blocks(messages)[name]


def _add_a_word(_: int, body: Body) -> Body:
    """A revision is the draft with `done` behind it."""
    if body["messages"][-1]["content"].endswith(ANSWER):
        return completion(f"{_shown(body, 'draft')} done", prompt_tokens=20, completion_tokens=2)
    return completion("It lacks a word.", prompt_tokens=10, completion_tokens=3)


def _config(server: ScriptedServer, **endpoint: Any) -> ReviseConfig:
    return ReviseConfig(
        judge=ChatModelConfig(endpoint=priced(server, **endpoint)),
        categories=("harmful", "howto"),
        max_prompts=NUM_PROMPTS,
        num_revisions=NUM_STEPS,
        max_new_tokens=12,
        prompts_at_once=4,
    )


def _files(output: Path) -> list[str]:
    return [(output / name).read_text() for name in FILES]


def test_rows_and_summary_by_hand(tmp_path: Path, world: Path, policy: Path) -> None:
    inputs = {"data": world, "policy": policy}
    with serving(_add_a_word) as server:
        output = run_stage("revise", _config(server), tmp_path / "w", **inputs)
        assert len(server.bodies) == ASKED
    rows = read_rows(output / "revisions.jsonl")
    known = {row["prompt"]: row["category"] for row in read_rows(world / "policy_prompts.jsonl")}
    principles = load_constitution("harmlessness", None)
    assert len({row["prompt"] for row in rows}) == NUM_PROMPTS
    for row in rows:
        assert row["category"] == known[row["prompt"]] and row["category"] in ("harmful", "howto")
        words = row["response"].split()  # perhaps none
        assert [step["revision"].split() for step in row["steps"]] == [
            *([*words, "done"], [*words, "done", "done"]),
        ]
        for number, step in enumerate(row["steps"], start=1):
            assert step["principle"] == principles.draw(0, str(number), row["prompt"])
            assert (step["critique"], step["is_usable"]) == ("It lacks a word.", True)
        # Two steps of 10 + 20 tokens read and 3 + 2 written.
        assert (row["prompt_tokens"], row["completion_tokens"]) == (60, 10)
        assert row["cost"] == pytest.approx(160e-6)
    assert read_rows(output / "demonstrations.jsonl") == [
        {
            "prompt": row["prompt"],
            "response": row["steps"][-1]["revision"],
            "category": row["category"],
        }
        for row in rows
    ]
    summary = json.loads((output / "summary.json").read_text())
    counts = ("num_prompts", "num_demonstrations", "num_unusable")
    assert [summary[name] for name in counts] == [NUM_PROMPTS, NUM_PROMPTS, 0]
    assert summary["share_changed"] == 1
    assert summary["words_after"] == pytest.approx(summary["words_before"] + 2)
    assert summary["cost"] == pytest.approx(NUM_PROMPTS * 160e-6)
    lines = [json.loads(line) for line in (tmp_path / "w/metrics.jsonl").read_text().splitlines()]
    done = [line["progress"] for line in lines if "progress" in line]
    assert done == sorted(done) and done[-1] == [NUM_PROMPTS, NUM_PROMPTS]


@pytest.mark.slow
def test_faults_of_an_endpoint_change_nothing(tmp_path: Path, world: Path, policy: Path) -> None:
    """Busy, broken, cut off in its middle, no answer in time: each is asked again."""
    inputs = {"data": world, "policy": policy}
    with serving(_add_a_word) as server:
        whole = run_stage("revise", _config(server), tmp_path / "w", **inputs)
    faults = {
        1: Reply({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.05"}),
        4: Reply({"error": {"message": "broken"}}, 500),
        7: Reply(completion("half"), cut=20),
        9: Reply(text='{"choices": [{"mess'),
        13: Reply(stall=True),
    }
    with serving(lambda number, body: faults.get(number) or _add_a_word(number, body)) as server:
        config = _config(server, timeout_seconds=2)
        output = run_stage("revise", config, tmp_path / "f", **inputs)
        assert len(server.bodies) == ASKED + len(faults)
        assert len(set(requests_of(server))) == ASKED
    assert _files(output) == _files(whole)


def test_answers_of_no_use_are_counted_and_not_learned(
    tmp_path: Path, world: Path, policy: Path
) -> None:
    inputs = {"data": world, "policy": policy}
    with serving(_add_a_word) as server:
        whole = run_stage("revise", _config(server), tmp_path / "w", **inputs)
    bad = read_rows(whole / "revisions.jsonl")[2]["prompt"]

    def script(number: int, body: Body) -> Body:
        found = _add_a_word(number, body)
        if _shown(body, "dialogue") == bad.strip():
            found["choices"][0]["finish_reason"] = "length"
        return found

    with serving(script) as server:
        output = run_stage("revise", _config(server), tmp_path / "b", **inputs)
    row = read_rows(output / "revisions.jsonl")[2]
    assert [step["revision"] for step in row["steps"]] == [row["response"]] * NUM_STEPS
    prompts = {row["prompt"] for row in read_rows(output / "demonstrations.jsonl")}
    assert len(prompts) == NUM_PROMPTS - 1 and bad not in prompts
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_unusable"], summary["num_demonstrations"]) == (2, NUM_PROMPTS - 1)
    assert summary["share_changed"] == pytest.approx(1 - 1 / NUM_PROMPTS)
    with (
        serving(lambda *_: completion("")) as server,
        pytest.raises(ValueError, match="none of the 12 answers is a revision"),
    ):
        run_stage("revise", _config(server), tmp_path / "n", **inputs)


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [1, 9, 20])
def test_killed_and_run_again_it_asks_nothing_twice(
    tmp_path: Path, world: Path, policy: Path, killed_at: int
) -> None:
    """kill -9 while one request is under way: that alone is asked again."""
    with serving(_add_a_word) as server:
        inputs = {"data": world, "policy": policy}
        whole = run_stage("revise", _config(server), tmp_path / "w", **inputs)
        expected = requests_of(server)

    with serving(killing(_add_a_word, killed_at)) as server:
        config = _config(server, max_concurrency=1)
        path = job(tmp_path / "k", config, world, 1, "revise", {"policy": policy})
        with pytest.raises(TrainerKilledError):
            launch(path)
        launch(path)
        assert requests_of(server) == sorted([*expected, json.dumps(server.bodies[killed_at])])
    assert _files(tmp_path / "k" / "output") == _files(whole)


@pytest.mark.parametrize("stopped_at", [3, 14])
def test_stopped_it_goes_on_elsewhere_from_its_checkpoint_alone(
    tmp_path: Path, world: Path, policy: Path, stopped_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the policy is not sampled again, which might say other things on another machine."""
    inputs = {"data": world, "policy": policy}
    with serving(_add_a_word) as server:
        whole = run_stage("revise", _config(server), tmp_path / "w", **inputs)
        expected = requests_of(server)

    with serving(stopping(_add_a_word, stopped_at)) as server:
        config = _config(server, max_concurrency=3)
        with pytest.raises(SystemExit) as stop:
            run_stage("revise", config, tmp_path / "here", **inputs)
        assert stop.value.code == signals.EXIT_STOPPED
        assert len(server.bodies) < len(expected)
        signals._flag.raised = False
        shutil.copytree(tmp_path / "here" / "checkpoints", tmp_path / "there" / "checkpoints")
        monkeypatch.setattr(revise, "respond", None)
        output = run_stage("revise", config, tmp_path / "there", **inputs)
        assert requests_of(server) == expected
    assert _files(output) == _files(whole)


def test_a_spent_budget_ends_the_stage_and_a_larger_one_ends_it_well(
    tmp_path: Path, world: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may come to some 800 bytes and 256 tokens."""
    monkeypatch.setenv("TRIMTAB_ANSWERS", str(tmp_path / "answers"))
    inputs = {"data": world, "policy": policy}
    with serving(_add_a_word) as server:
        expected = run_stage("revise", _config(server), tmp_path / "w", **inputs)
    shutil.rmtree(tmp_path / "answers")

    def dear(number: int, body: Body) -> Body:
        found = _add_a_word(number, body)
        return found | {"usage": {"prompt_tokens": 500, "completion_tokens": 100}}

    with serving(dear) as server:
        config = _config(server, max_total_tokens=6000)
        with pytest.raises(BudgetError, match="raise the limit and run the same again"):
            run_stage("revise", config, tmp_path / "a", **inputs)
        assert 0 < len(server.bodies) * 600 <= 6000
        config = _config(server, max_total_tokens=200_000)
        output = run_stage("revise", config, tmp_path / "b", **inputs)
        assert len(server.bodies) == ASKED == len(set(requests_of(server)))
    found, wanted = (read_rows(each / "demonstrations.jsonl") for each in (output, expected))
    assert found == wanted
