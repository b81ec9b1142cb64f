"""Stage revise with a served model and with gold: what comes out, and what it is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from tests.models.judge.endpoint import answers_of, serving
from tests.models.judge.tiny import tiny_model, tiny_tokenizer
from trimtab.models.config.judge import ChatModelConfig, EndpointConfig
from trimtab.models.config.policy import ReviseConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.local import LocalModel
from trimtab.models.synthetic.gold import quality
from trimtab.models.training import signals
from trimtab.models.training.data import write_rows


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_ANSWERS", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    signals._flag.raised = False


@pytest.mark.slow
def test_a_served_model_revises_through_http_as_in_this_process(
    tmp_path: Path, world: Path, policy: Path
) -> None:
    """Random weights: what comes out is no language, and all of it is where it belongs."""
    torch.set_num_threads(1)
    local = LocalModel(tiny_model(), tiny_tokenizer(), "tiny")
    inputs = {"data": world, "policy": policy}
    with serving(answers_of(local)) as server:
        address = EndpointConfig(base_url=server.url, model="tiny", max_retries=0)
        config = ReviseConfig(
            judge=ChatModelConfig(endpoint=address, temperature=1.5),
            max_prompts=8,
            num_revisions=2,
            max_new_tokens=12,
            max_critique_tokens=20,
            max_revision_tokens=400,
        )
        output = run_stage("revise", config, tmp_path / "w", **inputs)
    rows = read_rows(output / "revisions.jsonl")
    assert len(rows) == 8
    summary = json.loads((output / "summary.json").read_text())
    steps = [step for row in rows for step in row["steps"]]
    assert summary["num_unusable"] == sum(not step["is_usable"] for step in steps) < len(steps)
    assert summary["prompt_tokens"] > 0 and 0 < summary["completion_tokens"] <= 16 * 420
    assert summary["share_changed"] > 0


def _gold(world: Path, policy: Path, workdir: Path, accuracy: float, **more: Any) -> list[Any]:
    config = ReviseConfig(
        judge=ChatModelConfig(gold_accuracy=accuracy), categories=("harmful",), **more
    )
    output = run_stage("revise", config, workdir, data=world, policy=policy)
    return read_rows(output / "revisions.jsonl")


def _mean(rows: list[Any], step: int) -> float:
    """Mean gold quality behind a step; before the first for 0."""
    found = [row["steps"][step - 1]["revision"] if step else row["response"] for row in rows]
    return sum(quality(r["prompt"], text) for r, text in zip(rows, found, strict=True)) / len(rows)


@pytest.mark.parametrize("critique", [True, False])
def test_gold_that_knows_raises_quality_and_gold_that_guesses_does_not(
    tmp_path: Path, world: Path, policy: Path, critique: bool
) -> None:
    inputs = (world, policy)
    knows = _gold(*inputs, tmp_path / "1", 1.0, critique=critique)
    assert {row["category"] for row in knows} == {"harmful"}
    assert _mean(knows, 0) < 0.8
    assert _mean(knows, 4) == pytest.approx(1)
    guesses = _gold(*inputs, tmp_path / "2", 0.5, critique=critique)
    assert [row["response"] for row in guesses] == [row["response"] for row in knows]
    means = [_mean(guesses, step) for step in range(5)]
    assert means == sorted(means, reverse=True)


def test_prompts_are_those_of_the_categories_and_all_without(
    tmp_path: Path, world: Path, policy: Path
) -> None:
    config = ReviseConfig(judge=ChatModelConfig(gold_accuracy=1.0), categories=("harmless",))
    with pytest.raises(ValueError, match=r"categories \['harmless'\]: found those of add, code"):
        run_stage("revise", config, tmp_path / "w", data=world, policy=policy)
    plain = tmp_path / "plain"
    rows = [{"prompt": row["prompt"]} for row in read_rows(world / "policy_prompts.jsonl")[:5]]
    write_rows(plain / "policy_prompts.jsonl", rows)
    everything = config.model_copy(update={"categories": None, "num_revisions": 1})
    output = run_stage("revise", everything, tmp_path / "a", data=plain, policy=policy)
    found = read_rows(output / "demonstrations.jsonl")
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert {row["category"] for row in found} == {None}
