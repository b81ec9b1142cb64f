"""The whole experiment at smoke size, through the command people use: run, rerun, change, kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import digests, ended, from_store, start, trimtab
from tests.flows.conftest import FINISHED, NAME
from tests.registered import downloaded
from trimtab.flows.runs.exit_handling import WAITING

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

BEFORE_PPO = ("world", "sft", "comparisons", "strength", "relabel", "reward_model")
BEFORE_PPO += ("advantage_model", "rehearsal")


def _run(home: Path, *overrides: str) -> str:
    return trimtab(home, *FINISHED, *overrides)


def _registered(home: Path, alias: str) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    return client.get_model_version_by_alias("trimtab-policy-smoke", alias)


def _version(home: Path, alias: str) -> int:
    return int(_registered(home, alias).version)


def _newest_in_prefect() -> tuple[dict[str, int], tuple[list[str], str]]:
    """Of the newest flow run: its tasks by state, its tags, and what its last state says."""
    with closing(sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db")) as prefect:
        flow, tags, state = prefect.execute(
            "SELECT id, tags, state_id FROM flow_run ORDER BY created DESC LIMIT 1"
        ).fetchone()
        tasks = prefect.execute(
            "SELECT state_name, count(*) FROM task_run WHERE flow_run_id = ? GROUP BY 1", [flow]
        ).fetchall()
        (message,) = prefect.execute(
            "SELECT message FROM flow_run_state WHERE id = ?", [state]
        ).fetchone()
    return dict(tasks), (json.loads(tags), message)


def _check_weights(home: Path, alias: str) -> None:
    """Who asks MLflow for an alias gets the store's bytes."""
    tags = _registered(home, alias).tags
    (ours,) = home.glob(f"store/artifacts/ppo_max/{tags['trimtab.key']}/*/model/model.safetensors")
    theirs = downloaded(f"sqlite:///{home / 'mlflow.db'}", f"models:/trimtab-policy-smoke@{alias}")
    assert (theirs / "model" / ours.name).samefile(ours)


def test_report_and_scorecard(home: Path) -> None:
    folder = home / "reports" / NAME
    assert json.loads((folder / "scorecard.json").read_text())
    page = (folder / "report.html").read_text()
    assert "<html" in page
    assert "http://" not in re.sub(r"http://www\.w3\.org\S*", "", page)
    stages = {path.parent.parent.name for path in home.rglob("store/artifacts/*/*/manifest.json")}
    assert stages >= {"sft", "reward_model", "strength", "relabel", "advantage_model", "rehearsal"}
    assert stages >= {"ppo_max", "meta_rm", "evaluate", "head_to_head", "report"}


def test_mlflow_holds_nested_runs_and_the_champion(home: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("trimtab")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=200)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    ppo = next(run for run in runs if run.info.run_name == "PPO full")
    assert len(client.get_metric_history(ppo.info.run_id, "kl")) == 13
    plots = {file.path for file in client.list_artifacts(parents[0].info.run_id, "plots")}
    assert plots >= {"plots/labels_1.svg", "plots/scorers_1.svg", "plots/policies_1.svg"}
    files = {file.path for file in client.list_artifacts(parents[0].info.run_id)}
    assert files >= {"report.html", "audit.html", "audited.jsonl.gz", "audited.parquet"}
    assert _version(home, "champion") == _version(home, "candidate") == 1


def test_mlflow_loads_what_is_registered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines by `mlflow.transformers`; by `mlflow.pyfunc` its scores as they are."""
    import mlflow
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, f"sqlite:///{home / 'mlflow.db'}")
    texts = ["copy a b c", "add 1 2"]
    policy = mlflow.transformers.load_model("models:/trimtab-policy-smoke@champion")
    assert policy.task == "text-generation" and len(policy(texts)) == 2
    assert (
        len(mlflow.pyfunc.load_model("models:/trimtab-policy-smoke@champion").predict(texts)) == 2
    )
    address = "models:/trimtab-reward-model-smoke@champion"
    (folder,) = (downloaded(os.environ["MLFLOW_TRACKING_URI"], address) / "model",)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [text + tokenizer.eos_token for text in texts]
    ids = [torch.tensor([tokenizer(text, add_special_tokens=False).input_ids]) for text in texts]
    assert all(int(each[0, -1]) == tokenizer.eos_token_id for each in ids)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id, "or the last token would be skipped"
    expected = [float(model(each).logits[0, 0]) for each in ids]
    found = mlflow.pyfunc.load_model(address).predict(texts)
    assert found["score"].tolist() == pytest.approx(expected, abs=1e-5)
    address = "models:/trimtab-advantage-model-smoke@candidate"
    assert list(mlflow.pyfunc.load_model(address).predict(texts)["label"]) == ["reward"] * 2


def test_a_run_says_in_mlflow_what_came_out_and_how_it_was_made(home: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    version = _registered(home, "champion")
    run = client.get_run(version.run_id).data
    assert run.tags["mlflow.source.name"].startswith("trimtab run smoke")
    assert run.tags["mlflow.source.name"] == version.tags["trimtab.command"]
    assert run.tags["mlflow.note.content"].startswith(("Better", "Worse", "Not shown")), run.tags[
        "mlflow.note.content"
    ]
    assert {"trimtab.verdict", "trimtab.claim.noise_found"} <= run.tags.keys()
    assert "prefect.flow_run_url" not in run.tags, "the server ended with the command"
    assert {"full/main_gold", "relabelled/label_accuracy", "run/num_pairs"} <= run.metrics.keys()
    experiment = client.get_experiment_by_name("trimtab")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_what_is_exported_loads_in_plain_transformers(home: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kinds = {
        "policy": AutoModelForCausalLM,
        "reward_model": AutoModelForSequenceClassification,
        "advantage_model": AutoModelForSequenceClassification,
    }
    for role, kind in kinds.items():
        trimtab(home, "export", NAME, role, "--to", str(tmp_path / role))
        model = kind.from_pretrained(tmp_path / role)
        assert "## Figures" in (tmp_path / role / "README.md").read_text()
        assert role == "policy" or model.config.num_labels == 1


def test_the_commands_of_the_page_on_other_programs(home: Path, tmp_path: Path) -> None:
    """With this run for the page's, and its test pairs for the page's file."""
    page = Path("docs/how-to/interoperability.md").read_text("utf-8")
    exports = re.findall(r"^trimtab (export [^#\n]*?) *(?:#.*)?$", page, re.MULTILINE)
    assert len(exports) == 2
    (audit,) = re.findall(r"`trimtab (audit [^`]*)`", page)
    (rows,) = home.glob("store/artifacts/comparisons/*/*/test.jsonl")
    shutil.copy(rows, tmp_path / "pairs.jsonl")
    for command in (*exports, f"{audit} --name by-reward"):
        words = command.replace("default-seed0", NAME).split()
        files = ("my-reward", "my-policy", "pairs.jsonl")
        trimtab(home, *(str(tmp_path / word) if word in files else word for word in words))
    assert (tmp_path / "my-policy/config.json").is_file()
    assert "my-reward" in (home / "reports/by-reward/audit.html").read_text()


def test_again_everything_is_found_and_one_change_reruns_only_what_follows(home: Path) -> None:
    found, total = from_store(_run(home))
    assert found == total
    stages, (tags, message) = _newest_in_prefect()
    assert stages == {"Cached": total + 1, "Completed": 1}, "all with the report, but `register`"
    assert "recipe:smoke" in tags and any(tag.startswith("verdict:") for tag in tags)
    assert message.endswith(f". Report: {home / 'reports' / NAME / 'report.html'}")
    assert _version(home, "champion") == 1, "the same champion was registered again"
    before = digests(home)
    report = (home / "reports" / NAME / "scorecard.json").read_bytes()
    _run(home, "ppo.kl_coef=0.15")
    assert (home / "reports" / NAME / "scorecard.json").read_bytes() == report
    changed = {
        json.loads(path.read_text())["stage"]
        for path in home.rglob("store/artifacts/**/manifest.json")
        if path.parent.name not in before
    }
    assert changed - {"report"} == {"ppo_max", "evaluate", "head_to_head", "meta_rm"}


def test_one_more_round_and_back_and_then_nothing_new(home: Path) -> None:
    before = _version(home, "champion")
    trimtab(home, "rounds", "smoke")
    (report,) = home.glob("reports/*-rounds")  # of the champion's settings
    assert {"ppo.num_steps=12", "ppo.kl_coef=0.15", "rounds"} == set(report.name.split("-")[2:])
    card = json.loads((report / "scorecard.json").read_text())
    assert [policy["round"] for policy in card["policies"] if policy["round"]] == [1, 2, 3]
    assert _version(home, "champion") == _version(home, "candidate") == before + 1
    _check_weights(home, "champion")
    assert f"version {before}\n" in trimtab(home, "rollback", "smoke")
    _check_weights(home, "champion")
    _check_weights(home, "candidate")
    # The same round again: it was champion, and was taken back.
    found, total = from_store(trimtab(home, "rounds", "smoke"))
    assert found == total
    assert _version(home, "champion") == before
    after = digests(home)
    output = trimtab(home, "rounds", "smoke")
    assert f"Nothing new: round 3 from version {before}" in output
    assert digests(home) == after


def test_a_run_that_cannot_start_says_why_and_nothing_else(home: Path, tmp_path: Path) -> None:
    missing = tmp_path / "pairs.jsonl"
    base = next(home.glob("store/artifacts/sft/*/*/model"))
    process = start(
        tmp_path, *FINISHED, f'preferences.sources=["{missing}"]', f"sft.model.base={base}"
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert f"preferences.sources: found nothing at '{missing}'; allowed: an existing" in output
    assert len(output.splitlines()) == 1, output


def test_the_policies_alone_are_found_too_without_the_rounds(home: Path) -> None:
    found, total = from_store(_run(home, "--flow", "policy"))
    assert found == total
    scorecard = json.loads((home / f"reports/{NAME}-policy/scorecard.json").read_text())
    assert [policy["name"] for policy in scorecard["policies"]] == ["sft", "vanilla", "full"]
    roles = {stage["role"] for stage in scorecard["stages"]}
    assert not {role for role in roles if "round" in role or "meta_rm" in role}


def _newest_step(home: Path) -> int:
    """The newest checkpoint of PPO so far; 0 without one."""
    folders = home.glob("work/ppo_max-*/checkpoints/[0-9]*")
    return max((int(folder.name) for folder in folders), default=0)


def test_stopped_and_killed_and_started_again_ends_bit_identical(
    home: Path, tmp_path: Path
) -> None:
    """Ctrl-C, SIGTERM, then kill -9, all in PPO: every time it goes on where it was.

    What PPO starts from is there already; all that runs beside it and after it is computed.
    """
    for stage in BEFORE_PPO:
        there = Path("store/artifacts", stage)
        shutil.copytree(home / there, tmp_path / there)
    output = ended(tmp_path, signal.SIGINT, "ppo_max", 2, *FINISHED)
    assert output.splitlines()[-1].startswith("trimtab: stopped by Ctrl-C"), output
    assert "Traceback" not in output and "Crash" not in output
    assert WAITING in output.splitlines()
    with closing(sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db")) as prefect:
        newest = "select id, state_type from flow_run order by created desc limit 1"
        run, state = prefect.execute(newest).fetchone()
        assert state == "CANCELLED"
        limits = "select count(*) from log where flow_run_id = ? and message like '%do not exist%'"
        assert prefect.execute(limits, [run]).fetchone() == (0,)  # where no GPU slots were made
    assert _newest_step(tmp_path) == 2, "the step was not saved when it was to stop"

    output = ended(tmp_path, signal.SIGTERM, "ppo_max", 3, *FINISHED)
    assert output.splitlines()[-1].startswith("trimtab: stopped by SIGTERM"), output
    assert _newest_step(tmp_path) == 3, "the step was not saved when it was to stop"

    ended(tmp_path, signal.SIGKILL, "ppo_max", 7, *FINISHED)
    assert _newest_step(tmp_path) == 6, "it was not the last step that was to be saved"
    assert not list(tmp_path.rglob("store/artifacts/report/*/manifest.json"))

    _run(tmp_path)
    ours, undisturbed = digests(tmp_path), digests(home)
    assert ours.items() <= undisturbed.items()
    assert len(ours) > 20
