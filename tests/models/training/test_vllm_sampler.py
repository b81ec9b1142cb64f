"""vLLM samples: its weights are the policy's, its ends are known, its process leaves with ours.

With TRIMTAB_VLLM_PYTHON in the environment these tests have vLLM itself, else a stand-in for it.
"""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.models.conftest import run_stage
from tests.models.jobs import job, killed_and_whole, read_by
from tests.models.training.pretend_vllm import vllm as pretend_vllm
from trimtab.infra.processes.launch import launch
from trimtab.models.config.judge import ChatModelConfig
from trimtab.models.config.policy import RLOO, PPOConfig, ReviseConfig, SampleResponsesConfig
from trimtab.models.config.reward import ExpectedRewardConfig
from trimtab.models.config.sampling import SamplerConfig, VllmConfig
from trimtab.models.config.training import LoraConfig
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.lora import add_adapters, merge_adapters, merged_weights
from trimtab.models.nets.packing import pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.specs import SPECS
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training import distributed, vllm_sampler, vllm_worker
from trimtab.models.training import sampling as built_in
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage
from trimtab.models.training.vllm_sampler import PYTHON, VllmError, VllmSampler

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = Path(__file__).with_name("pretend_vllm")
HAS_VLLM = PYTHON in os.environ
_noted = vllm_worker._own_logprobs
PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [10, 11, 12, 13]] * 4


@pytest.fixture(autouse=True)
def _python_with_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if HAS_VLLM:
        return
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={STAND_IN}:{ROOT} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(script))


@pytest.fixture
def vllm_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in in this process, not in one that loads torch for each sampler anew."""
    if HAS_VLLM:
        return
    workers: dict[VllmSampler, vllm_worker.Worker] = {}

    def start(sampler: VllmSampler) -> None:
        sampler.process = mock.create_autospec(subprocess.Popen, instance=True)
        workers[sampler] = vllm_worker.Worker()

    monkeypatch.setitem(sys.modules, "vllm", pretend_vllm)
    monkeypatch.setattr(VllmSampler, "_start", start)

    def ask(sampler: VllmSampler, request: Any) -> Any:
        answer = workers[sampler].handle(json.loads(json.dumps(request)))
        return json.loads(json.dumps(answer))

    monkeypatch.setattr(VllmSampler, "_ask", ask)


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


@pytest.mark.narrow
def test_it_multiplies_in_what_the_trainer_s_layers_do(
    one_head: Path, request: pytest.FixtureRequest
) -> None:
    policy = load_policy(one_head / "model")
    assert vllm_sampler._dtype(policy) == torch.float32
    request.getfixturevalue("narrow_products")
    assert vllm_sampler._dtype(policy) == torch.bfloat16


def _sampled(sampler: VllmSampler, model: Any, seed: int = 0) -> tuple[list[list[int]], float]:
    generator = torch.Generator().manual_seed(seed)
    sampling = Sampling(temperature=0.7, max_new_tokens=12, top_p=0.9)
    sampled = sampler.sample(model, 2, PROMPTS, sampling, generator)
    return sampled.responses, float(sampled.reported["vllm_gap"])


@pytest.mark.slow
def test_the_first_ratio_is_one(tmp_path: Path, config: PPOConfig, inputs: Any) -> None:
    with vllm_sampler.vllm_sampler(config, tmp_path):
        run = PPORun(config, Stage(inputs, tmp_path))
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
@pytest.mark.usefixtures("vllm_here")
@pytest.mark.parametrize("ratio_of", ["token", "response"])
def test_the_loss_is_weighed_by_how_far_the_sampler_is_off(
    tmp_path: Path,
    config: PPOConfig,
    inputs: Any,
    monkeypatch: pytest.MonkeyPatch,
    ratio_of: str,
) -> None:
    """Of tokens that the sampler says it drew at half their probability: at most 1.5 times."""
    whole: dict[str, Any] = {
        "ptx_coef": 0.0,
        "temperature": 1.0,
        "train_batch": config.rollout_batch,
    }
    if ratio_of == "response":
        whole |= {"objective": RLOO, "critic_pretrain_steps": 0}
    config = config.model_copy(update=whole)
    norms = []
    for cap, shift in ((None, 0.0), (1.5, 0.0), (1.5, math.log(2))):
        changed = config.model_copy(update={"importance_cap": cap})
        with monkeypatch.context() as patched, vllm_sampler.vllm_sampler(changed, tmp_path):
            patched.setattr(vllm_sampler, "_checked_gap", lambda *_: torch.zeros(()))
            patched.setattr(
                vllm_worker, "_own_logprobs", lambda one, s=shift: [x - s for x in _noted(one)]
            )
            run = PPORun(changed, Stage(inputs, tmp_path / str(len(norms))))
            experience = run._collect(list(range(run.counts.prompts)))
            norms.append(float(run.learner.update(experience, True)["policy_grad_norm"]))
        monitors = experience.monitors()
        assert ("importance_mean" in monitors) == (cap is not None)
        if cap is not None:
            weight = 1.5 if shift else 1.0
            assert float(monitors["importance_mean"]) == pytest.approx(weight, abs=1e-3)
            assert float(monitors["importance_capped_fraction"]) == (1.0 if shift else 0.0)
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    assert norms[2] == pytest.approx(1.5 * norms[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("vllm_here")
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
    assert (tmp_path / "two" / "vllm.log").exists()
    assert (tmp_path / "two" / "1-vllm.log").exists()  # each has its own
    one, two = (
        [json.loads(line) for line in (tmp_path / count / "output/rollouts.jsonl").open()]
        for count in ("one", "two")
    )
    assert [row["response"] for row in one] == [row["response"] for row in two]
    assert [row["score"] for row in one] == pytest.approx([row["score"] for row in two], rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("vllm_here")
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
@pytest.mark.usefixtures("vllm_here")
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


def test_its_process_ends_with_the_trainer_and_takes_the_weights_away(tmp_path: Path) -> None:
    """Which one that was killed cannot."""
    folder = tmp_path / "weights"
    folder.mkdir()
    command = [sys.executable, vllm_worker.__file__, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert not folder.exists() and tmp_path.exists()


def test_none_is_started_where_none_is_asked_for(
    tmp_path: Path, smoke_config: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, "/none")
    changes = {"num_steps": 1, "critic_pretrain_steps": 0}
    config = smoke_config.ppo.model_copy(update=changes)
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    assert "vllm_gap" not in read_metrics(output / "metrics.jsonl")[0]
    assert distributed.world_size() == 1


def _sampling_configs(smoke: Any) -> dict[str, Any]:
    """Of each stage that samples, but PPO, with vLLM."""
    vllm = {"vllm": VllmConfig(cache_gib=0.25)}
    few = {"num_prompts": 8, **vllm}
    expected = ExpectedRewardConfig(num_responses=2, batch_size=4, num_held_out=4, **few)
    answers = {"num_responses": 2, "max_new_tokens": 12}
    gold = ChatModelConfig(gold_accuracy=1.0)
    return {
        "comparisons": smoke.comparisons.model_copy(update={"num_prompts": 12, **vllm}),
        "rehearsal": smoke.rehearsal.model_copy(update={"max_prompts": 12, **vllm}),
        "sample_responses": SampleResponsesConfig(**answers, **few),
        "evaluate": smoke.evaluate.model_copy(update=vllm),
        "revise": ReviseConfig(judge=gold, max_prompts=6, num_revisions=1, **vllm),
        "advantage_model": smoke.advantage_model.model_copy(update={"expected_reward": expected}),
        "meta_rm": smoke.rounds.meta_rm.model_copy(update={"meta_batch": 4, **few}),
    }


def _samples(kind: Any) -> bool:
    """Whether a configuration, or one inside it, says how a policy is sampled."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.values()
        return issubclass(kind, SamplerConfig) or any(_samples(each.annotation) for each in fields)
    return any(map(_samples, get_args(kind)))


@pytest.mark.slow
@pytest.mark.usefixtures("vllm_here")
def test_every_stage_that_samples_may_do_so_with_vllm(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    one_head: Path,
    comparisons: Path,
    advantage_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = _sampling_configs(smoke_config)
    others = {"ppo_max", "head_to_head"}  # the second compares answers that `evaluate` has sampled
    assert {name for name, spec in SPECS.items() if _samples(spec.config)} == {*configs, *others}

    def decode(*_: Any) -> None:
        raise AssertionError("our own loop samples")

    monkeypatch.setattr(built_in, "decode", decode)
    given = {
        "policy": one_head,
        "reference": one_head,
        "scorer": advantage_model,
        "data": world,
        "preferences": comparisons,
        "judge_0": advantage_model,
    }
    for stage, config in configs.items():
        output = run_stage(stage, config, tmp_path / stage, **read_by(stage, **given))
        assert (output / "summary.json").exists(), stage
        assert not VllmSampler(VllmConfig(), tmp_path / stage).in_memory.exists(), stage
    with pytest.raises(AssertionError, match="our own loop"):  # outside nothing is left behind
        run_stage("rehearsal", smoke_config.rehearsal, tmp_path, **read_by("rehearsal", **given))


@pytest.mark.slow
def test_on_a_gpu_it_sleeps_while_the_trainer_computes(
    tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]
) -> None:
    """The stand-in refuses to work asleep, and other orders of waking up."""
    config = config.model_copy(update={"num_steps": 1, "critic_pretrain_steps": 1})
    path = job(tmp_path, config, inputs.pop("data"), 1, "ppo_max", inputs, gpus=["0"])
    launch(path, entry="tests.models.pretend_gpu")
    rows = read_metrics(tmp_path / "output" / "metrics.jsonl")
    assert len(rows) == 2 and all(row["vllm_gap"] < 1e-3 for row in rows)


def test_an_engine_that_sleeps_wants_weights_first(
    tmp_path: Path, one_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", pretend_vllm)
    for name in vllm_sampler.OF_THE_TRAINER:
        monkeypatch.delenv(name, raising=False)
    model = load_policy(one_head / "model")
    sampler = VllmSampler(VllmConfig(), tmp_path)
    folder = str(sampler._write(model))
    worker = vllm_worker.Worker()
    arguments = sampler._engine(model, folder)
    assert not arguments["enable_sleep_mode"]  # no CPU has it
    arguments["enable_sleep_mode"] = True
    request = {"prompts": PROMPTS, "seeds": list(range(len(PROMPTS)))}
    request["sampling"] = vllm_sampler._arguments(Sampling(1.0, 12), 2)
    worker.handle({"load": arguments})
    first = worker.handle(request)
    with pytest.raises(AssertionError, match="the engine sleeps"):
        worker.handle(request)
    worker.handle({"weights": folder})
    assert worker.handle(request) == first
    sampler._remove_weights()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(AssertionError, match="no expandable segments"):
        vllm_worker.Worker().handle({"load": arguments})


def test_its_environment_is_that_of_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vllm_sampler.OF_THE_TRAINER:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(distributed, "_ranks", distributed._Ranks(2, 1))
    found = vllm_sampler._environment()
    assert not found.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    assert not found.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONPATH"}
    assert found["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize("has_room", [True, False])
def test_weights_pass_through_memory_in_the_policy_s_type(
    tmp_path: Path,
    one_head: Path,
    narrow_products: None,
    monkeypatch: pytest.MonkeyPatch,
    has_room: bool,
) -> None:
    if not has_room:
        monkeypatch.setattr(vllm_sampler, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(vllm_sampler, "SHARD", 100_000)
    model = load_policy(one_head / "model")
    sampler = VllmSampler(VllmConfig(), tmp_path)
    folder = sampler._write(model)
    assert folder == (sampler.in_memory if has_room else tmp_path / "vllm")
    assert len(list(folder.glob("*.safetensors"))) > 1
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    assert saved.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(saved[name], value.bfloat16()), name
    assert saved["lm_head.weight"].data_ptr() != saved["model.embed_tokens.weight"].data_ptr()
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert size < 2.1 * sum(map(torch.numel, saved.values())) + 20_000
    sampler._remove_weights()
    assert not folder.exists()


def test_weights_are_in_a_folder_of_their_own(
    one_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of the host can neither read it nor make it first."""
    sampler = VllmSampler(VllmConfig(), tmp_path)
    policy = load_policy(one_head / "model")
    folder = sampler._write(policy)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sampler._remove_weights()
    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "_remove_weights", lambda: None)  # another's stays
        with pytest.raises(FileExistsError):
            sampler._write(policy)
    sampler._remove_weights()
