"""AI labels of a real model over HTTP: the label audit, with a judge served on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.flows.command import trimtab
from tests.models.judge.endpoint import ScriptedServer, answers_of, serving
from tests.models.judge.tiny import tiny_model, tiny_tokenizer
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.batch import CachedChatModel
from trimtab.models.judge.judge import Comparison, Judge
from trimtab.models.judge.local import LocalModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

NUM_JUDGED = 24
KEY = "sk-Zx81hu2bqTestKeyOfABlock"


@pytest.fixture
def local() -> LocalModel:
    """Random weights, which answer every question with A or B."""
    torch.set_num_threads(1)
    model, tokenizer = tiny_model(), tiny_tokenizer()
    labels = tokenizer.convert_tokens_to_ids(["A", "B"])
    with torch.no_grad():  # one feature is constant, and by it all other tokens are unlikely
        model.model.embed_tokens.weight[:, 0] = 4.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = -9.0
        model.lm_head.weight[labels, 0] = 0.0
    return LocalModel(model, tokenizer, "tiny")


@pytest.fixture
def server(local: LocalModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(answers_of(local)) as server:
        yield server


def _python(code: str) -> None:
    """Lines of a client of Prefect's server."""
    subprocess.run([sys.executable, "-c", code], check=True)


def _output(home: Path, stage: str) -> Path:
    (summary,) = home.glob(f"store/artifacts/{stage}/*/*/summary.json")
    return summary.parent


def _labels(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(path / "train.jsonl")}


def test_labels_of_a_served_model_are_those_of_the_model(
    home: Path, local: LocalModel, server: ScriptedServer
) -> None:
    judge = "judge_preferences.judge"
    run = ["run", "smoke", "--flow", "label-audit", "ai_labels.soft=true"]
    run += [f"judge_preferences.max_pairs={NUM_JUDGED}"]
    run += [f"{judge}.endpoint.max_total_tokens=1000000"]
    run += [f"{judge}.endpoint.base_url={server.url}", f"{judge}.endpoint.model=tiny"]
    run += [f"{judge}.endpoint.timeout_seconds=300", f"{judge}.endpoint.key_block=judge"]
    _python(f"from prefect.blocks.system import Secret; Secret(value={KEY!r}).save('judge')")
    trimtab(home, *run, "--name", "mine")
    judged = read_rows(_output(home, "judge_preferences") / "judgements.jsonl")
    given = _labels(_output(home, "comparisons"))
    labelled = _labels(_output(home, "ai_labels"))
    assert list(given) == list(labelled)
    assert list(given)[:NUM_JUDGED] == [row["id"] for row in judged]

    here = Judge(CachedChatModel(local), JudgeConfig(local_model="tiny"))
    few = list(given.values())[:8]
    verdicts = here.compare(
        [Comparison(row["prompt"], row["chosen"], row["rejected"]) for row in few]
    )
    for row, verdict, told in zip(few, verdicts, judged, strict=False):
        assert told["shown_first"] == pytest.approx(verdict.shown_first, abs=1e-5)
        assert told["shown_second"] == pytest.approx(verdict.shown_second, abs=1e-5)
        preference, found = told["preference"], labelled[row["id"]]
        assert found["chosen"] == row["chosen" if preference >= 0.5 else "rejected"]
        assert found["label"] == max(preference, 1 - preference)

    card = json.loads((home / "reports/mine/scorecard.json").read_text())
    summary = json.loads((_output(home, "ai_labels") / "summary.json").read_text())
    assert card["ai_labeler"]["num_pairs"] == NUM_JUDGED
    assert summary["num_unasked"] == len(given) - NUM_JUDGED > 0
    assert card["ai_labeler"]["num_labelled"] == summary["num_labelled"] == NUM_JUDGED
    assert 0 < summary["num_turned"] < NUM_JUDGED
    roles = {stage["role"]: stage["stage"] for stage in card["stages"]}
    assert (roles["pairs_as_given"], roles["preferences"]) == ("comparisons", "ai_labels")
    # The judging stage is another now; what it asks is known.
    asked = len(server.bodies)
    trimtab(home, *run, "judge_preferences.pairs_at_once=50")
    assert len(server.bodies) == asked > 0
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    for path in home.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_block_that_is_not_there_is_named() -> None:
    _python(
        "import pytest\n"
        "from trimtab.models.config.judge import EndpointConfig\n"
        "from trimtab.tasks.judges import judge_keys\n"
        "from trimtab.tasks.execution import StageInputError\n"
        "with pytest.raises(StageInputError, match=\"key_block is 'no-such', and Prefect's\"):\n"
        "    judge_keys(EndpointConfig(model='m', key_block='no-such'))"
    )
