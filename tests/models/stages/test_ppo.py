"""PPO: the first ratio is 1, monitors are right, the guard speaks, rollback goes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from trimtab.models.config.policy import CollapseConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.ppo import steered_kl_coef
from trimtab.models.nets.packing import pack
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.stages.ppo_max.guard import (
    collapse_reason,
    first_reason,
    held_out_monitors,
    readings,
)
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage


@pytest.fixture
def inputs(world: Path, policy: Path, advantage_model: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
    ],
)
def test_first_ratio_is_one(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], sampling: dict[str, float]
) -> None:
    config = smoke_config.ppo.model_copy(update=sampling)
    run = PPORun(config, Stage(inputs, tmp_path))
    experience = run._collect(list(range(16)))
    for indices in torch.arange(16).split(8):
        rows = [experience.rows[index] for index in indices.tolist()]
        logprobs, _, mask = response_logprobs(run.policy, pack(rows), config.temperature)
        old = experience.old_logprobs[indices, : mask.shape[1]]
        torch.testing.assert_close((logprobs - old)[mask].exp(), torch.ones(int(mask.sum())))
    assert float(experience.monitors()["kl"]) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.narrow
def test_first_ratio_is_one_where_layers_multiply_in_bfloat16(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], narrow_products: None
) -> None:
    """Over what was noted in float32 it would not be."""
    config = smoke_config.ppo.model_copy(update={"critic_pretrain_steps": 0, "train_batch": 16})
    run = PPORun(config, Stage(inputs, tmp_path))
    experience = run._collect(list(range(16)))
    assert float(experience.monitors()["kl"]) == 0.0
    set_product_precision("float32")
    wide, _, mask = response_logprobs(run.policy, pack(experience.rows), config.temperature)
    assert (wide - experience.old_logprobs)[mask].abs().max() > 1e-4
    set_product_precision("bfloat16")
    metrics = run.learner.update(experience, updates_policy=True)
    assert float(metrics["policy_ratio_mean"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["policy_approx_kl"]) < 1e-8


def test_steps_and_trained_tokens_count_for_each_model_that_learns(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    run = PPORun(smoke_config.ppo.model_copy(update={"num_epochs": 2}), Stage(inputs, tmp_path))
    experience = run._collect(list(range(16)))
    tokens = sum(len(row.prompt) + len(row.responses[0]) for row in experience.rows)
    run.learner.update(experience, updates_policy=False)
    assert run.learner.num_trained_tokens == 2 * tokens  # the critic, twice
    run.learner.update(experience, updates_policy=True)
    assert run.learner.num_trained_tokens == 2 * tokens + 2 * 2 * tokens
    # An epoch is two train batches of 8; the critic has learned in both rounds, the policy in one.
    states = [each.state_dict()["optimiser"] for each in (run.learner.critic, run.learner.policy)]
    assert [int(state["state"][0]["step"]) for state in states] == [2 * 4, 4]
    assert run.counts.updates == 4


def test_sampler_and_trainer_agree_on_what_was_sampled(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    """At temperature 1 without nucleus, mean -logprob of samples estimates the entropy."""
    config = smoke_config.ppo.model_copy(
        update={"temperature": 1.0, "top_p": 1.0, "rollout_batch": 96}
    )
    experience = PPORun(config, Stage(inputs, tmp_path))._collect(list(range(96)))
    mask = experience.response_mask
    surprise, entropy = -experience.old_logprobs[mask], experience.entropies[mask]
    error = float((surprise - entropy).std()) / int(mask.sum()) ** 0.5
    assert abs(float((surprise - entropy).mean())) < 4 * error


def test_micro_batches_and_recomputed_layers_change_no_update(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    updated = []
    for more in ({}, {"micro_batch_tokens": 64, "gradient_checkpointing": True}):
        run = PPORun(smoke_config.ppo.model_copy(update=more), Stage(inputs, tmp_path))
        metrics = run.learner.update(run._collect(list(range(16))), updates_policy=True)
        models = (run.policy, run.critic)
        updated.append((metrics, [dict(model.named_parameters()) for model in models]))
    (metrics, models), (other_metrics, other_models) = updated
    torch.testing.assert_close(other_models, models)
    assert float(metrics["policy_grad_norm"]) == pytest.approx(
        float(other_metrics["policy_grad_norm"]), rel=1e-4
    )


def test_rollback_returns_to_the_oldest_checkpoint(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    guard = CollapseConfig(action="rollback", window=2, max_kl=1e-9)
    config = smoke_config.ppo.model_copy(
        update={"guard": guard, "num_steps": 8, "checkpoint_every": 1}
    )
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["collapsed"]
    assert "KL to the reference" in summary["collapse_reason"]
    assert summary["policy_of_step"] < summary["stopped_at_step"] < 9
    assert load_file(output / "model" / "model.safetensors")


def _row(score: float, length: float, perplexity: float, kl: float = 1.0) -> dict[str, float]:
    row = {"score": score, "response_length": length, "perplexity": perplexity, "kl": kl}
    return {**row, "score_std": 0.5}


def test_guard_names_reward_hacking_and_only_that() -> None:
    config = CollapseConfig(window=3)
    start = [_row(0.0, 10.0, 2.0)] * 3
    hacked = collapse_reason([*start, *[_row(1.0, 16.0, 1.3)] * 3], config)
    assert hacked is not None
    assert "reward hacking" in hacked
    assert collapse_reason([*start, *[_row(1.0, 11.0, 1.3)] * 3], config) is None
    assert collapse_reason([*start, *[_row(1.0, 16.0, 1.9)] * 3], config) is None
    assert collapse_reason([*start, *[_row(-1.0, 16.0, 1.3)] * 3], config) is None
    assert collapse_reason([*start, *[_row(1.0, 6.5, 1.9)] * 3], config) is None
    assert collapse_reason([*start, *[_row(-1.0, 5.5, 1.9)] * 3], config) is None
    dwindled = collapse_reason([*start, *[_row(1.0, 5.5, 1.9)] * 3], config)
    assert dwindled is not None
    assert "length went from 10.0 to 5.5" in dwindled
    far = collapse_reason([*start, *[_row(0.0, 10.0, 2.0, kl=25.0)] * 3], config)
    assert far is not None
    assert "25.0 nats" in far
    assert collapse_reason(start, config) is None


def _held_out(held_out: float, score: float = 0.0) -> dict[str, float]:
    monitors = {"held_out_score": held_out, "held_out_std": 2.0}
    agreement = {"held_out_disagreement": 0.5, "held_out_agreement": 0.9}
    return {**_row(score, 10.0, 2.0), **monitors, **agreement}


def test_readings_by_hand() -> None:
    """Windows of two: means 1, 3, 4, 2.5 of held-out scores whose spread at the start is 2."""
    steps = [
        {**_held_out(held_out, score), "perplexity": 1 + p}
        for held_out, score, p in [
            (0.0, 0.0, 1.0),
            (2.0, 1.0, 1.0),
            (4.0, 2.0, 0.5),
            (4.0, 3.0, 0.5),
            (1.0, 4.0, 0.1),
        ]
    ]
    read = readings(steps, 2)
    assert read == pytest.approx(
        {
            "kl": 1.0,
            "length": 1.0,
            "perplexity": 0.3,  # (.5 + .1) / 2 over 1
            "score_gain": (3.5 - 0.5) / 0.5,
            "held_out_fall": (4.0 - 2.5) / 2.0,
        }
    )
    plain = [{name: row[name] for name in _row(0.0, 1.0, 2.0)} for row in steps]
    assert readings(plain, 2).keys() == {"kl", "length", "perplexity", "score_gain"}


def test_a_policy_that_is_sure_from_the_start_does_not_narrow() -> None:
    """Perplexity 1 throughout: longer responses of a higher score are no hacking by themselves."""
    steps = [_row(0.0, 10.0, 1.0)] * 2 + [_row(1.0, 16.0, 1.0)] * 2
    assert collapse_reason(steps, CollapseConfig(window=2)) is None


def test_guard_names_what_held_out_scorers_do_not_confirm() -> None:
    """Their score falls by .5 of a spread of 2 from its highest, which is not the first."""
    config = CollapseConfig(window=2, num_held_out=2, max_held_out_fall=0.4)
    with pytest.raises(ValidationError, match="num_held_out must be above 0"):
        CollapseConfig(max_held_out_fall=0.4)
    rising = [_held_out(0.0), _held_out(0.0), _held_out(3.0), _held_out(3.0)]
    assert collapse_reason(rising, config) is None
    fallen = [*rising, _held_out(2.0, 1.0), _held_out(2.0, 1.0)]
    reason = collapse_reason(fallen, config)
    assert reason is not None
    assert "fell by 0.50 spreads" in reason
    assert "(step 6)" in reason
    less = config.model_copy(update={"max_held_out_fall": 0.6})
    off = config.model_copy(update={"max_held_out_fall": None})
    for other in (less, off):
        assert collapse_reason(fallen, other) is None
    # Without held-out scorers the guard uses what it has.
    plain = [{name: row[name] for name in _row(0.0, 1.0, 2.0)} for row in fallen]
    assert collapse_reason(plain, config) is None
    # What is found first stays found, as in a run that only warns.
    recovered = [*fallen, *[_held_out(3.0)] * 2]
    assert collapse_reason(recovered, config) is None
    assert first_reason(recovered, config) == reason


def test_held_out_monitors_by_hand() -> None:
    """Two scorers with means 1, 2, 6 of three responses."""
    scores = torch.tensor([1.0, 2.0, 3.0])
    held_out = torch.tensor([[0.0, 1.0, 5.0], [2.0, 3.0, 7.0]])
    monitors = held_out_monitors(scores, held_out)
    assert float(monitors["held_out_score"]) == pytest.approx(3.0)
    assert float(monitors["held_out_std"]) == pytest.approx(7.0**0.5)  # (4 + 1 + 9) / 2
    assert float(monitors["held_out_disagreement"]) == pytest.approx(0.0)  # but for a constant
    # Gaps -1, 0, 1 and -2, -1, 3: 5 over the roots of 2 and 14.
    assert float(monitors["held_out_agreement"]) == pytest.approx(5 / 28**0.5)
    apart = held_out_monitors(scores, torch.tensor([[0.0, 3.0, 3.0], [3.0, 3.0, 0.0]]))
    # About their means -2, 1, 1 and 1, 1, -2: deviations of 1.5, 0, 1.5.
    assert float(apart["held_out_disagreement"]) == pytest.approx(1.0)
    constant = held_out_monitors(torch.ones(3), held_out)
    assert float(constant["held_out_agreement"]) == 0.0


def test_held_out_scorers_are_recorded_and_change_no_policy(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], advantage_model: Path
) -> None:
    outputs = {}
    guard = CollapseConfig(action="warn")
    config = smoke_config.ppo.model_copy(update={"guard": guard})
    for name, more in (("plain", {}), ("watched", {"held_out_scorer_0": advantage_model})):
        outputs[name] = run_stage("ppo_max", config, tmp_path / name, **inputs, **more)
    plain, watched = (load_file(path / "model/model.safetensors") for path in outputs.values())
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())
    rows = read_metrics(outputs["watched"] / "metrics.jsonl")
    answers = read_rows(outputs["watched"] / "rollouts.jsonl")
    # It is the scorer itself that is held out here.
    for row in rows:
        assert row["held_out_score"] == pytest.approx(row["score"], rel=1e-5)
        assert row["held_out_agreement"] == pytest.approx(1.0, abs=1e-5)
    assert [row["held_out_score"] for row in answers] == [row["score"] for row in answers]
    assert "held_out_score" not in read_metrics(outputs["plain"] / "metrics.jsonl")[0]
    assert "held_out_score" not in read_rows(outputs["plain"] / "rollouts.jsonl")[0]


def test_a_run_that_only_warned_says_so_after_it_went_on(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_step(history: list[dict[str, float]], _: CollapseConfig) -> str | None:
        return "the second step" if len(history) == 2 else None

    monkeypatch.setattr(trainer, "collapse_reason", second_step)
    guard = CollapseConfig(action="warn")
    config = smoke_config.ppo.model_copy(update={"guard": guard})
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["collapsed"], summary["collapse_reason"]) == (True, "the second step")
    assert summary["stopped_at_step"] == 5


@pytest.mark.parametrize(("window", "collapsed"), [(2, False), (3, None)])
def test_a_run_of_fewer_steps_than_two_windows_cannot_tell_a_collapse(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], window: int, collapsed: bool | None
) -> None:
    config = smoke_config.ppo.model_copy(update={"guard": CollapseConfig(window=window)})
    output = run_stage("ppo_max", config, tmp_path, **inputs)
    assert json.loads((output / "summary.json").read_text())["collapsed"] is collapsed


def test_the_kl_coefficient_is_steered_and_goes_on_where_it_stood(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    """Each step's coefficient by the KL of the one before, a fifth at most in 16 responses."""
    steering = {"kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 16, "checkpoint_every": 3}
    config = smoke_config.ppo.model_copy(update=steering)
    run_stage("ppo_max", config, tmp_path / "run", **inputs)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    coef = 0.1
    for number, row in enumerate(rows):
        assert row["kl_coef"] == pytest.approx(coef, rel=1e-6)
        if number < config.critic_pretrain_steps:
            continue  # the policy has not moved
        coef *= 1 + min(max(row["kl"] / 0.01 - 1, -0.2), 0.2)
    assert coef not in (0.1, pytest.approx(0.1))
    resumed = PPORun(config, Stage(inputs, tmp_path / "run"))
    assert resumed.step == 3
    assert resumed.kl_coef == pytest.approx(rows[3]["kl_coef"], rel=1e-6)
    assert steered_kl_coef(0.1, 1.5, 1.0, 0.5) == pytest.approx(0.11)
    assert steered_kl_coef(0.1, 0.9, 1.0, 0.5) == pytest.approx(0.095)


def test_learning_rates_rise_over_a_share_of_each_models_steps(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"num_steps": 10, "critic_pretrain_steps": 10, "warmup_fraction": 0.2}
    run = PPORun(smoke_config.ppo.model_copy(update=steps), Stage(inputs, tmp_path))
    shares = []
    for step in range(20):
        run.step = step
        shares.append(run._warmup_shares())
    # A fifth of the policy's 10 steps, which begin at the eleventh, and of the critic's 20.
    assert [share for share, _ in shares[10:]] == [0.5, *[1.0] * 9]
    assert [share for _, share in shares] == [0.25, 0.5, 0.75, *[1.0] * 17]
    rates: list[float] = []
    monkeypatch.setattr(
        run.learner.critic, "step", lambda rate: rates.append(rate) or torch.ones(())
    )
    run.learner.update(run._collect(list(range(8))), False, 1.0, 0.25)
    assert set(rates) == {0.25 * run.config.critic_learning_rate}
