"""vLLM samples: its weights are the policy's, its ends are known, its process leaves with ours.

With TRIMTAB_VLLM_PYTHON in the environment these tests have vLLM itself, else a stand-in for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import job, killed_and_whole
from trimtab.infra.processes.launch import launch
from trimtab.models.config.policy import PPOConfig, VllmConfig
from trimtab.models.config.training import LoraConfig
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.lora import add_adapters, merge_adapters, merged_weights
from trimtab.models.nets.packing import pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training import distributed, vllm_sampler, vllm_worker
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.vllm_sampler import PYTHON, VllmError, VllmSampler

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = Path(__file__).with_name("pretend_vllm")
HAS_VLLM = PYTHON in os.environ
PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [10, 11, 12, 13]] * 4


@pytest.fixture(autouse=True)
def _python_with_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if HAS_VLLM:
        return
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={STAND_IN}:{ROOT} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(script))


@pytest.fixture(scope="module")
def one_head(tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, world: Path) -> Path:
    """With one head of 32 numbers: vLLM has no attention on CPUs for the recipe's, of 16."""
    sft = smoke_config.sft
    sft = sft.model_copy(update={"model": sft.model.model_copy(update={"num_heads": 1})})
    return run_stage("sft", sft, tmp_path_factory.mktemp("one_head"), data=world)


@pytest.fixture
def config(smoke_config: Any) -> PPOConfig:
    ppo: PPOConfig = smoke_config.ppo
    return ppo.model_copy(update={"vllm": VllmConfig(cache_gib=0.25)})


@pytest.fixture
def inputs(world: Path, one_head: Path, advantage_model: Path) -> dict[str, Path]:
    return {"policy": one_head, "reference": one_head, "scorer": advantage_model, "data": world}


def _sampled(sampler: VllmSampler, model: Any, seed: int = 0) -> tuple[list[list[int]], float]:
    generator = torch.Generator().manual_seed(seed)
    sampling = Sampling(temperature=0.7, max_new_tokens=12, top_p=0.9)
    responses, reported = sampler.sample(model, 2, PROMPTS, sampling, generator)
    return responses, float(reported["vllm_gap"])


@pytest.mark.slow
def test_the_first_ratio_is_one(tmp_path: Path, config: PPOConfig, inputs: Any) -> None:
    with vllm_sampler.vllm_sampler(config, tmp_path) as vllm:
        run = PPORun(config, inputs, tmp_path, vllm)
        experience = run._collect(list(range(16)))
    logprobs, _, mask = response_logprobs(run.policy, pack(experience.rows), config.temperature)
    torch.testing.assert_close(logprobs[mask], experience.old_logprobs[mask])
    assert float(experience.monitors()["kl"]) == pytest.approx(0.0, abs=1e-5)
    assert float(experience.monitors()["vllm_gap"]) < 1e-4
    end = run.tokenizer.eos_token_id
    lengths = [len(row.responses[0]) for row in experience.rows]
    assert any(row.responses[0][-1] == end for row in experience.rows)
    assert max(lengths) <= config.max_new_tokens
    assert all(end not in row.responses[0][:-1] for row in experience.rows)


@pytest.mark.slow
def test_ppo_goes_on_where_it_was_killed(
    tmp_path: Path, config: PPOConfig, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is of the policy of that step, or it would have been refused."""
    killed, whole = killed_and_whole(monkeypatch, trainer, 3, "ppo_max", config, tmp_path, **inputs)
    assert (killed / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()
    ours, theirs = (load_file(out / "model/model.safetensors") for out in (killed, whole))
    start = load_file(inputs["policy"] / "model/model.safetensors")
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    assert any(not torch.equal(value, ours[name]) for name, value in start.items())
    gaps = [row["vllm_gap"] for row in read_metrics(whole / "metrics.jsonl")]
    assert len(gaps) == config.critic_pretrain_steps + config.num_steps
    assert not (tmp_path / "whole" / "vllm").exists()


@pytest.mark.slow
def test_two_ranks_have_the_responses_of_one(
    tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]
) -> None:
    config = config.model_copy(update={"num_steps": 1, "critic_pretrain_steps": 0})
    run_stage("ppo_max", config, tmp_path / "one", **inputs)
    launch(job(tmp_path / "two", config, inputs.pop("data"), 2, "ppo_max", inputs))
    one, two = (
        [json.loads(line) for line in (tmp_path / count / "output/rollouts.jsonl").open()]
        for count in ("one", "two")
    )
    assert [row["response"] for row in one] == [row["response"] for row in two]
    assert [row["score"] for row in one] == pytest.approx([row["score"] for row in two], rel=1e-4)


@pytest.mark.slow
def test_a_policy_that_it_did_not_get_is_noticed(
    tmp_path: Path, config: PPOConfig, one_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_policy(one_head / "model").eval()
    with vllm_sampler.vllm_sampler(config, tmp_path) as sampler:
        assert sampler is not None
        before, gap = _sampled(sampler, model)
        assert gap < 1e-4
        assert _sampled(sampler, model)[0] == before
        assert _sampled(sampler, model, seed=1)[0] != before
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(1.5)
        after, gap = _sampled(sampler, model)
        assert gap < 1e-4 and after != before
        monkeypatch.setattr(sampler, "_give_weights", lambda _: None)
        with torch.no_grad():
            model.get_output_embeddings().weight.div_(1.5)
        with pytest.raises(VllmError, match="did not sample from the policy"):
            _sampled(sampler, model)


@pytest.mark.slow
def test_it_gets_adapters_with_the_weights(
    tmp_path: Path, config: PPOConfig, one_head: Path, smoke_config: Any
) -> None:
    model = load_policy(one_head / "model").eval()
    add_adapters(model, LoraConfig(rank=4, alpha=8.0), num_frozen=1, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    with vllm_sampler.vllm_sampler(config, tmp_path) as sampler:
        assert sampler is not None
        _, gap = _sampled(sampler, model)
    assert gap < 1e-4
    merged = merged_weights(model)
    merge_adapters(model)
    expected = model.state_dict()
    assert merged.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(merged[name], value)


@pytest.mark.slow
def test_bad_ends_are_said(
    tmp_path: Path, config: PPOConfig, one_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_policy(one_head / "model").eval()
    with vllm_sampler.vllm_sampler(config, tmp_path) as sampler:
        assert sampler is not None
        _sampled(sampler, model)
        assert sampler.process is not None
        sampler.process.kill()
        with pytest.raises(VllmError, match=r"ended with -9; its log is .*vllm\.log"):
            _sampled(sampler, model)
    empty = tmp_path / "empty"
    empty.write_text("#!/bin/sh\nexit 3\n")
    empty.chmod(0o755)
    for python, said in (
        (str(empty), "ended with 3"),
        (str(tmp_path / "none"), f"{PYTHON}: .*No such file"),
        (sys.executable, "No module named 'vllm'"),
    ):
        monkeypatch.setenv(PYTHON, python)
        with vllm_sampler.vllm_sampler(config, tmp_path) as sampler:
            assert sampler is not None
            with pytest.raises(VllmError, match=said):
                _sampled(sampler, model)


def test_its_process_ends_with_the_trainer() -> None:
    process = subprocess.Popen([sys.executable, vllm_worker.__file__], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0


def test_none_is_started_where_none_is_asked_for(
    tmp_path: Path, smoke_config: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, "/none")
    changes = {"num_steps": 1, "critic_pretrain_steps": 0}
    config = smoke_config.ppo.model_copy(update=changes)
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    assert "vllm_gap" not in read_metrics(output / "metrics.jsonl")[0]
    assert distributed.world_size() == 1
