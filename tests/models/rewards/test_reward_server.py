"""A reward server in each wire format, as its project's own server answers, and its faults."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, launch
from tests.models.judge.endpoint import Body, Reply, Script, ScriptedServer, serving
from trimtab.infra.processes.launch import TrainerError
from trimtab.models.config.external_reward import (
    ExternalRewardVotesConfig,
    RewardConfig,
    RewardMemberConfig,
    RewardServerConfig,
)
from trimtab.models.data.records import read_rows
from trimtab.models.judge.client import EndpointError
from trimtab.models.rewards.checks import RewardError
from trimtab.models.rewards.server import RewardServer
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.training.data import write_rows

PATHS = {"openrlhf": "/get_reward", "remote_rm": "/rm", "classify": "/classify"}
PATHS["classify_messages"] = PATHS["classify"]
ASKED = [("p: ", "a b"), ("p: ", "a"), ("q: ", "a b c"), ("q: ", "b é"), ("r: ", "x y z z")]


def length(text: str) -> float:
    return len(text.split()) / 4


def by_openrlhf(_: int, body: Body) -> Body:
    """As openrlhf/cli/serve_rm.py: it reads the whole texts, and gives three lists back."""
    scores = [length(text) for text in body["query"]]
    assert len(body["prompts"]) == len(body["labels"]) == len(scores)
    assert all(q.startswith(p) for q, p in zip(body["query"], body["prompts"], strict=True))
    return {"rewards": scores, "scores": scores, "extra_logs": {"dummy_scores": scores}}


def by_remote_rm(_: int, body: Body) -> Any:
    """As slime's remote_rm has it: what comes back is the sample's reward."""
    assert body.keys() == {"prompt", "response", "label"}
    return Reply(length(body["prompt"] + body["response"]))


def by_classify(_: int, body: Body) -> Body:
    """As vLLM's ClassificationResponse of a model of one label; a sigmoid unless told otherwise."""
    assert body["model"] == "rm" and body["use_activation"] is False
    rows = [
        {"index": index, "label": "LABEL_0", "probs": [length(text)], "num_classes": 1}
        for index, text in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}
    return {"id": "c", "object": "list", "model": "rm", "data": rows[::-1], "usage": usage}


def by_classify_messages(number: int, body: Body) -> Body:
    """As vLLM's ClassificationChatRequest: one dialogue, which the chat template writes."""
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    text = " ".join(message["content"] for message in body["messages"])
    return by_classify(number, {**body, "input": [text]})


SCRIPTS: dict[str, Script] = {
    "openrlhf": by_openrlhf,
    "remote_rm": by_remote_rm,
    "classify": by_classify,
    "classify_messages": by_classify_messages,
}


@pytest.fixture(autouse=True)
def _no_key_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_REWARD_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def server_config(server: ScriptedServer, format: str = "openrlhf", **changes: Any) -> Any:
    server.path = PATHS[format]
    url = f"http://127.0.0.1:{server.server_port}{server.path}"
    quick = {"first_wait_seconds": 0.01, "max_wait_seconds": 0.05, "timeout_seconds": 20}
    model = {"model": "rm"} if "classify" in format else {}
    return RewardServerConfig(**{"url": url, "format": format, **quick, **model, **changes})


def scored(config: RewardServerConfig) -> list[float]:
    source = RewardServer(config, f"reward server {config.url}")
    rows = [{"prompt": prompt} for prompt, _ in ASKED]
    scores = dict(source.scores(rows, [answer for _, answer in ASKED]))
    return [scores[place] for place in range(len(ASKED))]


EXPECTED = [length(prompt + answer) for prompt, answer in ASKED]


@pytest.mark.parametrize(
    ("format", "num_requests"),
    [("openrlhf", 3), ("remote_rm", 5), ("classify", 3), ("classify_messages", 5)],
)
def test_every_format(format: str, num_requests: int) -> None:
    with serving(SCRIPTS[format]) as server:
        assert scored(server_config(server, format, batch_size=2)) == EXPECTED
    assert len(server.bodies) == num_requests


def test_a_prompt_s_label_is_sent_where_the_format_has_one() -> None:
    for format, name, without in (("openrlhf", "labels", ""), ("remote_rm", "label", None)):
        with serving(SCRIPTS[format]) as server:
            source = RewardServer(server_config(server, format), "it")
            rows = [{"prompt": "p", "columns": {"label": "four"}}, {"prompt": "p", "columns": {}}]
            assert len(list(source.scores(rows, ["a", "b"]))) == len(rows)
        labels = [body[name] for body in server.bodies]
        flat = [each for label in labels for each in (label if name == "labels" else [label])]
        assert sorted(flat, key=str) == sorted(["four", without], key=str)


def test_a_server_that_reads_an_end_token_is_sent_one() -> None:
    for format in ("openrlhf", "remote_rm", "classify"):
        with serving(SCRIPTS[format]) as server:
            scored(server_config(server, format, end_text="</s>"))
        sent = " ".join(map(json.dumps, server.bodies))
        assert sent.count('</s>"') == sent.count("</s>") == len(ASKED)
    with pytest.raises(ValueError, match="end_text must be empty where format is classify_mess"):
        RewardServerConfig(url="http://h/x", format="classify_messages", model="rm", end_text="e")


def test_messages_are_sent_as_they_are_in_the_row() -> None:
    before = [{"role": "user", "content": "q"}]
    with serving(by_classify_messages) as server:
        source = RewardServer(server_config(server, "classify_messages"), "it")
        row = {"prompt": "rendered", "messages": before}
        assert len(list(source.scores([row], [" a\n\nHuman: b"]))) == 1
    assert server.bodies[0]["messages"] == [
        *before,
        {"role": "assistant", "content": "a\n\nHuman: b"},
    ]


def test_pairs_are_voted_on_by_a_server(tmp_path: Path) -> None:
    rows = [
        {"id": f"p{place}", "prompt": prompt, "chosen": answer, "rejected": "no"}
        for place, (prompt, answer) in enumerate(ASKED)
    ]
    for split, its_rows in (("train", rows[:2]), ("validation", []), ("test", rows[2:])):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", its_rows)
    with serving(by_openrlhf) as server:
        config = ExternalRewardVotesConfig(
            reward=RewardMemberConfig(server=server_config(server, batch_size=4))
        )
        output = run_stage(
            "external_reward_votes", config, tmp_path / "work", preferences=tmp_path / "pairs"
        )
    scored_rows = {row["id"]: row for row in read_rows(output / "scores.jsonl")}
    for row in rows:
        assert scored_rows[row["id"]]["chosen_score"] == length(row["prompt"] + row["chosen"])
        assert scored_rows[row["id"]]["rejected_score"] == length(row["prompt"] + "no")


def test_the_key_of_the_variable_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITS_KEY", key := "rk-Zx81hu2bqTestKey")

    def script(_: int, body: Body) -> Reply:
        return Reply({"detail": f"your key {key} is of another server"}, status=401)

    with serving(script) as server:
        config = server_config(server, key_variable="ITS_KEY")
        with pytest.raises(EndpointError) as error:
            scored(config)
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {key}"}
    assert re.search(r"status 401: .*your key \[key\]", str(error.value))
    assert str(error.value).endswith("the key comes from $ITS_KEY, which is set")
    assert config.url in str(error.value) and len(server.bodies) <= 8  # nothing is asked again


def test_what_may_pass_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    faults = {0: Reply(status=500), 1: Reply(text="<html>"), 2: Reply(cut=5, body={}), 3: Reply({})}

    def script(number: int, body: Body) -> Reply | Body:
        return faults.get(number) or by_openrlhf(number, body)

    with serving(script) as server:
        assert scored(server_config(server)) == EXPECTED
    assert len(server.bodies) == 5
    assert "status 500" in caplog.messages[0]
    assert "not an answer in the format openrlhf (JSONDecodeError): <html>" in caplog.messages[1]
    assert "not an answer in the format openrlhf (KeyError): {}" in caplog.messages[3]


def test_a_server_that_answers_nothing_in_time_is_an_error() -> None:
    with serving(lambda *_: Reply(stall=True)) as server:
        config = server_config(server, timeout_seconds=0.1, max_retries=1)
        with pytest.raises(EndpointError, match=r"get_reward: no answer \(Read.*2 attempts\)"):
            scored(config)
    with serving(by_openrlhf) as server:
        config = server_config(server, max_retries=1)
    with pytest.raises(EndpointError, match=r"get_reward: no connection .*\(2 attempts\)"):
        scored(config)


@pytest.mark.parametrize(
    ("format", "answer", "message"),
    [
        ("openrlhf", {"rewards": [1.0, 2.0]}, "found 2 scores of 5 answers; allowed: 5"),
        ("openrlhf", {"rewards": 1.0}, "found float; allowed: a list of 5 numbers"),
        ("openrlhf", {"rewards": ["1"] * 5}, "found str as the score of answer 1 of 5"),
        ("openrlhf", {"rewards": [1, 2, None, 4, 5]}, "found None as the score of answer 3 of 5"),
        ("openrlhf", {"rewards": [float("nan")] * 5}, "found nan as the score of answer 1 of 5"),
        ("remote_rm", float("inf"), "found inf as the score of answer 1 of 1"),
        ("remote_rm", {"reward": 1.0}, "found dict as the score of answer 1 of 1"),
        (
            "classify",
            {"data": [{"index": n, "probs": [0.5, 0.5]} for n in range(5)]},
            "found list as the score of answer 1 of 5; allowed: a finite number",
        ),
    ],
)
def test_an_answer_that_holds_no_scores_ends_it_at_once(
    format: str, answer: Any, message: str
) -> None:
    with serving(lambda *_: Reply(answer)) as server:
        config = server_config(server, format, max_concurrency=1)
        with pytest.raises(RewardError, match=f"reward server {config.url}: {message}"):
            scored(config)
    assert len(server.bodies) == 1


def test_a_redirect_leads_nowhere() -> None:
    """To a private address, say, with the key."""
    with serving(by_openrlhf) as other:
        other.path = "/get_reward"
        place = f"http://127.0.0.1:{other.server_port}/get_reward"
        with serving(lambda *_: Reply({}, status=307, headers={"Location": place})) as server:
            config = server_config(server)
            with pytest.raises(EndpointError, match="status 307"):
                scored(config)
    assert other.bodies == []


def test_a_worker_s_run_asks_no_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
    with serving(by_openrlhf) as server:
        config = server_config(server)
        with pytest.raises(EndpointError, match="the address is not allowed: 127.0.0.1 resolves"):
            scored(config)
        assert server.bodies == []
        monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "127.0.0.0/8")
        assert scored(config) == EXPECTED


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": "http://u:p@h/r", "format": "openrlhf"}, "must hold no user, password, query"),
        ({"url": "file:///etc/passwd", "format": "openrlhf"}, "must be an http"),
        (
            {"url": "http://h/classify", "format": "classify"},
            "model must be a name where format is",
        ),
        ({"url": "http://h/r", "format": "remote_rm", "model": "m"}, "model must be none where"),
        (
            {"url": "http://h/r", "format": "tgi"},
            "Input should be 'openrlhf', 'remote_rm', 'classify' or",
        ),
    ],
)
def test_settings_that_cannot_be(values: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardServerConfig.model_validate(values)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    row = {"id": "0", "prompt": "p", "category": None, "chosen": " a b", "rejected": " a"}
    for split in ("validation", "test"):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", [{**row, "prompt": f"of {split}"}])
    return tmp_path / "pairs"


def _reward(tmp_path: Path, pairs: Path, config: RewardServerConfig) -> Path:
    return run_stage("external_reward", RewardConfig(server=config), tmp_path, preferences=pairs)


def _asked(server: ScriptedServer) -> list[str]:
    return sorted(text for body in server.bodies for text in body["query"])


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_and_run_again_a_server_is_asked_nothing_twice(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    pairs: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
) -> None:
    """It scores each answer a little higher than those before, and the run ends the same."""

    def script(number: int, body: Body) -> Body:
        answer = by_openrlhf(number, body)
        return {"rewards": [value + number / 1024 for value in answer["rewards"]]}

    config = smoke_config.ppo.model_copy(update={"critic_init": "policy"})
    inputs = {"policy": policy, "reference": policy, "data": world}
    workdir = tmp_path / "killed"
    with serving(script) as server:
        scorer = _reward(tmp_path / "made", pairs, server_config(server, batch_size=1000))
        server.bodies.clear()
        with monkeypatch.context() as patch:
            die_after(patch, trainer, 4)
            with pytest.raises(Killed):
                run_stage("ppo_max", config, workdir, scorer=scorer, **inputs)
        before = _asked(server)
        if elsewhere:
            shutil.copytree(workdir / "checkpoints", tmp_path / "other" / "checkpoints")
            workdir = tmp_path / "other"
        resumed = run_stage("ppo_max", config, workdir, scorer=scorer, **inputs)
        after = _asked(server)
    assert len(before) == len(set(before)) > 0
    rows = read_rows(resumed / "rollouts.jsonl")
    assert set(after) == {row["prompt"] + row["response"] for row in rows}
    early = {row["prompt"] + row["response"] for row in rows if row["step"] <= 2}
    lost = {row["prompt"] + row["response"] for row in rows if 3 <= row["step"] <= 4}
    assert len(after) - len(set(after)) == (len(lost - early) if elsewhere else 0)
    if elsewhere:
        return
    with serving(script) as server:
        scorer = _reward(tmp_path / "anew", pairs, server_config(server, batch_size=1000))
        server.bodies.clear()
        whole = run_stage("ppo_max", config, tmp_path / "whole", scorer=scorer, **inputs)
    assert (resumed / "rollouts.jsonl").read_text() == (whole / "rollouts.jsonl").read_text()
    ours, theirs = (load_file(each / "model" / "model.safetensors") for each in (whole, resumed))
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


@pytest.mark.slow
def test_a_server_that_refuses_ends_a_run_of_two_ranks_in_its_own_words(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, pairs: Path
) -> None:
    def script(number: int, body: Body) -> Reply | Body:
        return by_openrlhf(number, body) if number < 3 else Reply({"detail": "full"}, status=400)

    config = smoke_config.ppo.model_copy(update={"critic_init": "policy"})
    with serving(script) as server:
        scorer = _reward(tmp_path / "made", pairs, server_config(server))
        inputs = {"policy": policy, "reference": policy, "scorer": scorer}
        path = job(tmp_path / "two", config, world, 2, "ppo_max", inputs)
        with pytest.raises(TrainerError, match=r"/get_reward: status 400: .*full"):
            launch(path)
        assert json.loads((scorer / "summary.json").read_text())["test_accuracy"] == 1.0
