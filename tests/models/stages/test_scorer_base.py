"""Scorers of another size, tokenizer and family than the policy: they read its answers as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from tests.models.conftest import run_stage
from tests.models.judge.tiny import save_tiny_neox
from trimtab.models.config.policy import ScorersConfig
from trimtab.models.config.training import ModelConfig, SFTConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training.sampling import sample_answers
from trimtab.models.training.scoring import other_tokenizer
from trimtab.models.training.stage import Stage

BATCH = list(range(16))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """A language model of three layers that reads bytes, as an SFT stage hands it on."""
    folder = save_tiny_neox(tmp_path_factory.mktemp("bytes"))
    sft = SFTConfig(model=ModelConfig(base=str(folder)), fine_tune=False)
    return run_stage("sft", sft, tmp_path_factory.mktemp("scorer_base"), data=world)


@pytest.fixture(scope="module")
def of_bytes(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, base: Path, comparisons: Path
) -> Path:
    """A reward model that starts from it."""
    folder = tmp_path_factory.mktemp("reward_model")
    return run_stage(
        "reward_model", smoke_config.reward_model, folder, policy=base, preferences=comparisons
    )


@pytest.fixture(scope="module")
def advantage_of_bytes(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, base: Path, comparisons: Path
) -> Path:
    folder = tmp_path_factory.mktemp("advantage_model")
    config = smoke_config.advantage_model
    return run_stage("advantage_model", config, folder, policy=base, preferences=comparisons)


def score_alone(scorer: Path, prompt: str, response: str) -> float:
    """By transformers' own trunk, one text, unpacked: by the scorer's tokenizer, at its end token
    (which transformers' own head would take for padding)."""
    folder = scorer / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = tokenizer(prompt + response, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        input_ids = torch.tensor([[*ids, tokenizer.eos_token_id]])
        hidden = model.base_model(input_ids=input_ids).last_hidden_state[0, -1]
        return float(model.score(hidden)[0])


def scores_alone(scorer: Path, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([score_alone(scorer, row["prompt"], row["response"]) for row in rows])


def _ppo(smoke_config: Any, **changes: Any) -> Any:
    return smoke_config.ppo.model_copy(update={"critic_init": "policy", **changes})


def _inputs(policy: Path, data: Path, **scorers: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "data": data, **scorers}


def test_whose_tokens_a_scorer_reads(
    tmp_path: Path, policy: Path, reward_model: Path, of_bytes: Path
) -> None:
    ours = policy / "model"
    assert other_tokenizer(reward_model / "model", ours) is None
    theirs = other_tokenizer(of_bytes / "model", ours)
    assert theirs is not None and len(theirs) == 258
    assert other_tokenizer(of_bytes / "model", of_bytes / "model") is None
    # Of the same tokens, but another end of an answer, or room for fewer.
    for change in ("end", "room"):
        folder = tmp_path / change
        model = AutoModelForSequenceClassification.from_pretrained(reward_model / "model")
        tokenizer = load_tokenizer(reward_model / "model")
        if change == "end":
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(5)
        else:
            model.config.max_position_embeddings -= 1
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        assert other_tokenizer(folder, ours) is not None
        assert (other_tokenizer(ours, folder) is None) == (change == "room")


@pytest.mark.parametrize("trainable_layers", [None, 1])
def test_ppo_scores_the_texts(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    of_bytes: Path,
    trainable_layers: int | None,
) -> None:
    config = _ppo(smoke_config, trainable_layers=trainable_layers)
    run = PPORun(config, Stage(_inputs(policy, world, scorer=of_bytes), tmp_path))
    assert run.depth == (0 if trainable_layers is None else 1)  # of all that read its tokens
    experience = run._collect(BATCH)
    expected = scores_alone(of_bytes, experience.texts)
    assert expected.std() > 0.05
    torch.testing.assert_close(experience.scores, expected, atol=1e-4, rtol=1e-4)


def test_an_ensemble_may_have_scorers_of_both_kinds(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, reward_model: Path, of_bytes: Path
) -> None:
    scorers = {"scorer_0": reward_model, "scorer_1": of_bytes, "safety_scorer": of_bytes}
    inputs = _inputs(policy, world, **scorers)
    config = _ppo(smoke_config, critic_init="scorer", scoring=ScorersConfig(std_coef=0.0))
    run = PPORun(config, Stage(inputs, tmp_path))
    assert [scorer.tokenizer is None for scorer in run.scorers.models] == [True, False, False]
    experience = run._collect(BATCH)
    plain = PPORun(config, Stage(_inputs(policy, world, scorer=reward_model), tmp_path))
    expected = (plain._collect(BATCH).scores + scores_alone(of_bytes, experience.texts)) / 2
    torch.testing.assert_close(experience.scores, expected, atol=1e-4, rtol=1e-4)


def test_a_critic_cannot_start_from_a_scorer_of_other_tokens(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, of_bytes: Path
) -> None:
    stage = Stage(_inputs(policy, world, scorer=of_bytes), tmp_path)
    with pytest.raises(ValueError, match="critic_init must be policy if the scorer has another"):
        PPORun(smoke_config.ppo, stage)


def test_a_policy_is_trained_by_a_scorer_of_another_base(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, advantage_of_bytes: Path
) -> None:
    config = _ppo(smoke_config, rehearsal_coef=0.0)
    inputs = _inputs(policy, world, scorer=advantage_of_bytes)
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    assert len(load_tokenizer(output / "model")) == len(load_tokenizer(policy / "model"))
    assert len(load_tokenizer(output / "critic")) == len(load_tokenizer(policy / "model"))


def test_evaluation_scores_the_texts(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    reward_model: Path,
    of_bytes: Path,
) -> None:
    """Of the best of several candidates, judged by scorers of both kinds."""
    inputs = _inputs(policy, world, scorer=of_bytes, judge_0=reward_model, judge_1=of_bytes)
    config = smoke_config.evaluate.model_copy(update={"num_candidates": 2})
    rows = read_rows(run_stage("evaluate", config, tmp_path, **inputs) / "responses.jsonl")[::9]
    for name, scorer in (("score", of_bytes), ("judge_0", reward_model), ("judge_1", of_bytes)):
        found = torch.tensor([row[name] for row in rows])
        torch.testing.assert_close(found, scores_alone(scorer, rows), atol=1e-4, rtol=1e-4)


def test_samples_and_rehearsed_answers_are_scored_as_text(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, of_bytes: Path
) -> None:
    inputs = {"data": world, "policy": policy, "scorer": of_bytes}
    config = smoke_config.rejection_sampling.answers.model_copy(update={"num_prompts": 12})
    output = run_stage("sample_responses", config, tmp_path / "samples", **inputs)
    rows = [
        {"prompt": row["prompt"], "response": response, "score": score}
        for row in read_rows(output / "answers.jsonl")
        for response, score in zip(row["responses"], row["scores"], strict=True)
    ]
    output = run_stage("rehearsal", smoke_config.rehearsal, tmp_path / "rehearsal", **inputs)
    kept = read_rows(output / "rehearsal.jsonl")
    rows += [{**row, "score": row["advantage_score"]} for row in kept]
    found = torch.tensor([row["score"] for row in rows])
    torch.testing.assert_close(found, scores_alone(of_bytes, rows), atol=1e-4, rtol=1e-4)


def test_meta_rm_reads_a_policys_answers_by_the_scorers_tokenizer(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    advantage_of_bytes: Path,
) -> None:
    config = smoke_config.rounds.meta_rm
    output = run_stage(
        "meta_rm",
        config,
        tmp_path / "meta",
        scorer=advantage_of_bytes,
        policy=policy,
        data=world,
        preferences=comparisons,
    )
    theirs, ours = load_tokenizer(output / "model"), load_tokenizer(policy / "model")
    assert len(theirs) == 258
    prompts = read_rows(world / "policy_prompts.jsonl")[:3]
    stage = Stage({"policy": policy}, tmp_path)
    as_bytes = sample_answers(config, stage, prompts, 5, 256, theirs)
    as_words = sample_answers(config, stage, prompts, 5, 64)
    for prompt, rows, others in zip(prompts, as_bytes, as_words, strict=True):
        for read, response in zip(rows.responses, others.responses, strict=True):
            text = theirs.decode([*rows.prompt, *read[:-1]])
            assert text.startswith(prompt["prompt"])
            answer = ours.decode(response, skip_special_tokens=True)
            assert text == prompt["prompt"] + answer
            assert read[-1] == theirs.eos_token_id
