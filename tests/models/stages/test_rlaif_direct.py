"""Direct RLAIF: PPO on a judge's ratings, which it is asked for once, whatever happens."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job
from tests.models.judge.endpoint import Body, Reply, ScriptedServer, completion, serving
from trimtab.infra.processes.launch import TrainerError, launch
from trimtab.models.config.judge import EndpointConfig, JudgeConfig
from trimtab.models.config.policy import CollapseConfig, PPOConfig, ScorersConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.budget import BudgetError
from trimtab.models.judge.client import EndpointError
from trimtab.models.judge.reward import JudgeReward
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.training.progress import read_metrics

TOKENS = 11  # of every request and its answer below


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def inputs(world: Path, policy: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "data": world}


def _response(body: Body) -> str:
    lines = body["messages"][0]["content"].split("\n")
    return str(lines[lines.index("[response]") + 1].removeprefix("| "))


def _by_length(_: int, body: Body) -> Body:
    """A word more is a point more, and half of the time one more still."""
    rating = min(9, 1 + len(_response(body).split()))
    half = math.log(0.5)
    return completion(str(rating), **{str(rating): half, str(rating + 1): half})


def _judge(server: ScriptedServer, **endpoint: Any) -> JudgeConfig:
    quick = {"first_wait_seconds": 0.01, "max_wait_seconds": 0.1, "input_price": 1.0}
    return JudgeConfig(
        endpoint=EndpointConfig(**{"base_url": server.url, "model": "m", **quick, **endpoint})
    )


def _config(smoke_config: Any, judge: JudgeConfig, **changes: Any) -> PPOConfig:
    config: PPOConfig = smoke_config.ppo
    scoring = ScorersConfig(judge=judge)
    return config.model_copy(update={"scoring": scoring, "critic_init": "policy", **changes})


def _asked(server: ScriptedServer) -> list[str]:
    return sorted(json.dumps(body) for body in server.bodies)


def test_ratings_by_hand(tmp_path: Path) -> None:
    """Two words: 3 or 4, 3.5 on average, which is 2 * 2.5 / 9 - 1 of [-1, 1]; four: 5.5, 0."""

    def script(number: int, body: Body) -> Body:
        return completion("Hm.") if _response(body) == "what" else _by_length(number, body)

    with serving(script) as server:
        rater = JudgeReward(_judge(server), tmp_path, 0)
        ratings, metrics = rater.rate(["p", "p", "p", "p"], ["a b", "what", "a b", "a b c d"])
        two, four = 2 * 2.5 / 9 - 1, 0.0
        # What was not understood has the mean of the three that were.
        mean = (two + two + four) / 3
        assert ratings.tolist() == pytest.approx([two, mean, two, four])
        assert float(metrics["judge_unparsed"]) == 0.25
        # Three different responses, of which one was asked about again.
        assert float(metrics["judge_tokens"]) == 4 * TOKENS == TOKENS * len(server.bodies)
        again, metrics = rater.rate(["p", "p"], ["what", "a b c d"])
        assert again.tolist() == pytest.approx([four, four])
        assert float(metrics["judge_tokens"]) == 0 and len(server.bodies) == 4
        rater.rate(["other"], ["a b"])
        assert len(server.bodies) == 5
        with pytest.raises(
            ValueError, match="none of the judge.s answers about 1 responses could be parsed"
        ):
            rater.rate(["p"], ["what"])
        assert rater.summary() == {
            "judge_tokens": 5 * TOKENS,
            "judge_cost": pytest.approx(50e-6),
            "num_rated": 4,
        }


def test_tokens_of_a_batch_are_counted_exactly(tmp_path: Path) -> None:
    """A float32 has no odd number above 2^24."""
    with serving(lambda *_: completion("5", prompt_tokens=2**24)) as server:
        rater = JudgeReward(_judge(server), tmp_path, 0)
        _, metrics = rater.rate(["p"] * 3, ["a", "b", "c"])
    assert float(metrics["judge_tokens"]) == 3 * (2**24 + 1) == rater.summary()["judge_tokens"]


@pytest.mark.slow
def test_the_policy_learns_what_the_judge_likes(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    config = _config(
        smoke_config,
        JudgeConfig(gold_accuracy=1.0),
        num_steps=40,
        rollout_batch=48,
        train_batch=16,
        kl_coef=0.0,
        checkpoint_every=100,
        guard=CollapseConfig(action="warn"),
    )
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    rows = read_rows(output / "rollouts.jsonl")
    assert all(-1 <= row["score"] <= 1 for row in rows)
    early, late = (
        fmean(row["score"] for row in rows if low <= row["step"] < low + 8) for low in (1, 34)
    )
    assert late > early + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("killed_at", "elsewhere"), [(1, False), (4, False), (4, True)])
def test_killed_and_run_again_it_asks_nothing_twice_and_ends_the_same(
    tmp_path: Path,
    smoke_config: Any,
    inputs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
    elsewhere: bool,
) -> None:
    """Checkpoints are at step 2 and 4: elsewhere the answers of step 3 and 4 are not known."""
    with serving(_by_length) as server:
        config = _config(smoke_config, _judge(server))
        whole = run_stage("ppo_max", config, tmp_path / "whole", **inputs)
        expected = _asked(server)
        assert len(expected) == len(set(expected))
        rollouts = read_rows(whole / "rollouts.jsonl")
    with serving(_by_length) as server:
        config = _config(smoke_config, _judge(server))
        workdir = tmp_path / "killed"
        die_after(monkeypatch, trainer, killed_at)
        with pytest.raises(Killed):
            run_stage("ppo_max", config, workdir, **inputs)
        monkeypatch.undo()
        if elsewhere:
            shutil.copytree(workdir / "checkpoints", tmp_path / "other" / "checkpoints")
            workdir = tmp_path / "other"
        resumed = run_stage("ppo_max", config, workdir, **inputs)
        asked = _asked(server)
    assert set(asked) == set(expected)
    early = {(row["prompt"], row["response"]) for row in rollouts if row["step"] <= 2}
    lost = {(row["prompt"], row["response"]) for row in rollouts if 3 <= row["step"] <= 4}
    assert len(asked) - len(expected) == (len(lost - early) if elsewhere else 0)
    assert (resumed / "rollouts.jsonl").read_text() == (whole / "rollouts.jsonl").read_text()
    summaries = [json.loads((each / "summary.json").read_text()) for each in (whole, resumed)]
    assert summaries[0] == summaries[1]
    assert summaries[0]["judge_tokens"] == TOKENS * len(expected)
    ours, theirs = (load_file(each / "model" / "model.safetensors") for each in (whole, resumed))
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


@pytest.mark.slow
def test_a_budget_holds_over_tries_of_the_stage(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    with serving(lambda *_: completion("5", prompt_tokens=1000)) as server:
        config = _config(smoke_config, _judge(server, max_total_tokens=50_000))
        for _ in range(3):
            with pytest.raises(BudgetError, match="raise the limit and run the same again"):
                run_stage("ppo_max", config, tmp_path, **inputs)
            assert 1001 * len(server.bodies) <= 50_000
        assert (tmp_path / "checkpoints" / "2").exists()


@pytest.mark.slow
def test_an_endpoint_that_refuses_ends_the_stage_in_its_own_words(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    def script(number: int, body: Body) -> Reply | Body:
        refusal = Reply({"error": {"message": "no such customer"}}, status=403)
        return refusal if number > 20 else _by_length(number, body)

    with serving(script) as server:
        config = _config(smoke_config, _judge(server))
        with pytest.raises(EndpointError, match="status 403: no such customer"):
            run_stage("ppo_max", config, tmp_path / "one", **inputs)
        path = job(tmp_path / "two", config, inputs["data"], 2, "ppo_max", inputs)
        with pytest.raises(TrainerError, match="status 403: no such customer"):
            launch(path)


@pytest.mark.slow
def test_two_ranks_ask_what_one_asks(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    asked, scores = [], []
    for number in (1, 2):
        with serving(_by_length) as server:
            config = _config(smoke_config, _judge(server), num_steps=1)
            folder = tmp_path / str(number)
            launch(job(folder, config, inputs["data"], number, "ppo_max", inputs))
            asked.append(_asked(server))
            scores.append([row["score"] for row in read_metrics(folder / "metrics.jsonl")])
    assert asked[0] == asked[1] and len(set(asked[0])) == len(asked[0])
    assert scores[0] == pytest.approx(scores[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring": ScorersConfig()}, "needs the input scorer or, without one, scoring.judge"),
        ({"critic_init": "scorer"}, "critic_init must be policy if scoring.judge rates"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path,
    smoke_config: Any,
    inputs: dict[str, Path],
    changes: dict[str, Any],
    message: str,
) -> None:
    config = _config(smoke_config, JudgeConfig(gold_accuracy=1.0), **changes)
    with pytest.raises(ValueError, match=message):
        run_stage("ppo_max", config, tmp_path, **inputs)
