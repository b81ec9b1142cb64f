"""Stage judge_answers: verdicts on policies are right, and nothing is asked without need."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models.asking import killing, prefer_longer, priced, requests_of, stopping
from tests.models.conftest import run_stage
from tests.models.jobs import job
from tests.models.judge.endpoint import ScriptedServer, completion, serving
from trimtab.infra.processes.launch import TrainerKilledError, launch
from trimtab.models.config.judge import JudgeAnswersConfig, JudgeConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.budget import BudgetError
from trimtab.models.synthetic.demonstrations import (
    corrupted_response,
    draw_prompts,
    perfect_response,
)
from trimtab.models.synthetic.gold import quality
from trimtab.models.synthetic.tasks import MAIN
from trimtab.models.training import signals
from trimtab.models.training.data import write_rows

# By policy; the second and the third answer of `a` are shorter, or as long, than SFT's.
ANSWERS = {
    "b": ["xxxx", "xx", "yyy", "other!", "pppp"],
    "sft": ["xx", "xxx", "x", "same", "pppp"],
    "a": ["xxxx", "x", "y", "same", "q"],
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    signals._flag.raised = False


def _write(
    folder: Path, answers: Mapping[str, Sequence[str]], seed: int = 3, question: str = "question"
) -> dict[str, Path]:
    """Evaluations: every other prompt of the set `main` is harmless; one validation prompt."""
    found = {}
    for policy, texts in answers.items():
        rows: list[dict[str, Any]] = [
            {
                "set": "main",
                "prompt": f"Human: {question} {n}",
                "category": "harmless" if n % 2 else "helpful",
                "response": text,
            }
            for n, text in enumerate(texts)
        ]
        rows.append({"set": "validation", "prompt": "Human: v", "response": policy})
        found[f"{seed}.{policy}"] = folder / "in" / f"{seed}.{policy}"
        write_rows(found[f"{seed}.{policy}"] / "responses.jsonl", rows)
    return found


@pytest.fixture
def evaluations(tmp_path: Path) -> dict[str, Path]:
    return _write(tmp_path, ANSWERS)


def _config(server: ScriptedServer, **endpoint: Any) -> JudgeAnswersConfig:
    judge = JudgeConfig(endpoint=priced(server, **endpoint))
    return JudgeAnswersConfig(name="m", judge=judge, pairs_at_once=4)


def _run(config: JudgeAnswersConfig, workdir: Path, inputs: Mapping[str, Path]) -> Path:
    return run_stage("judge_answers", config, workdir, **inputs)


def _files(output: Path) -> list[str]:
    return [(output / name).read_text() for name in ("verdicts.jsonl", "summary.json")]


def test_rows_and_summary_by_hand(tmp_path: Path, evaluations: dict[str, Path]) -> None:
    """The longer answer has .8; equally long ones have .5, as the orders disagree: a tie."""
    with serving(prefer_longer) as server:
        output = _run(_config(server), tmp_path / "w", evaluations)
        # 3 pairs of 5 answers: two pairs are equal, and four have been asked about before.
        assert len(server.bodies) == len(set(requests_of(server))) == 2 * 9
    rows = read_rows(output / "verdicts.jsonl")
    assert rows[0] == {
        "seed": 3,
        "set": "main",
        "place": 0,
        "prompt": "Human: question 0",
        "category": "helpful",
        "ours": "sft",
        "theirs": "a",
        "verdict": -1,
        "preference": pytest.approx(0.2),
        "num_unparsed": 0,
    }
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        own = found.setdefault((row["ours"], row["theirs"]), [])
        own.append((row["verdict"], round(row["preference"], 6)))
    lost, tied, won = (-1, 0.2), (0, 0.5), (1, 0.8)
    assert found == {
        ("sft", "a"): [lost, won, tied, tied, won],
        ("sft", "b"): [lost, won, lost, lost, tied],
        # On the last prompt a and b are as SFT and a the other way round.
        ("a", "b"): [tied, lost, lost, lost, lost],
    }
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["name"], summary["num_verdicts"], summary["num_asked"]) == ("m", 15, 9)
    assert (summary["prompt_tokens"], summary["completion_tokens"]) == (9 * 20, 9 * 2)
    assert summary["cost"] == pytest.approx(9 * 40e-6)
    assert summary["share_same_position"] == summary["share_tied"] == pytest.approx(1 / 9)
    # (.9 + .9)/2 - .5 ... of eight: .1; where both are as long (.3 + .3)/2 - .5 = -.2.
    assert summary["position_bias"] == pytest.approx((8 * 0.1 - 0.2) / 9)
    assert summary["num_unparsed"] == 0


def test_a_judge_that_always_prefers_the_first_gives_ties_only(
    tmp_path: Path, evaluations: dict[str, Path]
) -> None:
    always = completion("A", A=math.log(0.95), B=math.log(0.05))
    with serving(lambda *_: always) as server:
        output = _run(_config(server), tmp_path / "w", evaluations)
    rows = read_rows(output / "verdicts.jsonl")
    assert {(row["verdict"], row["preference"]) for row in rows} == {(0, 0.5)}
    summary = json.loads((output / "summary.json").read_text())
    assert summary["share_same_position"] == summary["share_tied"] == 1
    assert summary["position_bias"] == pytest.approx(0.45)


def test_what_is_not_understood_is_a_tie_and_counted(
    tmp_path: Path, evaluations: dict[str, Path]
) -> None:
    with serving(lambda *_: completion("Hard to say.")) as server:
        output = _run(_config(server), tmp_path / "w", evaluations)
    rows = read_rows(output / "verdicts.jsonl")
    assert {row["verdict"] for row in rows} == {0}
    # Both orders of each; of equal answers nobody is asked.
    assert [row["num_unparsed"] for row in rows[:5]] == [2, 2, 2, 0, 2]
    assert json.loads((output / "summary.json").read_text())["num_unparsed"] == 2 * 9


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [1, 11])
def test_killed_and_run_again_it_asks_nothing_twice(
    tmp_path: Path, evaluations: dict[str, Path], killed_at: int
) -> None:
    """kill -9 while one request is under way: that alone is asked again."""
    with serving(prefer_longer) as server:
        whole = _run(_config(server), tmp_path / "w", evaluations)
        expected = requests_of(server)
    with serving(killing(prefer_longer, killed_at)) as server:
        config = _config(server, max_concurrency=1)
        path = job(tmp_path / "k", config, tmp_path, 1, "judge_answers", evaluations)
        with pytest.raises(TrainerKilledError):
            launch(path)
        launch(path)
        assert requests_of(server) == sorted([*expected, json.dumps(server.bodies[killed_at])])
    assert _files(tmp_path / "k" / "output") == _files(whole)


def test_stopped_it_goes_on_elsewhere_from_its_checkpoint_alone(
    tmp_path: Path, evaluations: dict[str, Path]
) -> None:
    with serving(prefer_longer) as server:
        whole = _run(_config(server), tmp_path / "w", evaluations)
        expected = requests_of(server)
    with serving(stopping(prefer_longer, 10)) as server:
        config = _config(server, max_concurrency=2)
        with pytest.raises(SystemExit) as stop:
            _run(config, tmp_path / "here", evaluations)
        assert stop.value.code == signals.EXIT_STOPPED
        assert len(server.bodies) < len(expected)
        signals._flag.raised = False
        shutil.copytree(tmp_path / "here" / "checkpoints", tmp_path / "there" / "checkpoints")
        output = _run(config, tmp_path / "there", evaluations)
        assert requests_of(server) == expected
    assert _files(output) == _files(whole)


def test_a_spent_budget_ends_the_stage_and_a_larger_one_ends_it_well(
    tmp_path: Path, evaluations: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_ANSWERS", str(tmp_path / "answers"))
    with serving(lambda *_: completion("A", prompt_tokens=1000)) as server:
        with pytest.raises(BudgetError, match="raise the limit and run the same again"):
            _run(_config(server, max_total_tokens=9000), tmp_path / "a", evaluations)
        assert 0 < len(server.bodies) < 9
        _run(_config(server, max_total_tokens=200_000), tmp_path / "b", evaluations)
        assert len(server.bodies) == len(set(requests_of(server))) == 2 * 9


def test_some_prompts_of_some_categories_and_seeds_beside_each_other(
    tmp_path: Path, evaluations: dict[str, Path]
) -> None:
    inputs = evaluations | _write(tmp_path, ANSWERS, 11, "other question")
    some = {"categories": ("harmless",), "max_prompts": 1}
    with serving(prefer_longer) as server:
        output = _run(_config(server).model_copy(update=some), tmp_path / "w", inputs)
    rows = read_rows(output / "verdicts.jsonl")
    assert [(row["seed"], row["set"], row["place"]) for row in rows] == [
        *[(3, "main", 1)] * 3,
        *[(11, "main", 1)] * 3,
    ]
    assert {row["category"] for row in rows} == {"harmless"}


def test_what_cannot_be_compared_is_named(tmp_path: Path, evaluations: dict[str, Path]) -> None:
    config = JudgeAnswersConfig(name="m", judge=JudgeConfig(gold_accuracy=1.0))
    other = _write(tmp_path / "other", {"c": ANSWERS["a"]}, question="riddle")
    with pytest.raises(ValueError, match="sft and c of seed 3 answered different prompts"):
        _run(config, tmp_path / "w", evaluations | other)
    none = config.model_copy(update={"categories": ("weather",)})
    with pytest.raises(ValueError, match=r"0 prompts of the sets there are and .*'weather'"):
        _run(none, tmp_path / "w", evaluations)
    with pytest.raises(ValueError, match="the judge m has nothing to compare: seed 3 has the pol"):
        _run(config, tmp_path / "w", {"3.sft": evaluations["3.sft"]})


@pytest.mark.parametrize("accuracy", [0.75, 1.0])
def test_a_judge_by_gold_is_right_as_often_as_it_should_be(tmp_path: Path, accuracy: float) -> None:
    rng = random.Random(0)
    prompts = draw_prompts(MAIN, 600, rng)
    answers = {
        "sft": [corrupted_response(prompt, rng) for prompt in prompts],
        "a": [perfect_response(prompt, rng) for prompt in prompts],
    }
    inputs = {}
    for policy, own in answers.items():
        inputs[f"0.{policy}"] = tmp_path / policy
        rows = (
            {"set": "main", "prompt": prompt, "response": text}
            for prompt, text in zip(prompts, own, strict=True)
        )
        write_rows(tmp_path / policy / "responses.jsonl", rows)
    config = JudgeAnswersConfig(name="g", judge=JudgeConfig(gold_accuracy=accuracy))
    rows = read_rows(_run(config, tmp_path / "w", inputs) / "verdicts.jsonl")
    texts = answers.values()
    gaps = [quality(p, s) - quality(p, a) for p, s, a in zip(prompts, *texts, strict=True)]
    right = [row["verdict"] * gap > 0 for row, gap in zip(rows, gaps, strict=True) if gap != 0]
    assert len(right) > 500
    # Three standard deviations of so many draws; of accuracy 1, none.
    spread = 3 * math.sqrt(accuracy * (1 - accuracy) / len(right))
    assert abs(sum(right) / len(right) - accuracy) <= spread
    assert all(row["verdict"] == 0 for row, gap in zip(rows, gaps, strict=True) if gap == 0)
