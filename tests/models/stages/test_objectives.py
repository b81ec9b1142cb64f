"""RLOO, GRPO and REINFORCE++ on PPO's rollout: groups in one row, no critic, advantages by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.conftest import run_stage
from trimtab.flows.config.config import ppo_of
from trimtab.models.config.arms import ARMS
from trimtab.models.config.policy import CollapseConfig, PPOConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.masked import masked_whiten
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs, response_values
from trimtab.models.stages.ppo_max import rollout
from trimtab.models.stages.ppo_max.rollout import Experience
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.scoring import map_rows, score_rows, score_samples
from trimtab.models.training.stage import Stage

WITHOUT_CRITIC = [name for name, arm in ARMS.items() if arm.has_objective]
K, PROMPTS = 4, 4


@pytest.fixture
def inputs(world: Path, policy: Path, advantage_model: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}


@pytest.fixture(params=WITHOUT_CRITIC)
def config(request: pytest.FixtureRequest, smoke_config: Any) -> PPOConfig:
    """The arm's settings; the KL penalty weighs enough to be seen."""
    return ppo_of(smoke_config, request.param).model_copy(update={"kl_coef": 0.4})


def _with(config: PPOConfig, **objective: Any) -> PPOConfig:
    changed = config.objective.model_copy(update=objective)
    return config.model_copy(update={"objective": changed})


def _moved(config: PPOConfig, inputs: dict[str, Path], folder: Path) -> PPORun:
    """A run whose policy has left the reference."""
    run = PPORun(config, Stage(inputs, folder))
    torch.manual_seed(0)
    with torch.no_grad():
        for value in run.policy.parameters():
            value += 0.05 * value.std() * torch.randn_like(value)
    return run


def _collected(run: PPORun) -> Experience:
    return run._collect(list(range(run.counts.prompts)))


def _singles(rows: list[Candidates]) -> list[Candidates]:
    """Each response in a row of its own."""
    return [Candidates(row.prompt, (ids,)) for row in rows for ids in row.responses]


def test_arms_are_three_and_have_no_critic(smoke_config: Any) -> None:
    assert WITHOUT_CRITIC == ["rloo", "grpo", "reinforce_pp"]
    for arm in WITHOUT_CRITIC:
        ppo = ppo_of(smoke_config, arm)
        assert PPOConfig.model_validate(dict(ppo)) == ppo
        assert not ppo.objective.has_critic
        # As many samples as PPO-max: what pre-trains a critic there moves the policy here.
        assert ppo.num_steps == smoke_config.ppo.num_steps + smoke_config.ppo.critic_pretrain_steps


def test_the_responses_to_a_prompt_share_its_row(
    tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]
) -> None:
    """What a row's passes say of its responses is what each says by itself."""
    run = _moved(config, inputs, tmp_path)
    experience = _collected(run)
    count = config.objective.num_responses
    assert [len(row.responses) for row in experience.rows] == [count] * (16 // count)
    assert len({tuple(row.prompt) for row in experience.rows}) == len(experience.rows)
    singles = _singles(experience.rows)
    width = experience.old_logprobs.shape[1]
    for model, found in (
        (run.policy, experience.old_logprobs),
        (run.reference.model, experience.ref_logprobs),
    ):
        logprobs, _, mask = map_rows(
            singles, lambda batch, m=model: response_logprobs(m, batch, config.temperature), width
        )
        torch.testing.assert_close(found[mask], logprobs[mask], rtol=1e-4, atol=1e-5)
        assert torch.equal(experience.response_mask, mask)
    alone = score_rows(run.scorers.members[0].model, singles)[:, 0]
    torch.testing.assert_close(experience.scores, alone, rtol=1e-4, atol=1e-5)
    prompts = [run.prompts[index]["prompt"] for index in range(len(experience.rows))]
    assert [row["prompt"] for row in experience.texts] == [p for p in prompts for _ in range(count)]
    responses = [
        run.tokenizer.decode(row.responses[0], skip_special_tokens=True) for row in singles
    ]
    assert [row["response"] for row in experience.texts] == responses


def test_a_critic_values_several_responses_to_a_prompt(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    """PPO-max with K responses: each has the values that it has by itself."""
    run = PPORun(_with(smoke_config.ppo, num_responses=2), Stage(inputs, tmp_path))
    experience = _collected(run)
    singles, width = _singles(experience.rows), experience.values.shape[1]
    values, mask = map_rows(singles, lambda batch: response_values(run.critic, batch), width)
    assert len(experience.rows) == 8 and len(mask) == 16
    torch.testing.assert_close(experience.values[mask], values[mask], rtol=1e-4, atol=1e-5)
    metrics = run.learner.update(experience, updates_policy=True)
    assert {"value_loss", "policy_loss"} <= metrics.keys()


def test_a_prompt_passes_each_model_once(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling begins with as many prompts as there are; passes have each of them once a row."""
    run = PPORun(ppo_of(smoke_config, "rloo"), Stage(inputs, tmp_path))
    begun, passed = [], []
    from trimtab.models.nets import generation, packing
    from trimtab.models.training import scoring

    def begin(model: Any, tokens: Tensor, *rest: Any) -> Any:
        begun.append(len(tokens))
        return original(model, tokens, *rest)

    def noted(rows: list[Candidates]) -> Any:
        passed.append(sum(row.num_tokens for row in rows))
        return packing.pack(rows)

    original = generation.begin_decoding
    monkeypatch.setattr(generation, "begin_decoding", begin)
    monkeypatch.setattr(scoring, "pack", noted)
    experience = _collected(run)
    # Two batches at least (`least_sampling_batches`) of two prompts each.
    assert sum(begun) == PROMPTS
    tokens = sum(row.num_tokens for row in experience.rows)
    assert sum(row.num_tokens for row in _singles(experience.rows)) > 1.5 * tokens
    assert sum(passed) == 2 * tokens  # reference and scorer; the sampler notes the policy's


def test_advantages_by_hand(tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]) -> None:
    experience = _collected(_moved(config, inputs, tmp_path))
    mask, objective = experience.response_mask, config.objective
    log_ratio = (experience.old_logprobs - experience.ref_logprobs) * mask
    assert float(log_ratio.abs().sum(1).min()) > 0.01
    expected = torch.zeros_like(log_ratio)
    returns = experience.normalised_scores.clone()
    if objective.kl_in == "reward":
        returns = returns - 0.4 * log_ratio.sum(1)
    if objective.baseline == "none":
        for i, t in mask.nonzero().tolist():  # the score and the penalties that are still to come
            expected[i, t] = experience.normalised_scores[i] - 0.4 * log_ratio[i, t:].sum()
        expected = masked_whiten(expected, mask)
    else:
        for i, value in enumerate(returns.tolist()):
            group = returns.tolist()[i // K * K : i // K * K + K]
            if objective.baseline == "leave_one_out":
                expected[i] = value - (sum(group) - value) / (K - 1)
            else:
                spread = torch.tensor(group).std() + 1e-4
                expected[i] = (value - sum(group) / K) / spread
        expected = expected * mask
    torch.testing.assert_close(experience.advantages, expected, rtol=1e-3, atol=1e-4)
    assert float(experience.advantages.abs().max()) > 0.1


@pytest.mark.parametrize("over", ["token", "sequence", "constant"])
def test_micro_batches_change_no_update(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], over: str
) -> None:
    config = _with(ppo_of(smoke_config, "grpo"), loss_mean=over, kl_bias_correction=True)
    config = config.model_copy(update={"entropy_coef": 0.05, "kl_coef": 0.3})
    updated = []
    for more in ({}, {"micro_batch_tokens": 40}):
        run = _moved(config.model_copy(update=more), inputs, tmp_path)
        experience = _collected(run)
        metrics = run.learner.update(experience, updates_policy=True)
        updated.append((metrics, dict(run.policy.named_parameters())))
    (whole, ours), (parts, theirs) = updated
    torch.testing.assert_close(theirs, ours)
    assert whole.keys() == parts.keys() >= {"policy_kl_loss", "policy_entropy_loss"}
    for name, value in whole.items():
        assert float(parts[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), name


def test_the_first_ratio_is_one_and_an_update_takes_whole_groups(
    tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]
) -> None:
    run = PPORun(config, Stage(inputs, tmp_path))
    experience = _collected(run)
    with torch.no_grad():
        logprobs, _, mask = response_logprobs(run.policy, pack(experience.rows), config.temperature)
    torch.testing.assert_close(
        (logprobs - experience.old_logprobs)[mask].exp(), torch.ones(int(mask.sum()))
    )
    tokens = sum(row.num_tokens for row in experience.rows)
    metrics = run.learner.update(experience, updates_policy=True)
    assert run.learner.num_trained_tokens == tokens
    state = run.learner.policy.state_dict()["optimiser"]
    assert int(state["state"][0]["step"]) == run.counts.updates == 2  # 16 responses, 8 an update
    assert run.learner.critic is None
    assert not any("value" in name or "critic" in name for name in metrics)
    assert "critic" not in run.learner.state_dict()


@pytest.mark.slow
def test_a_run_has_no_critic_and_goes_back_when_it_collapses(
    tmp_path: Path, config: PPOConfig, inputs: dict[str, Path]
) -> None:
    guard = CollapseConfig(action="rollback", window=2, max_kl=1e-9)
    changes = {"guard": guard, "num_steps": 8, "checkpoint_every": 1}
    output = run_stage("ppo_max", config.model_copy(update=changes), tmp_path, **inputs)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["collapsed"] and "KL to the reference" in summary["collapse_reason"]
    assert summary["policy_of_step"] < summary["stopped_at_step"] < 8
    assert summary["num_sampled"] == 16 * summary["stopped_at_step"]
    assert not (output / "critic").exists()
    assert len(read_rows(output / "rollouts.jsonl")) == summary["num_sampled"]
    monitors = read_metrics(output / "metrics.jsonl")[0]
    assert {"score", "score_std", "kl", "perplexity", "response_length"} <= monitors.keys()
    assert not any(name.startswith("value_") for name in monitors)


def test_a_scorer_with_a_tokenizer_of_its_own_reads_each_prompt_once(
    smoke_config: Any, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [
        {"prompt": row["prompt"]} for row in read_rows(inputs["data"] / "policy_prompts.jsonl")
    ]
    texts = [["three"], ["two two"], ["one"], ["four four four"]]
    model = load_scorer(inputs["scorer"] / "model").eval()
    tokenizer = load_tokenizer(inputs["scorer"] / "model")
    repeated = [prompts[0], prompts[0], prompts[1], prompts[1]]
    rows = [Candidates([1], ([2], [2]))] * 2  # of another tokenizer: their number alone is read
    from trimtab.models.training import scoring

    packed: list[list[Candidates]] = []
    original = scoring.score_rows
    monkeypatch.setattr(
        scoring,
        "score_rows",
        lambda m, given, *more: packed.append(given) or original(m, given, *more),
    )
    together = score_samples(model, tokenizer, rows, repeated, texts)
    assert together.shape == (4, 1)
    assert [len(row.responses) for row in packed[0]] == [2, 2]
    singles = [Candidates([1], ([2],))] * 4
    alone = score_samples(model, tokenizer, singles, repeated, texts)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_metrics_are_those_that_the_page_for_trls_users_names(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "from-trl-ppo.md"
    table = page.read_text(encoding="utf-8").partition("## Each metric")[2]
    named = re.findall(r"^\| `[\w/]+` \| `(\w+)`", table, re.MULTILINE)
    assert len(named) > 8
    on = {"entropy_coef": 0.01, "missing_eos_penalty": 1.0}
    output = run_stage("ppo_max", smoke_config.ppo.model_copy(update=on), tmp_path, **inputs)
    assert set(named) <= read_metrics(output / "metrics.jsonl")[-1].keys()


@pytest.mark.narrow
def test_what_bfloat16_sampled_is_weighed(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], narrow_products: None
) -> None:
    """Only rounding lies between sampler and update, which pass the same weights."""
    config = smoke_config.ppo.model_copy(update={"importance_cap": 2.0})
    experience = _collected(PPORun(config, Stage(inputs, tmp_path)))
    assert experience.importance is not None
    weights = experience.importance[experience.response_mask]
    assert 0.8 < weights.min() < 1 < weights.max() < 1.25
    assert float(experience.monitors()["importance_mean"]) == pytest.approx(1.0, abs=0.01)


def test_penalties_are_taken_from_what_is_cut_or_long(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    """From PPO-max's rewards too; the monitored score is the scorer's."""
    penalties = {"missing_eos_penalty": 2.0, "overlong_buffer": 4, "overlong_penalty": 3.0}
    plain, changed = (
        _collected(PPORun(smoke_config.ppo.model_copy(update=changes), Stage(inputs, tmp_path)))
        for changes in ({"max_new_tokens": 6}, {"max_new_tokens": 6, **penalties})
    )
    assert torch.equal(plain.scores, changed.scores)
    end = load_tokenizer(inputs["policy"] / "model").eos_token_id
    responses = [row.responses[0] for row in plain.rows]
    expected = [2.0 * (ids[-1] != end) + 3.0 * max(0, len(ids) - 2) / 4 for ids in responses]
    assert 0 < sum(ids[-1] != end for ids in responses) < len(responses)
    config = smoke_config.ppo.model_copy(update={"max_new_tokens": 6})
    found, _ = rollout._length_penalties(config.model_copy(update=penalties), responses, end)
    assert found.tolist() == pytest.approx(expected)
    missing = sum(ids[-1] != end for ids in responses) / len(responses)
    assert float(changed.monitors()["missing_eos_fraction"]) == pytest.approx(missing)
    assert "missing_eos_fraction" not in plain.monitors()
    # The last token's return is its reward: that of the scorer less the penalty.
    last = plain.response_mask.sum(1) - 1
    at = torch.arange(len(last)), last
    taken = (plain.returns - plain.values)[at] - (changed.returns - changed.values)[at]
    torch.testing.assert_close(taken, torch.tensor(expected), rtol=1e-4, atol=1e-4)
