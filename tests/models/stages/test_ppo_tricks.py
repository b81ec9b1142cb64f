"""Every switch of PPO's trick matrix does what it says, on cases whose effect is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.conftest import run_stage
from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.ppo import policy_loss
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.ppo_max import update
from trimtab.models.stages.ppo_max.rollout import Experience
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage

BATCH = list(range(16))


@pytest.fixture
def inputs(world: Path, policy: Path, advantage_model: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}


@pytest.fixture
def ppo(smoke_config: Any) -> PPOConfig:
    config: PPOConfig = smoke_config.ppo
    return config


def _with(config: PPOConfig, **changes: Any) -> PPOConfig:
    return config.model_copy(update=changes)


def _parameters(model: torch.nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten().clone() for value in model.parameters()])


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("treatment", ["raw", "scaled", "normalised"])
def test_scores_are_treated_by_the_history_of_all_batches(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], treatment: str, clip: float | None
) -> None:
    run = PPORun(_with(ppo, score_treatment=treatment, score_clip=clip), Stage(inputs, tmp_path))
    seen: list[float] = []
    for batch in (BATCH[:8], BATCH[8:]):
        experience = run._collect(batch)
        seen += experience.scores.tolist()
        mean = sum(seen) / len(seen)
        std = (sum((score - mean) ** 2 for score in seen) / len(seen)) ** 0.5
        for score, treated in zip(
            experience.scores.tolist(), experience.normalised_scores.tolist(), strict=True
        ):
            expected = (score - (mean if treatment == "normalised" else 0.0)) / (
                1.0 if treatment == "raw" else std
            )
            if clip is not None:
                expected = max(-clip, min(clip, expected))
            assert treated == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_advantages_are_clipped_after_they_are_whitened(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    plain = PPORun(ppo, Stage(inputs, tmp_path))._collect(BATCH)
    clipped = PPORun(_with(ppo, advantage_clip=0.12), Stage(inputs, tmp_path))._collect(BATCH)
    mask = plain.response_mask
    assert plain.advantages[mask].std() > 0.9
    assert torch.equal(clipped.advantages, plain.advantages.clamp(-0.12, 0.12))
    share = (plain.advantages[mask].abs() > 0.12).float().mean()
    assert float(clipped.monitors()["advantage_clip_fraction"]) == pytest.approx(float(share))
    assert "advantage_clip_fraction" not in plain.monitors()
    assert torch.equal(clipped.returns, plain.returns)


def test_advantages_are_whitened_and_clipped_over_the_responses_of_an_update(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _with(ppo, normalise_over="minibatch", advantage_clip=1.5, train_batch=6)
    config = config.model_copy(update={"micro_batch_tokens": 40})  # an update has several parts
    run = PPORun(config, Stage(inputs, tmp_path))
    experience = run._collect(BATCH)
    mask = experience.response_mask
    assert abs(float(experience.advantages[mask].std(correction=0)) - 1) > 0.05  # not whitened yet
    learned: list[torch.Tensor] = []

    def noted(logprobs: Any, old: Any, advantages: Any, mask: Any, *rest: Any) -> Any:
        learned.extend(advantages[mask])
        return policy_loss(logprobs, old, advantages, mask, *rest)

    monkeypatch.setattr(update, "policy_loss", noted)
    metrics = run.learner._policy_step(experience, list(range(6)))
    raw = experience.advantages[:6][mask[:6]].double()
    whitened = (raw - raw.mean()) / raw.std(correction=0)
    expected = whitened.clamp(-1.5, 1.5).sort().values
    found = torch.stack(learned).double().sort().values
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    share = float((whitened.abs() > 1.5).float().mean())
    assert float(metrics["advantage_clip_fraction"]) == pytest.approx(share)
    assert "advantage_clip_fraction" not in experience.monitors()


def test_the_ratio_may_be_over_the_reference(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    """Once the policy has left the reference, the first ratio of a batch is what it has become."""
    config = _with(ppo, ratio_denominator="reference", train_batch=16, policy_learning_rate=1e-2)
    run = PPORun(config, Stage(inputs, tmp_path))
    first = run.learner.update(run._collect(BATCH), updates_policy=True)
    assert float(first["policy_ratio_mean"]) == pytest.approx(1.0, abs=1e-5)
    experience = run._collect(BATCH)
    mask = experience.response_mask
    ratios = (experience.old_logprobs - experience.ref_logprobs)[mask].exp()
    assert float((ratios - 1).abs().mean()) > 0.05
    second = run.learner.update(experience, updates_policy=True)
    assert float(second["policy_ratio_mean"]) == pytest.approx(float(ratios.mean()), rel=1e-4)
    # Where the clip binds on a good token, or on a bad one, nothing is left to learn from it.
    bound = torch.where(experience.advantages[mask] > 0, ratios > 1.2, ratios < 0.8)
    share = float(bound.float().mean())
    assert float(second["policy_clip_fraction"]) == pytest.approx(share, abs=1e-4)
    assert share > 0


def _entropy(run: PPORun, experience: Experience) -> float:
    with torch.no_grad():
        _, entropies, mask = response_logprobs(run.policy, pack(experience.rows))
    return float(entropies[mask].mean())


@pytest.mark.slow
def test_the_entropy_bonus_raises_entropy_and_its_clip_leads_to_one(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    found = {}
    for coefficient, clip in ((0.0, None), (10.0, None), (10.0, 1e-3)):
        run = PPORun(
            _with(ppo, entropy_coef=coefficient, entropy_clip=clip), Stage(inputs, tmp_path)
        )
        experience = run._collect(BATCH)
        before = _entropy(run, experience)
        metrics = [run.learner.update(experience, updates_policy=True) for _ in range(3)]
        found[coefficient, clip] = _entropy(run, experience) - before
        assert ("policy_entropy" in metrics[0]) == (coefficient > 0)
    assert found[10.0, None] > found[0.0, None] + 0.01
    assert found[10.0, 1e-3] < found[0.0, None] - 0.01


def test_the_entropy_bonus_needs_no_whole_batch_at_once(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    updated = []
    for more in ({}, {"micro_batch_tokens": 64, "gradient_checkpointing": True}):
        config = _with(ppo, entropy_coef=0.5, entropy_clip=2.0, temperature=1.0, **more)
        run = PPORun(config, Stage(inputs, tmp_path))
        metrics = run.learner.update(run._collect(BATCH), updates_policy=True)
        updated.append((metrics["policy_entropy_loss"], dict(run.policy.named_parameters())))
    torch.testing.assert_close(updated[1], updated[0])


def test_without_a_clip_no_ratio_is_clipped(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    rates = {"policy_learning_rate": 1e-2, "num_epochs": 3}
    for clip in (0.2, None):
        run = PPORun(_with(ppo, policy_clip=clip, **rates), Stage(inputs, tmp_path))
        metrics = run.learner.update(run._collect(BATCH), updates_policy=True)
        assert (float(metrics["policy_clip_fraction"]) > 0) == (clip is not None)


def _likelihood(run: PPORun, rows: list[Candidates]) -> float:
    """Mean log-probability of a response token, nats."""
    with torch.no_grad():
        logprobs, _, mask = response_logprobs(run.policy, pack(rows))
    return float(logprobs[mask].mean())


def test_ptx_makes_demonstrations_likelier(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    runs = [PPORun(_with(ppo, ptx_coef=weight), Stage(inputs, tmp_path)) for weight in (0.0, 5.0)]
    rows = runs[1].learner.nll_terms[0].rows[:64]
    before = _likelihood(runs[0], rows)
    gains = []
    for run in runs:
        experience = run._collect(BATCH)
        metrics = [run.learner.update(experience, updates_policy=True) for _ in range(4)]
        assert ("ptx_loss" in metrics[0]) == (run is runs[1])
        gains.append(_likelihood(run, rows) - before)
    assert gains[1] > gains[0] + 0.02
    # What is added to the loss is the likelihood that was to rise.
    assert float(metrics[0]["ptx_loss"]) == pytest.approx(-before, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["scorer", "policy"])
def test_a_critic_of_either_start_learns_values_before_the_policy_moves(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], start: str
) -> None:
    config = _with(ppo, critic_init=start, critic_pretrain_steps=12, num_steps=1)
    run = PPORun(config, Stage(inputs, tmp_path / "run"))
    heads = {"scorer": 2, "policy": 1}  # an Advantage Model's, and one of its own
    assert run.critic.config.num_labels == heads[start]
    before = _parameters(run.policy)
    output = run_stage("ppo_max", config, tmp_path / "stage", **inputs)
    rows = read_metrics(output / "metrics.jsonl")
    assert ["policy_loss" in row for row in rows] == [False] * 12 + [True]
    assert all(row["kl"] == pytest.approx(0.0, abs=1e-5) for row in rows[:13])
    losses = [row["value_loss"] for row in rows]
    assert sum(losses[9:12]) < sum(losses[:3])
    for _ in range(2):
        run.learner.update(run._collect(BATCH), updates_policy=False)
    assert torch.equal(_parameters(run.policy), before)


def test_a_policy_without_sft_starts_from_the_untrained_base(
    tmp_path: Path, smoke_config: Any, ppo: PPOConfig, inputs: dict[str, Path], world: Path
) -> None:
    config = smoke_config.sft.model_copy(update={"fine_tune": False})
    base = run_stage("sft", config, tmp_path / "base", data=world)
    drawn, trained = (load_policy(folder / "model") for folder in (base, inputs["policy"]))
    # A fresh Llama's weights have a deviation of 0.02, and it knows nothing of any word.
    assert float(drawn.model.layers[0].mlp.up_proj.weight.detach().std()) == pytest.approx(
        0.02, rel=0.1
    )
    assert not torch.equal(_parameters(drawn), _parameters(trained))
    run = PPORun(ppo, Stage({**inputs, "policy": base, "reference": base}, tmp_path))
    experience = run._collect(BATCH)
    assert float(experience.monitors()["kl"]) == pytest.approx(0.0, abs=1e-4)
    ignorant = torch.log(torch.tensor(float(drawn.config.vocab_size)))
    assert float(experience.monitors()["entropy"]) == pytest.approx(float(ignorant), rel=0.02)
    metrics = run.learner.update(experience, updates_policy=True)
    assert float(metrics["policy_ratio_mean"]) == pytest.approx(1.0, abs=0.05)
