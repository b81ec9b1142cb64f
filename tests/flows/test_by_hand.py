"""`trimtab stage`, `gpu-check` and `serve-reward`: mistakes are said before all starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.cli import by_hand
from trimtab.flows.cli.cli import main
from trimtab.models.gpu_check import __main__ as gpu_check
from trimtab.models.gpu_check.correctness import STAGES
from trimtab.models.reward_server import __main__ as reward_server
from trimtab.models.specs import SPECS

Started = list[tuple[str, list[str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What this process would have become."""
    found: Started = []
    monkeypatch.setattr(
        by_hand, "_become", lambda module, arguments: found.append((module, arguments))
    )
    return found


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "data").mkdir()
    return {
        "stage": "sft",
        "config": {"train": {"num_epochs": 1}},
        "inputs": {"data": str(tmp_path / "data")},
        "workdir": str(tmp_path / "work"),
    }


def run(tmp_path: Path, job: object) -> int:
    path = tmp_path / "job.json"
    path.write_text(job if isinstance(job, str) else json.dumps(job))
    return main(["stage", str(path)])


def test_a_job_is_started_with_its_output_folder(
    tmp_path: Path, job: dict[str, Any], started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, job) == 0
    assert started == [(by_hand.ENTRY, [str(tmp_path / "job.json")])]
    assert (tmp_path / "work" / "output").is_dir()
    assert capsys.readouterr().out == f"stage sft on the CPU; output: {tmp_path}/work/output\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "Invalid JSON"),
        ([], "Input should be an object"),
        ({"stage": "sftt"}, "stage: found stage 'sftt'; allowed: world, "),
        ({"config": {"train": {"num_epoch": 1}}}, "config: train.num_epoch"),
        ({"config": {"train": {"num_epochs": 0}}}, "config: train.num_epochs: "),
        ({"inputs": {}}, "stage sft: inputs ['data'] are missing"),
        ({"inputs": {"data": "/nowhere"}}, "inputs: nothing is at /nowhere"),
        ({"gpus": "0"}, "gpus: Input should be a valid array; found '0'"),
        ({"num_ranks": 0, "num_thread": 2}, "num_ranks: "),
        ({"num_ranks": 0, "num_thread": 2}, "num_thread"),
        ({"inputs": {"data": 1}}, "inputs.data: "),
        ({"workdir": "/dev/null/work"}, "workdir: /dev/null/work/output cannot be made"),
        ({"gpus": ["no-such-gpu"]}, "gpus: found no-such-gpu; allowed: "),
        ({"num_ranks": 2, "gpus": ["0"]}, "gpus: found 1 for num_ranks = 2; allowed: one a rank"),
        (
            {"stage": "world", "config": {}, "inputs": {}, "num_ranks": 2},
            "num_ranks: found 2; allowed for stage world: 1",
        ),
    ],
)
def test_a_wrong_job_is_a_line_and_the_status_is_2(
    change: object,
    message: str,
    tmp_path: Path,
    job: dict[str, Any],
    started: Started,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, job | change if isinstance(change, dict) else change) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"trimtab: {tmp_path}/job.json") and message in said
    assert started == []
    assert not (tmp_path / "work").exists()


def test_a_job_does_not_go_on_from_the_checkpoint_of_another(
    tmp_path: Path, job: dict[str, Any], started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    other = job | {"config": {"train": {"num_epochs": 2}}}
    assert run(tmp_path, job) == run(tmp_path, other) == run(tmp_path, job) == 0
    (tmp_path / "work/checkpoints/7").mkdir(parents=True)
    assert run(tmp_path, job | {"num_ranks": 2}) == 0
    capsys.readouterr()
    assert run(tmp_path, other) == 2
    assert "workdir: found checkpoints of a job with another config in" in capsys.readouterr().err
    assert len(started) == 4


def test_a_job_that_is_not_there_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", "/nowhere/job.json"]) == 2
    assert "/nowhere/job.json: is no file" in capsys.readouterr().err


def test_the_check_gets_its_request(tmp_path: Path, started: Started) -> None:
    out = tmp_path / "found"
    given = ["--minutes", "5", "--out", str(out), "--part", "sampling", "ppo-trl", "--rehearse"]
    assert main(["gpu-check", *given]) == 0
    assert started == [(by_hand.GPU_CHECK, [str(out)])]
    request = json.loads((out / gpu_check.REQUEST).read_text())
    assert by_hand.REQUEST == gpu_check.REQUEST
    assert request["parts"] == ["sampling", "ppo-trl"]
    assert (request["minutes"], request["rehearse"], request["pairs"]) == (5, True, None)
    assert request["smoke"].keys() == STAGES.keys()
    for stage, config in request["smoke"].items():
        SPECS[stage].config.model_validate(config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--part", "sampeling"], "--part: unknown part 'sampeling' (did you mean 'sampling'?)"),
        (["--pairs", "/nowhere"], "--pairs: nothing is at /nowhere"),
        (["--peers", "/nowhere"], "--peers: nothing is at /nowhere"),
        (["--minutes", "0"], "0 is not above 0"),
        (["--out", "/dev/null/found"], "--out: /dev/null/found cannot be made"),
    ],
)
def test_a_wrong_check_is_a_line(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpu-check", "--out", str(tmp_path / "found"), *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_a_reward_server_gets_its_request(tmp_path: Path, started: Started) -> None:
    (tmp_path / "known.jsonl").write_text("")
    given = [str(tmp_path), "owner/name", "--port", "0", "--strip", "</s>", "<pad>"]
    assert main(["serve-reward", *given, "--answers", str(tmp_path / "known.jsonl")]) == 0
    ((module, (request,)),) = started
    assert module == reward_server.__name__.removesuffix(".__main__")
    read = reward_server.ServeRequest.model_validate_json(request)
    assert read.folders == (str(tmp_path), "owner/name") and read.strip == ("</s>", "<pad>")
    assert (read.host, read.port, read.key_file) == ("127.0.0.1", 0, None)
    assert (read.answers, read.std_coef) == (tmp_path / "known.jsonl", 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["./nowhere"], "found no folder at ./nowhere; allowed: a reward model's, or a hub id"),
        (["a/b", "--answers", "/nowhere"], "--answers: found no file at /nowhere"),
        (["a/b", "--key-file", "/nowhere"], "--key-file: found no file at /nowhere"),
        (["a/b", "--port", "65536"], "'--port': Input should be less than or equal to 65535"),
        (["a/b", "--queue-texts", "3"], "--request-texts: found 1024; allowed: --queue-texts 3 or"),
    ],
)
def test_a_wrong_reward_server_is_a_line(
    given: list[str], message: str, started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve-reward", *given]) == 2
    assert message in capsys.readouterr().err and started == []
