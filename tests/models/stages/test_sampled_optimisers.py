"""Rejection sampling, ReST and HIR: what answers teach a policy, and how they are sampled."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job
from trimtab.infra.processes.launch import launch
from trimtab.models.config.policy import (
    HIRConfig,
    RejectionSamplingConfig,
    RestConfig,
    SampleResponsesConfig,
)
from trimtab.models.config.training import TrainConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_scorer, load_tokenizer
from trimtab.models.nets.packing import encode
from trimtab.models.stages.hir import instruction_ids
from trimtab.models.stages.rejection_sampling import best_answers
from trimtab.models.stages.sample_responses import read_samples
from trimtab.models.training import loop
from trimtab.models.training.data import write_rows
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.sampling import respond
from trimtab.models.training.scoring import logprob_rows, score_answers
from trimtab.models.training.stage import Stage

GOOD, FAIR, BAD = "sure done", "okay maybe", "well basically um"
TRAIN = TrainConfig(learning_rate=3e-3, batch_size=8, num_epochs=3, checkpoint_every=2)
ANSWERS = SampleResponsesConfig(num_prompts=20, num_responses=3, max_new_tokens=12)
GRADES = ("zero", "ten")


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """Three answers to each of 20 prompts, with scores that leave no doubt."""
    folder = tmp_path_factory.mktemp("graded")
    write_rows(
        folder / "answers.jsonl",
        (
            {
                "prompt": row["prompt"],
                "responses": [BAD, GOOD, FAIR],
                "scores": [-1.0, 1.0 + index / 100, 0.0],
            }
            for index, row in enumerate(read_rows(world / "policy_prompts.jsonl")[:20])
        ),
    )
    return folder


def _logprobs(policy: Path, graded: Path) -> torch.Tensor:
    """Mean log-probabilities (3,) of good, fair and bad answers over prompts."""
    prompts = [row["prompt"] for row in read_rows(graded / "answers.jsonl")]
    rows = encode(load_tokenizer(policy / "model"), prompts, [[GOOD, FAIR, BAD] for _ in prompts])
    return logprob_rows(load_policy(policy / "model"), rows).mean(0)


def _summary(output: Path) -> dict[str, Any]:
    return json.loads((output / "summary.json").read_text())


def test_answers_are_the_policy_s_and_scored_as_alone(
    tmp_path: Path, world: Path, policy: Path, advantage_model: Path
) -> None:
    inputs = {"data": world, "policy": policy, "scorer": advantage_model}
    output = run_stage("sample_responses", ANSWERS, tmp_path, **inputs)
    rows = read_rows(output / "answers.jsonl")
    prompts = {row["prompt"] for row in read_rows(world / "policy_prompts.jsonl")}
    assert len({row["prompt"] for row in rows} & prompts) == len(rows) == 20
    assert {len(row["responses"]) for row in rows} == {len(row["scores"]) for row in rows} == {3}
    scorer, tokenizer = load_scorer(advantage_model / "model"), load_tokenizer(policy / "model")
    for row in rows[:5]:
        singles = [[response] for response in row["responses"]]
        alone = score_answers(scorer, tokenizer, [row] * 3, singles)[:, 0]
        assert row["scores"] == pytest.approx(alone.tolist(), abs=1e-4)
    scores = torch.tensor([row["scores"] for row in rows])
    assert _summary(output)["best_score"] == pytest.approx(float(scores.amax(1).mean()), abs=1e-5)
    assert _summary(output)["num_sampled"] == 60


@pytest.mark.slow
def test_two_ranks_sample_the_answers_that_one_does(
    tmp_path: Path, world: Path, policy: Path, advantage_model: Path
) -> None:
    inputs = {"policy": policy, "scorer": advantage_model}
    for number in (1, 2):
        launch(job(tmp_path / str(number), ANSWERS, world, number, "sample_responses", inputs))
    alone, both = (read_rows(tmp_path / name / "output/answers.jsonl") for name in ("1", "2"))
    for row, other in zip(both, alone, strict=True):
        assert row["responses"] == other["responses"]
        assert row["scores"] == pytest.approx(other["scores"], rel=1e-4, abs=1e-4)


def test_the_best_of_all_samples_by_hand(tmp_path: Path) -> None:
    first = [
        {"prompt": "p", "responses": ["a", "b"], "scores": [1.0, 2.0]},
        {"prompt": "q", "responses": ["c", "d"], "scores": [5.0, 5.0]},
    ]
    second = [
        {"prompt": "q", "responses": ["e", "f", "g"], "scores": [0.0, 5.0, 1.0]},
        {"prompt": "p", "responses": ["h", "i", "j"], "scores": [0.0, 3.0, 1.0]},
        {"prompt": "r", "responses": ["k", "l", "m"], "scores": [-3.0, -2.0, -1.0]},
    ]
    for number, rows in enumerate([first, second]):
        write_rows(tmp_path / str(number) / "answers.jsonl", rows)
    stage = Stage({f"responses_{number}": tmp_path / str(number) for number in (1, 0)}, tmp_path)
    # Of equal scores the first, of the first samples.
    best = {"p": ("i", 3.0), "q": ("c", 5.0), "r": ("m", -1.0)}
    assert best_answers(*read_samples(stage)) == best
    stage = Stage({"responses_0": tmp_path / "0"}, tmp_path)
    assert best_answers(*read_samples(stage)) == {"p": ("b", 2.0), "q": ("c", 5.0)}


def test_rejection_sampling_teaches_the_best_answer_and_no_other(
    tmp_path: Path, policy: Path, graded: Path
) -> None:
    config = RejectionSamplingConfig(train=TRAIN)
    output = run_stage("rejection_sampling", config, tmp_path, policy=policy, responses_0=graded)
    good, fair, bad = (_logprobs(output, graded) - _logprobs(policy, graded)).tolist()
    assert good > 2
    assert good > max(fair, bad) + 2
    summary = _summary(output)
    assert (summary["num_examples"], summary["num_updates"]) == (20, 3 * 3)
    prompts = [row["prompt"] for row in read_rows(graded / "answers.jsonl")]
    kept = encode(load_tokenizer(policy / "model"), prompts, [[GOOD] for _ in prompts])
    tokens = sum(len(row.prompt) + len(row.responses[0]) for row in kept)
    assert summary["num_trained_tokens"] == 3 * tokens
    assert summary["score_kept"] == pytest.approx(1.0 + 0.19 / 2)  # mean of 1.00 .. 1.19


@pytest.mark.slow
def test_rest_passes_fewer_and_better_answers_from_step_to_step(
    tmp_path: Path, policy: Path, graded: Path
) -> None:
    config = RestConfig(train=TRAIN, thresholds=(0.0, 0.4, 0.8))
    output = run_stage("rest", config, tmp_path, policy=policy, responses_0=graded)
    summary = _summary(output)
    # Of 60 scores the 0.4 quantile is 0, the 0.8 quantile between the 48th and 49th: 12 are above.
    counts = [summary[f"num_examples_{step}"] for step in (1, 2, 3)]
    assert counts == [60, 40, 12]
    kept = [summary[f"score_kept_{step}"] for step in (1, 2, 3)]
    assert kept == sorted(kept)
    assert (
        summary["num_updates"] == len(read_metrics(tmp_path / "metrics.jsonl")) == 3 * (8 + 5 + 2)
    )
    good, fair, bad = _logprobs(output, graded).tolist()
    assert good > fair > bad  # passed thrice, twice and once


@pytest.mark.slow
def test_rest_goes_on_in_the_step_where_it_was_killed(
    tmp_path: Path, policy: Path, graded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, inputs = RestConfig(train=TRAIN), {"policy": policy, "responses_0": graded}
    whole = run_stage("rest", config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, loop, 16)  # the second threshold's first epochs
    with pytest.raises(Killed):
        run_stage("rest", config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    killed = run_stage("rest", config, tmp_path / "killed", **inputs)
    ours, theirs = (load_file(out / "model/model.safetensors") for out in (killed, whole))
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())


@pytest.fixture(scope="module")
def instructed(tmp_path_factory: pytest.TempPathFactory, policy: Path, graded: Path) -> Path:
    train = TRAIN.model_copy(update={"num_epochs": 12})
    config = HIRConfig(train=train, instructions=GRADES)
    folder = tmp_path_factory.mktemp("hir")
    return run_stage("hir", config, folder, policy=policy, responses_0=graded, responses_1=graded)


@pytest.mark.slow
def test_hir_answers_as_it_is_told_to(instructed: Path, graded: Path) -> None:
    """The fair answers have mean rank 59.5 of 120: they are of the lower half, with the bad."""
    summary = _summary(instructed)
    assert (summary["num_examples_0"], summary["num_examples_1"]) == (80, 40)
    assert summary["accuracy"] > 0.9
    prompts = [row["prompt"] for row in read_rows(graded / "answers.jsonl")]
    model, tokenizer = load_policy(instructed / "model"), load_tokenizer(instructed / "model")
    said = {}
    for grade in GRADES:
        behind = [f"{prompt} {grade}" for prompt in prompts]
        generator = torch.Generator().manual_seed(0)
        said[grade] = Counter(respond(model, tokenizer, behind, Sampling(0.5, 12), generator))
    assert said["ten"][GOOD] > 15
    assert said["zero"][BAD] + said["zero"][FAIR] > 15
    assert said["zero"][GOOD] + said["ten"][BAD] + said["ten"][FAIR] < 3


def test_evaluation_asks_with_the_instruction_and_scores_without(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    instructed: Path,
    advantage_model: Path,
) -> None:
    config = smoke_config.evaluate.model_copy(update={"instruction": "ten", "temperature": 0.5})
    inputs = {"reference": policy, "data": world, "scorer": advantage_model}
    output = run_stage(
        "evaluate", config, tmp_path, policy=instructed, judge_0=advantage_model, **inputs
    )
    rows = read_rows(output / "responses.jsonl")
    assert sum(row["response"] == GOOD for row in rows) > 0.6 * len(rows)
    tokenizer = load_tokenizer(policy / "model")
    prompts, responses = ([row[key] for row in rows[:20]] for key in ("prompt", "response"))
    scores = score_answers(
        load_scorer(advantage_model / "model"), tokenizer, rows[:20], [[text] for text in responses]
    )[:, 0]
    assert [row["score"] for row in rows[:20]] == pytest.approx(scores.tolist(), abs=1e-4)
    asked = encode(tokenizer, [f"{p} ten " for p in prompts], [[text] for text in responses])
    plain = encode(tokenizer, prompts, [[text] for text in responses])
    ours = logprob_rows(load_policy(instructed / "model"), asked)[:, 0]
    theirs = logprob_rows(load_policy(policy / "model"), plain)[:, 0]
    assert [row["kl"] for row in rows[:20]] == pytest.approx((ours - theirs).tolist(), abs=1e-3)


def test_instructions_that_the_tokenizer_confuses_are_refused(policy: Path) -> None:
    tokenizer = load_tokenizer(policy / "model")
    assert len(instruction_ids(tokenizer, GRADES)) == 2
    with pytest.raises(ValueError, match="not all different to the tokenizer"):
        instruction_ids(tokenizer, ("terrible", "wonderful"))


@pytest.mark.slow
def test_the_best_of_n_answers_by_the_scorer(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, several_scorers: dict[str, Path]
) -> None:
    ours, other = several_scorers["scorer_0"], several_scorers["scorer_1"]
    inputs = {"policy": policy, "reference": policy, "data": world, "scorer": ours}
    inputs |= {"judge_0": ours, "judge_1": other}
    outputs = {}
    for count in (1, 4):
        config = smoke_config.evaluate.model_copy(update={"num_candidates": count})
        folder = tmp_path / str(count)
        outputs[count] = run_stage("evaluate", config, folder, **inputs)
        told = [row["progress"] for row in read_rows(folder / "metrics.jsonl") if "progress" in row]
        assert told == sorted(told) and told[-1][0] == told[-1][1] == told[0][1]
        assert [each[0] for each in told[-4:]] == [told[-1][1] * n // 5 for n in (2, 3, 4, 5)]
    for row in read_rows(outputs[4] / "responses.jsonl"):
        assert row["judge_0"] == row["score"]  # the same model
        assert row["judge_score"] == pytest.approx((row["judge_0"] + row["judge_1"]) / 2, abs=1e-5)
    alone, best = (_summary(output) for output in outputs.values())
    assert best["main_score"] > alone["main_score"] + 0.01
    # The best of four is at most log 4 - 3/4 from SFT, which it is drawn from.
    assert best["main_kl"] == pytest.approx(0.636294, abs=1e-4)
    found = json.loads((outputs[4] / "best_of_k.json").read_text())["main"]
    assert found["k"] == [1, 2, 3, 4]
    assert found["kl_bound"] == pytest.approx([0.0, 0.193147, 0.431946, 0.636294], abs=1e-6)
    for value in ("score", "judge_score", "gold"):
        assert found[value][-1] == pytest.approx(best[f"main_{value}"], abs=1e-5)
    assert found["score"] == sorted(found["score"])
    assert not (outputs[1] / "best_of_k.json").exists()
