"""PPO's weights by risk: what is measured, drawn and penalised, and that it goes on as it was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.conftest import run_stage
from tests.models.jobs import job, killed_and_whole, launch
from trimtab.models.config.policy import CollapseConfig, PPOConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_policy, load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.stages.rehearsal import next_best
from trimtab.models.training.embedding import embed
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.stage import Stage

BY_RISK: dict[str, Any] = {
    "rehearsal_coef": 0.5,
    "rehearsal_weights": "risk",
    "kl_weights": "risk",
    "risk_every": 2,
    "risk_floor": 1e-3,
}

# Rehearsed with weight .5 the answers are never less likely than before.
FORGETS = {"rehearsal_coef": 1e-3, "policy_learning_rate": 1e-2}


@pytest.fixture(scope="module")
def rehearsed(
    tmp_path_factory: pytest.TempPathFactory,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
) -> Path:
    """All answers to 60 demonstrations, in four clusters."""
    every = {"max_prompts": 60, "per_cluster": 60, "cluster_policy_prompts": True}
    config = smoke_config.rehearsal.model_copy(update=every)
    folder = tmp_path_factory.mktemp("rehearsal")
    inputs = {"data": world, "policy": policy, "scorer": advantage_model}
    return run_stage("rehearsal", config, folder, **inputs)


@pytest.fixture
def inputs(world: Path, policy: Path, advantage_model: Path, rehearsed: Path) -> dict[str, Path]:
    models = {"policy": policy, "reference": policy, "scorer": advantage_model}
    return {"data": world, "rehearsal": rehearsed, **models}


@pytest.fixture
def ppo(smoke_config: Any) -> PPOConfig:
    config: PPOConfig = smoke_config.ppo.model_copy(update=BY_RISK)
    return config


@torch.no_grad()
def _nll(model: PreTrainedModel, rows: Sequence[Candidates]) -> list[float]:
    """A forward pass of transformers a row."""
    sums = []
    for row in rows:
        response = row.responses[0]
        logits = model(torch.tensor([row.prompt + response])).logits[0]
        logprobs = logits[len(row.prompt) - 1 : -1].log_softmax(-1)
        sums.append(-float(logprobs[range(len(response)), response].sum()))
    return sums


def _risk(
    rows: Sequence[Candidates], clusters: Sequence[int], now: list[float], before: list[float]
) -> list[float]:
    risen, tokens = Counter[int](), Counter[int]()
    for row, cluster, nll, reference in zip(rows, clusters, now, before, strict=True):
        risen[cluster] += nll - reference
        tokens[cluster] += len(row.responses[0])
    return [max(0.0, risen[c] / tokens[c]) for c in range(1 + max(clusters))]


def _parameters(output: Path) -> dict[str, Tensor]:
    return load_file(output / "model/model.safetensors")


def test_every_prompt_of_ppo_is_in_the_cluster_of_the_nearest_centre(
    world: Path, rehearsed: Path, smoke_config: Any
) -> None:
    kept, rows = (read_rows(rehearsed / f"{name}.jsonl") for name in ("rehearsal", "clusters"))
    prompts = [row["prompt"] for row in read_rows(world / "policy_prompts.jsonl")]
    assert [row["prompt"] for row in rows] == prompts
    encoder = smoke_config.rehearsal.encoder
    vectors = embed([row["prompt"] for row in kept], encoder).vectors
    which = np.array([row["cluster"] for row in kept])
    centres = np.stack([vectors[which == c].mean(0) for c in range(4)])
    distances = ((embed(prompts, encoder).vectors[:, None] - centres) ** 2).sum(-1)
    assert [row["cluster"] for row in rows] == distances.argmin(1).tolist()
    # Prompts that are rehearsed as well stay where they are.
    known = {row["prompt"]: row["cluster"] for row in kept}
    assert all(row["cluster"] == known.get(row["prompt"], row["cluster"]) for row in rows)


@pytest.mark.parametrize("criterion", ["score", "length"])
def test_risk_is_measured_on_the_next_best_answers(
    tmp_path: Path, smoke_config: Any, ppo: PPOConfig, inputs: dict[str, Path], criterion: str
) -> None:
    """By the criterion that they were kept by; so are those that are rehearsed more often."""
    few = {"max_prompts": 60, "per_cluster": 5, "cluster_policy_prompts": True}
    few |= {"criterion": criterion}
    few = smoke_config.rehearsal.model_copy(update=few)
    theirs = {"data": inputs["data"], "policy": inputs["policy"], "scorer": inputs["scorer"]}
    folder = run_stage("rehearsal", few, tmp_path / "few", **theirs)
    kept, measured = (read_rows(folder / f"{name}.jsonl") for name in ("rehearsal", "measured"))
    assert len(kept) == 20 and not {row["prompt"] for row in kept} & {
        row["prompt"] for row in measured
    }
    for cluster in range(4):
        best, behind = (
            [row["ranked_by"] for row in rows if row["cluster"] == cluster]
            for rows in (kept, measured)
        )
        assert 1 <= len(behind) <= 5 and min(best) >= max(behind)
    run = PPORun(ppo, Stage({**inputs, "rehearsal": folder}, tmp_path))
    assert run.risk is not None
    by_score = [row["advantage_score"] for row in kept]
    assert (run.risk.ranked_by.tolist() == pytest.approx(by_score)) == (criterion == "score")
    assert run.risk.measured_cluster.tolist() == [row["cluster"] for row in measured]
    run.risk.measure(run.learner.policy, run.reference)
    assert run.risk.num_tokens.shape == (len(measured),)


def test_a_cluster_without_further_answers_is_measured_on_its_best() -> None:
    ranked_by = torch.tensor([0.0, 3.0, 1.0, 2.0, 5.0, 4.0])
    clusters = torch.tensor([0, 0, 0, 0, 1, 1])
    assert next_best(ranked_by, clusters, 2, best=[1, 3, 4, 5]) == [0, 2, 4, 5]


def test_risk_is_what_the_policy_has_lost_of_the_rehearsed_answers(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    run = PPORun(ppo, Stage(inputs, tmp_path))
    assert run.risk is not None
    (term,) = run.learner.nll_terms
    rows, clusters = run.risk.rows, run.risk.cluster.tolist()
    assert run.risk.measured == rows  # there are no others
    run.risk.measure(run.learner.policy, run.reference)
    # Nothing is lost yet: all is as with uniform weights.
    assert not run.risk.risk.any() and run.risk.kept == rows == term.rows
    assert run.risk.metrics() == {
        "rehearsal_risk": 0.0, "largest_rehearsal_weight": 1.0, "largest_kl_weight": 1.0
    }  # fmt: skip
    noise = torch.Generator().manual_seed(1)
    for value in run.policy.parameters():
        value.data += 0.05 * torch.randn(value.shape, generator=noise)
    run.risk.measure(run.learner.policy, run.reference)
    before = _nll(load_policy(inputs["policy"] / "model").eval(), rows)
    expected = _risk(rows, clusters, _nll(run.policy, rows), before)
    assert run.risk.risk.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    # As many are drawn from in all, of each cluster in proportion to risk and the floor.
    run.learner.rehearse(run.risk.kept)
    (term,) = run.learner.nll_terms
    assert len(term.rows) == len(rows)
    sizes, number = Counter(clusters), run.risk.by_cluster["num_kept"].tolist()
    drawn = Counter(clusters[rows.index(row)] for row in term.rows)
    assert [drawn[c] for c in range(4)] == number != [sizes[c] for c in range(4)]
    shares = [sizes[c] * (1e-3 + expected[c]) for c in range(4)]
    for share, count in zip(shares, number, strict=True):
        assert count == pytest.approx(share * len(rows) / sum(shares), abs=2)


def test_the_kl_penalty_of_a_prompt_weighs_as_its_cluster(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PPORun(ppo.model_copy(update={"kl_coef": 0.2}), Stage(inputs, tmp_path))
    assert run.risk is not None
    risk = [0.3, 0.0, 0.1, 0.05]
    run.risk.load_state_dict(
        {"risk": torch.tensor(risk, dtype=torch.float64), "reference_nll": None}
    )
    given: list[Tensor] = []
    monkeypatch.setattr(trainer, "collect", lambda *arguments: given.append(arguments[-1]))
    run._collect([5, 0, 7])
    clusters = [row["cluster"] for row in read_rows(inputs["rehearsal"] / "clusters.jsonl")]
    mean = sum(0.001 + risk[c] for c in clusters) / len(clusters)
    expected = [0.2 * (0.001 + risk[clusters[place]]) / mean for place in (5, 0, 7)]
    assert given[0].tolist() == pytest.approx(expected)


def test_far_above_all_risk_the_floor_makes_weights_uniform(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    """The same rows are drawn, to the bit."""
    config = ppo.model_copy(update={"kl_weights": "uniform", "risk_floor": 1e6})
    by_risk = run_stage("ppo_max", config, tmp_path / "risk", **inputs)
    config = ppo.model_copy(update={"kl_weights": "uniform", "rehearsal_weights": "uniform"})
    uniform = run_stage("ppo_max", config, tmp_path / "uniform", **inputs)
    theirs = _parameters(uniform)
    assert all(torch.equal(value, theirs[name]) for name, value in _parameters(by_risk).items())
    assert not (uniform / "risk.jsonl").exists()
    assert "rehearsal_risk" not in read_metrics(uniform / "metrics.jsonl")[0]


def test_weights_by_risk_change_what_is_learned_and_are_recorded(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    learned = []
    for changes in ({}, {"rehearsal_weights": "uniform"}, {"kl_weights": "uniform"}):
        folder = tmp_path / str(len(learned))
        config = ppo.model_copy(update={**FORGETS, **changes})
        output = run_stage("ppo_max", config, folder, **inputs)
        learned.append(_parameters(output))
    rows = read_rows(tmp_path / "0/output/risk.jsonl")
    # One step trains the critic alone, then four the policy.
    assert [row["step"] for row in rows] == [1, 3]
    assert not any(rows[0]["risk"]) and any(rows[1]["risk"])
    assert [sum(row["num_kept"]) for row in rows] == [60, 60]
    metrics = read_metrics(tmp_path / "0/output/metrics.jsonl")
    means = [sum(row["risk"]) / 4 for row in rows]
    expected = [0.0, means[0], means[0], means[1], means[1]]
    assert [row["rehearsal_risk"] for row in metrics] == pytest.approx(expected)
    largest = [row["largest_kl_weight"] for row in metrics]
    assert largest == pytest.approx([1.0] * 3 + [max(rows[1]["kl_weight"])] * 2)
    first, *others = learned
    assert all(
        any(not torch.equal(value, x[name]) for name, value in first.items()) for x in others
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [1, 3, 5])
def test_goes_on_with_the_same_weights(
    tmp_path: Path,
    ppo: PPOConfig,
    inputs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
) -> None:
    config = ppo.model_copy(update=FORGETS)
    again, whole = killed_and_whole(
        monkeypatch, trainer, killed_at, "ppo_max", config, tmp_path, **inputs
    )
    ours, theirs = _parameters(again), _parameters(whole)
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    for name in ("risk.jsonl", "rollouts.jsonl", "summary.json"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_two_ranks_weigh_as_one_does(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], world: Path
) -> None:
    ppo = ppo.model_copy(update=FORGETS)
    for number in (1, 2):
        launch(job(tmp_path / str(number), ppo, world, number, "ppo_max", inputs))
    alone, both = (read_rows(tmp_path / number / "output/risk.jsonl") for number in "12")
    assert any(alone[-1]["risk"])
    for ours, theirs in zip(both, alone, strict=True):
        assert ours["num_kept"] == theirs["num_kept"]
        assert ours["kl_weight"] == pytest.approx(theirs["kl_weight"], rel=1e-2, abs=1e-2)
    alone, both = (read_metrics(tmp_path / number / "metrics.jsonl") for number in "12")
    for row, other in zip(both, alone, strict=True):
        for name in {"rehearsal_loss", "kl"} & row.keys():
            assert row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5)


def test_kl_weights_without_rehearsal_are_refused(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    without = {name: path for name, path in inputs.items() if name != "rehearsal"}
    with pytest.raises(ValueError, match="kl_weights must be uniform without the input rehearsal"):
        run_stage("ppo_max", ppo, tmp_path, **without)
    # An arm that does not rehearse draws nothing by risk, as it draws nothing.
    config = ppo.model_copy(update={"kl_weights": "uniform", "num_steps": 1})
    output = run_stage("ppo_max", config, tmp_path, **without)
    assert not (output / "risk.jsonl").exists()


def test_what_was_never_measured_has_no_file(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path]
) -> None:
    """The guard stops the run while the critic is trained alone."""
    stop = CollapseConfig(action="stop", window=2, max_kl=1e-9)
    config = ppo.model_copy(
        update={"critic_pretrain_steps": 8, "guard": stop, "policy_learning_rate": 0.0}
    )
    other = load_policy(inputs["policy"] / "model")
    for value in other.parameters():
        value.data *= 1.05
    save_model(other, load_tokenizer(inputs["policy"] / "model"), tmp_path / "other/model")
    started = {**inputs, "policy": tmp_path / "other"}
    output = run_stage("ppo_max", config, tmp_path, **started)
    assert not (output / "risk.jsonl").exists()
    assert json.loads((output / "summary.json").read_text())["stopped_at_step"] == 4


def test_prompts_without_a_cluster_are_refused(
    tmp_path: Path, ppo: PPOConfig, inputs: dict[str, Path], rehearsed: Path
) -> None:
    other = tmp_path / "rehearsal"
    other.mkdir()
    rows = read_rows(rehearsed / "clusters.jsonl")
    for name in ("rehearsal.jsonl", "measured.jsonl"):
        (other / name).write_bytes((rehearsed / name).read_bytes())
    with pytest.raises(ValueError, match="run the stage rehearsal with cluster_policy_prompts"):
        PPORun(ppo, Stage({**inputs, "rehearsal": other}, tmp_path))
    (other / "clusters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    with pytest.raises(ValueError, match="1 of 136 prompts have no cluster"):
        PPORun(ppo, Stage({**inputs, "rehearsal": other}, tmp_path))
    with pytest.raises(ValueError, match="prompts must be policy where kl_weights is risk"):
        PPOConfig(kl_weights="risk", prompts="held_out")
