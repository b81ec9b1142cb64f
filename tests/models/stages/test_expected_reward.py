"""e(x) of the Advantage Model, trained as the mean reward of the policy's samples [AM eq. 7]."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.config.reward import ExpectedRewardConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_scorer, load_tokenizer, new_scorer
from trimtab.models.nets.packing import Candidates, encode, pack
from trimtab.models.nets.scoring import reward_heads
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.stages.advantage_model import (
    ExpectedRewardTerm,
    mean_and_expected,
    refit_expected_reward,
)
from trimtab.models.training.learner import ReplicatedLearner
from trimtab.models.training.nll_term import with_term
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.sampling import sample_answers
from trimtab.models.training.stage import Stage

SAMPLES = ExpectedRewardConfig(coef=1.0, num_prompts=64, num_responses=4, batch_size=16)


def _heads(model: Any, rows: list[Candidates]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean reward of each prompt's responses, and e(x)."""
    rewards, expected = reward_heads(model, pack(rows))
    assert expected is not None
    return rewards.view(len(rows), -1).mean(1), expected.view(len(rows), -1)[:, 0]


def test_the_gradient_is_twice_the_error_times_the_prompt_s_state(
    policy: Path, smoke_config: Any
) -> None:
    """By hand, for the head of e: dL/dw = 2/B sum_i (e_i - mean r_i) h_i; none for that of r."""
    model = new_scorer(policy / "model", 0, has_expected=True).eval()
    tokenizer = load_tokenizer(policy / "model")
    texts = [["safe .", "walk , walk .", "no ."], ["code", "a b", "b"], ["no", "no .", "safe ."]]
    rows = encode(tokenizer, ["sort : b a", "greet : bob", "repeat : walk"], texts)
    states: list[torch.Tensor] = []
    hook = model.score.register_forward_hook(lambda _, given, __: states.append(given[0]))
    mean, expected = _heads(model, rows)
    hook.remove()
    prompts = states[1][::3]  # the second call is e's, once a response
    by_hand = 2 / 3 * ((expected - mean)[:, None] * prompts).sum(0).detach()

    train = smoke_config.advantage_model.train.model_copy(update={"micro_batch_tokens": 20})
    learner = ReplicatedLearner(
        model,
        with_term(model, lambda *_: pytest.fail("pairs"), ExpectedRewardTerm),
        train,
        0.0,
        None,
    )
    term = ExpectedRewardTerm(rows, 0.5, 3)
    found = term.accumulate(learner, rows, 20, is_last=True)
    torch.testing.assert_close(
        found["expected_reward_loss"], (expected - mean).square().mean().detach()
    )
    gradient = model.score.weight.grad
    torch.testing.assert_close(gradient[1], 0.5 * by_hand, rtol=1e-4, atol=1e-6)
    assert not gradient[0].any()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 1])
def test_e_learns_what_the_policy_s_answers_are_worth(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    layers: int | None,
) -> None:
    train = smoke_config.advantage_model.train.model_copy(
        update={"num_epochs": 4, "trainable_layers": layers}
    )
    plain = smoke_config.advantage_model.model_copy(update={"train": train})
    inputs = {"policy": policy, "preferences": comparisons}
    without = run_stage("advantage_model", plain, tmp_path / "without", **inputs)
    config = plain.model_copy(update={"expected_reward": SAMPLES})
    given = {**inputs, "data": world}
    with_samples = run_stage("advantage_model", config, tmp_path / "with", **given)
    more = SAMPLES.model_copy(update={"num_responses": 16})
    prompts = read_rows(world / "policy_prompts.jsonl")
    rows = sample_answers(more, Stage({"policy": policy}, tmp_path), prompts, 7, 64)
    errors = {}
    for name, output in {"without": without, "with": with_samples}.items():
        mean, expected = mean_and_expected(load_scorer(output / "model"), rows)
        errors[name] = float((expected - mean).square().mean())
    assert errors["with"] < 0.5 * errors["without"]
    losses = [row["expected_reward_loss"] for row in read_metrics(tmp_path / "with/metrics.jsonl")]
    assert losses[-1] < losses[0]
    # What it says of prompts that were held out.
    found = read_rows(with_samples / "expected_rewards.jsonl")
    assert len(found) == len(prompts) - SAMPLES.num_prompts
    both = torch.tensor([[row["expected_reward"], row["mean_reward"]] for row in found]).T
    summary = json.loads((with_samples / "summary.json").read_text())
    correlation = float(torch.corrcoef(both)[0, 1])
    assert summary["expected_reward_correlation"] == pytest.approx(correlation, abs=1e-4)
    assert summary["held_out_advantage"] == pytest.approx(float((both[1] - both[0]).mean()))


def test_the_last_head_is_the_least_squares_of_all_samples(policy: Path) -> None:
    """Then the error is orthogonal to every coordinate of the prompts' states."""
    model = new_scorer(policy / "model", 0, has_expected=True).eval()
    rng = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [rng.randrange(5, 50) for _ in range(length)]

    rows = [Candidates(tokens(4), (tokens(3), tokens(2))) for _ in range(200)]
    reward_head = model.score.weight[0].clone()
    before, _ = mean_and_expected(model, rows)
    refit_expected_reward(model, rows, [None] * len(rows))
    mean, expected = mean_and_expected(model, rows)
    assert torch.equal(mean, before) and torch.equal(model.score.weight[0], reward_head)
    batch = pack(rows)
    with torch.no_grad():
        states = hidden_states(model, batch)[batch.prompt_end[::2]]
    error = (mean - expected).double()
    spread = (mean - mean.mean()).double().norm()
    assert (states.double().T @ error).abs().max() < 0.02 * states.double().norm() * spread
    assert error.norm() < spread
    step = 0.01 * torch.randn(states.shape[1], generator=torch.Generator().manual_seed(0))
    assert (error + states @ step).norm() > error.norm()


@pytest.mark.parametrize("count", [40, 200])
def test_the_mean_error_of_every_category_is_zero(policy: Path, count: int) -> None:
    """Of one with but few prompts it is not asked; the rest changes as little as it can.

    By hand, the ridge regression with its constraints as one linear system (Lagrange).
    """
    rng = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [rng.randrange(5, 50) for _ in range(length)]

    rows = [Candidates(tokens(4), (tokens(3), tokens(2))) for _ in range(count)]
    names = ["few", "few", *("a" if row.prompt[0] < 25 else "b" for row in rows[2:])]
    model = new_scorer(policy / "model", 0, has_expected=True).eval()
    before = model.score.weight[1].detach().double()
    mean, expected = mean_and_expected(model, rows)
    error = (mean - expected).double()
    refit_expected_reward(model, rows, names)
    mean, expected = mean_and_expected(model, rows)
    left = (mean - expected).double()
    large = torch.tensor([[name == each for name in names] for each in ("a", "b")]).double()
    means = large / large.sum(1, keepdim=True)
    assert (means @ left).abs().max() < 1e-4
    assert left.norm() < error.norm()
    with torch.no_grad():
        batch = pack(rows)
        states = hidden_states(model, batch)[batch.prompt_end[::2]].double()
    found = model.score.weight[1].detach().double() - before
    constraints = means @ states
    squares = torch.linalg.svdvals(states).square()
    solutions = []
    for ridge in (squares.max() * 10.0**power for power in range(-6, 7)):
        normal = states.T @ states + ridge * torch.eye(states.shape[1])
        system = torch.cat([normal, constraints.T], 1)
        zeros = torch.zeros(2, 2, dtype=torch.float64)
        system = torch.cat([system, torch.cat([constraints, zeros], 1)])
        given = torch.cat([states.T @ error, means @ error])
        solutions.append(torch.linalg.solve(system, given)[: states.shape[1]])
    distances = [(solution - found).norm() / found.norm() for solution in solutions]
    assert min(distances) < 0.01


def test_prompts_are_asked_for(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path
) -> None:
    config = smoke_config.advantage_model.model_copy(update={"expected_reward": SAMPLES})
    with pytest.raises(ValueError, match="expected_reward needs the input `data`"):
        run_stage("advantage_model", config, tmp_path, policy=policy, preferences=comparisons)
