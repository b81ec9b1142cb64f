"""Every stage computes on the GPU it is given, all of it, and finds what it finds on the CPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import job
from trimtab.infra.processes.launch import TrainerError, launch
from trimtab.models.config.policy import CPLConfig
from trimtab.models.config.reward import (
    ContrastiveConfig,
    ExpectedRewardConfig,
    FeaturesConfig,
    TrunkCacheConfig,
)
from trimtab.models.config.training import LoraConfig
from trimtab.models.data.records import read_rows
from trimtab.models.training import distributed, entry
from trimtab.models.training.progress import read_metrics

NUM_ROWS = 24
SWAV = ContrastiveConfig(kind="swav", on="differences", coef=0.5)
Compare = Callable[..., tuple[Path, Path]]


def _few(folder: Path, copy: Path) -> Path:
    """The folder with the first rows of its files: the device that pretends is slow."""
    shutil.copytree(folder, copy)
    for path in copy.rglob("*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:NUM_ROWS]))
    return copy


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    return _few(world, tmp_path_factory.mktemp("few") / "world")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, comparisons: Path) -> Path:
    return _few(comparisons, tmp_path_factory.mktemp("few") / "comparisons")


@pytest.fixture
def both(tmp_path: Path) -> Compare:
    """Runs a stage on the pretended GPU and on the CPU; returns their outputs."""

    def run(stage: str, config: Any, **inputs: Path) -> tuple[Path, Path]:
        path = job(tmp_path / "gpu", config, tmp_path, 1, stage, inputs, gpus=["0"])
        launch(path, entry="tests.models.pretend_gpu")
        return tmp_path / "gpu/output", run_stage(stage, config, tmp_path / "cpu", **inputs)

    return run


def _assert_same_model(ours: Path, theirs: Path) -> None:
    mine, others = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert mine.keys() == others.keys()
    for name, value in others.items():
        assert (mine[name] - value).abs().max() < 1e-3 * value.abs().max(), name


def _assert_same_rows(ours: Path, theirs: Path, name: str, but: Sequence[str] = ()) -> None:
    for row, other in zip(*(read_rows(folder / name) for folder in (ours, theirs)), strict=True):
        assert row.keys() == other.keys()
        for key, value in other.items():
            if key in but:
                continue
            same = pytest.approx(value, rel=1e-3, abs=1e-3) if isinstance(value, float) else value
            assert row[key] == same, key


@pytest.mark.slow
def test_sft(both: Compare, smoke_config: Any, few: Path) -> None:
    config = smoke_config.sft
    train = config.train.model_copy(update={"num_epochs": 1})
    ours, theirs = both("sft", config.model_copy(update={"train": train}), data=few)
    _assert_same_model(ours / "model", theirs / "model")


@pytest.mark.slow
def test_sft_of_adapters(both: Compare, smoke_config: Any, few: Path) -> None:
    config = smoke_config.sft
    lora = LoraConfig(rank=2)
    train = config.train.model_copy(update={"num_epochs": 1, "lora": lora})
    ours, theirs = both("sft", config.model_copy(update={"train": train}), data=few)
    _assert_same_model(ours / "model", theirs / "model")


@pytest.mark.slow
def test_comparisons(both: Compare, smoke_config: Any, few: Path, policy: Path) -> None:
    ours, theirs = both("comparisons", smoke_config.comparisons, data=few, policy=policy)
    _assert_same_rows(ours, theirs, "train.jsonl")


@pytest.mark.slow
def test_a_cross_fitted_member_above_stored_states(
    both: Compare, tmp_path: Path, smoke_config: Any, policy: Path, pairs: Path
) -> None:
    config = smoke_config.ensemble.member
    train = config.train.model_copy(update={"trainable_layers": 1})
    (tmp_path / "states").mkdir()
    path = job(
        tmp_path / "states",
        TrunkCacheConfig(trainable_layers=1),
        tmp_path,
        stage="trunk_cache",
        inputs={"policy": policy, "preferences": pairs},
        num_ranks=1,
        gpus=["0"],
    )
    launch(path, entry="tests.models.pretend_gpu")
    ours, theirs = both(
        "reward_model",
        config.model_copy(update={"train": train, "fold": 1}),
        policy=policy,
        preferences=pairs,
        trunk=tmp_path / "states/output",
    )
    _assert_same_model(ours / "model", theirs / "model")
    _assert_same_rows(ours, theirs, "scores.jsonl")


@pytest.mark.slow
def test_a_reward_model_with_all_terms(
    both: Compare, smoke_config: Any, policy: Path, pairs: Path
) -> None:
    """Of a dropout that drops nothing, as each device draws masks of its own."""
    config = _with_all_terms(smoke_config.reward_model, dropout=1e-12)
    config = config.model_copy(update={"score_every": 2})
    ours, theirs = both("reward_model", config, policy=policy, preferences=pairs)
    _assert_same_model(ours / "model", theirs / "model")
    _assert_same_rows(ours, theirs, "scores.jsonl")
    _assert_same_rows(ours, theirs, "validation.jsonl")


@pytest.mark.slow
def test_a_gpu_draws_the_same_masks_each_time(
    tmp_path: Path, smoke_config: Any, policy: Path, pairs: Path
) -> None:
    config = _with_all_terms(smoke_config.reward_model, dropout=0.2)
    inputs = {"policy": policy, "preferences": pairs}
    found = []
    for name in ("first", "second"):
        path = job(tmp_path / name, config, pairs, 1, "reward_model", inputs, gpus=["0"])
        launch(path, entry="tests.models.pretend_gpu")
        found.append((tmp_path / name / "output/model/model.safetensors").read_bytes())
    assert found[0] == found[1]


def _with_all_terms(config: Any, dropout: float) -> Any:
    train = config.train.model_copy(update={"dropout": dropout})
    terms = {"ranking": "k_wise", "imitation_coef": 0.5, "contrastive": SWAV}
    return config.model_copy(update={"train": train, **terms})


@pytest.mark.slow
def test_advantage_model(both: Compare, smoke_config: Any, policy: Path, pairs: Path) -> None:
    config = smoke_config.advantage_model.model_copy(update={"use_importance_weights": True})
    inputs = {"policy": policy, "preferences": pairs, "behaviour": policy}
    ours, theirs = both("advantage_model", config, **inputs)
    _assert_same_model(ours / "model", theirs / "model")
    _assert_same_rows(ours, theirs, "scores.jsonl")


@pytest.mark.slow
def test_an_advantage_model_of_categories_that_learns_from_samples(
    both: Compare, smoke_config: Any, few: Path, policy: Path, pairs: Path
) -> None:
    samples = ExpectedRewardConfig(
        num_prompts=12, num_responses=2, batch_size=4, num_held_out=4, held_out_responses=2
    )
    terms = {"category_heads": True, "expected_reward": samples}
    config = smoke_config.advantage_model.model_copy(update=terms)
    ours, theirs = both("advantage_model", config, policy=policy, preferences=pairs, data=few)
    _assert_same_model(ours / "model", theirs / "model")
    _assert_same_rows(ours, theirs, "scores.jsonl")
    _assert_same_rows(ours, theirs, "expected_rewards.jsonl")


@pytest.mark.slow
def test_meta_rm(
    both: Compare, smoke_config: Any, few: Path, policy: Path, pairs: Path, advantage_model: Path
) -> None:
    inputs = {"policy": policy, "scorer": advantage_model, "data": few}
    ours, theirs = both("meta_rm", smoke_config.rounds.meta_rm, preferences=pairs, **inputs)
    _assert_same_rows(ours, theirs, "scores.jsonl")


@pytest.mark.slow
def test_rehearsal_then_ppo(
    both: Compare, tmp_path: Path, smoke_config: Any, few: Path, policy: Path, advantage_model: Path
) -> None:
    config = smoke_config.rehearsal.model_copy(update={"prompts": "policy"})
    inputs = {"data": few, "policy": policy, "scorer": advantage_model}
    path = job(tmp_path / "kept", config, few, 1, "rehearsal", inputs, gpus=["0"])
    launch(path, entry="tests.models.pretend_gpu")
    changes = {"ptx_coef": 0.1, "trainable_layers": 1, "num_steps": 2, "critic_pretrain_steps": 1}
    # AdamW makes of a gradient that is rounding alone a step of about the learning rate.
    changes |= {"policy_learning_rate": 1e-4, "critic_learning_rate": 1e-4}
    config = smoke_config.ppo.model_copy(update={**changes, "checkpoint_every": 2})
    kept = tmp_path / "kept/output"
    ours, theirs = both("ppo_max", config, reference=policy, rehearsal=kept, **inputs)
    _assert_same_model(ours / "model", theirs / "model")
    rows, others = (read_metrics(folder / "metrics.jsonl") for folder in (ours, theirs))
    for row, other in zip(rows, others, strict=True):
        for name, value in other.items():
            # A fraction counts tokens beyond a bound, of which rounding moves one.
            bound = 0.02 if name.endswith("fraction") else 1e-4
            assert row[name] == pytest.approx(value, rel=1e-2, abs=bound), name
    saved, other = (
        torch.load(tmp_path / name / "checkpoints/2/state.pt", weights_only=True)["learner"]
        for name in ("gpu", "cpu")
    )
    torch.testing.assert_close(
        saved["policy"]["model"], other["policy"]["model"], rtol=1e-3, atol=1e-3
    )


@pytest.mark.slow
def test_ppo_by_an_ensemble_with_minibatches_whitened(
    both: Compare, smoke_config: Any, few: Path, policy: Path, advantage_model: Path
) -> None:
    changes = {"num_steps": 1, "critic_pretrain_steps": 0, "normalise_over": "minibatch"}
    changes |= {"normalise_advantages": True, "advantage_clip": 1.0, "rehearsal_coef": 0.0}
    changes |= {"kl_target": 1.0, "policy_learning_rate": 1e-4, "critic_learning_rate": 1e-4}
    inputs = {"policy": policy, "reference": policy, "data": few}
    scorers = {"scorer_0": advantage_model, "scorer_1": advantage_model}
    config = smoke_config.ppo.model_copy(update=changes)
    ours, theirs = both("ppo_max", config, **inputs, **scorers)
    _assert_same_model(ours / "model", theirs / "model")


@pytest.mark.slow
@pytest.mark.narrow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_narrow_ppo_begins_at_its_reference(
    tmp_path: Path,
    smoke_config: Any,
    few: Path,
    policy: Path,
    advantage_model: Path,
    lora: LoraConfig | None,
) -> None:
    """Stored narrow on a GPU it is the policy to the bit, and so is its divergence of 0."""
    changes = {"precision": "bfloat16", "num_steps": 2, "critic_pretrain_steps": 1, "lora": lora}
    config = smoke_config.ppo.model_copy(update={**changes, "rehearsal_coef": 0.0})
    inputs = {"policy": policy, "reference": policy, "scorer": advantage_model}
    path = job(tmp_path / "gpu", config, few, 1, "ppo_max", inputs, gpus=["0"])
    launch(path, entry="tests.models.pretend_gpu")
    first, *_ = read_metrics(tmp_path / "gpu/output/metrics.jsonl")
    assert first["kl"] == 0.0
    saved = load_file(tmp_path / "gpu/output/model/model.safetensors")
    start = load_file(policy / "model/model.safetensors")
    for name, value in start.items():
        assert saved[name].dtype == torch.float32
        moved = float((saved[name] - value).abs().max())
        assert moved > 0 if lora is None or "_proj" in name else moved == 0, name


@pytest.mark.slow
@pytest.mark.narrow
def test_ppo_in_bfloat16(
    tmp_path: Path, smoke_config: Any, few: Path, policy: Path, advantage_model: Path
) -> None:
    """What was sampled is passed again, so that the first update starts at a ratio of 1."""
    changes = {"num_steps": 1, "critic_pretrain_steps": 0, "rehearsal_coef": 0.0}
    changes |= {"precision": "bfloat16", "train_batch": NUM_ROWS, "rollout_batch": NUM_ROWS}
    config = smoke_config.ppo.model_copy(update=changes)
    inputs = {"policy": policy, "reference": policy, "scorer": advantage_model, "data": few}
    launch(
        job(tmp_path, config, tmp_path, 1, "ppo_max", inputs, gpus=["0"]),
        entry="tests.models.pretend_gpu",
    )
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["policy_approx_kl"] == 0.0 and row["policy_grad_norm"] > 0
    before, after = (
        load_file(folder / "model/model.safetensors") for folder in (policy, tmp_path / "output")
    )
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    assert {value.dtype for value in after.values()} == {torch.float32}


@pytest.mark.slow
def test_features(both: Compare, smoke_config: Any, pairs: Path, advantage_model: Path) -> None:
    inputs = {"scorer": advantage_model, "preferences": pairs}
    ours, theirs = both("features", FeaturesConfig(), **inputs)
    # t-SNE lets differences of rounding grow: where it puts a point is no matter of the device's.
    _assert_same_rows(ours, theirs, "features.jsonl", but=("x", "y"))


@pytest.mark.slow
def test_dpo(both: Compare, smoke_config: Any, policy: Path, pairs: Path) -> None:
    ours, theirs = both("dpo", smoke_config.dpo, policy=policy, reference=policy, preferences=pairs)
    _assert_same_model(ours / "model", theirs / "model")


@pytest.mark.slow
def test_cpl(both: Compare, smoke_config: Any, policy: Path, pairs: Path) -> None:
    config = CPLConfig(train=smoke_config.dpo.train)
    ours, theirs = both("cpl", config, policy=policy, preferences=pairs)
    _assert_same_model(ours / "model", theirs / "model")


@pytest.mark.slow
def test_answers_then_rest_and_hir(
    both: Compare, tmp_path: Path, smoke_config: Any, few: Path, policy: Path, advantage_model: Path
) -> None:
    config = smoke_config.hir.answers.model_copy(update={"instruction": "ten"})
    inputs = {"data": few, "policy": policy, "scorer": advantage_model}
    ours, theirs = both("sample_responses", config, **inputs)
    rows = (read_rows(folder / "answers.jsonl") for folder in (ours, theirs))
    for row, other in zip(*rows, strict=True):
        assert row["responses"] == other["responses"]
        assert row["scores"] == pytest.approx(other["scores"], rel=1e-3, abs=1e-3)
    (tmp_path / "cpu").rename(tmp_path / "answers")
    sampled = {"policy": policy, "responses_0": tmp_path / "answers/output"}
    for stage, config in (("rest", smoke_config.rest.improve), ("hir", smoke_config.hir.learn)):
        ours, theirs = both(stage, config, **sampled)
        _assert_same_model(ours / "model", theirs / "model")
        (tmp_path / "gpu").rename(tmp_path / f"gpu_{stage}")
        (tmp_path / "cpu").rename(tmp_path / f"cpu_{stage}")


@pytest.mark.slow
def test_evaluation_of_the_best_of_two(
    both: Compare, smoke_config: Any, few: Path, policy: Path, advantage_model: Path
) -> None:
    ours, theirs = both(
        "evaluate",
        smoke_config.evaluate.model_copy(update={"num_candidates": 2}),
        policy=policy,
        reference=policy,
        data=few,
        scorer=advantage_model,
        judge_0=advantage_model,
    )
    _assert_same_rows(ours, theirs, "responses.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}])
def test_only_what_is_deterministic_runs_where_that_is_asked_for(
    tmp_path: Path, smoke_config: Any, few: Path, policy: Path, sampling: dict[str, float]
) -> None:
    config = smoke_config.comparisons.model_copy(update=sampling)
    inputs = {"data": few, "policy": policy}
    path = job(tmp_path / "gpu", config, few, 1, "comparisons", inputs, gpus=["0"])
    strict = {entry.DETERMINISTIC: "1"}
    launch(path, entry="tests.models.pretend_gpu", env=strict)
    theirs = run_stage("comparisons", config, tmp_path / "cpu", **inputs)
    _assert_same_rows(tmp_path / "gpu/output", theirs, "train.jsonl")


@pytest.mark.slow
def test_a_switch_that_is_neither_on_nor_off_is_refused(
    tmp_path: Path, smoke_config: Any, few: Path
) -> None:
    path = job(tmp_path / "cpu", smoke_config.sft, few, num_ranks=1)
    with pytest.raises(TrainerError, match="TRIMTAB_DETERMINISTIC is 'yes'; allowed are 1, and 0"):
        launch(path, env={entry.DETERMINISTIC: "yes"})


@pytest.mark.slow
def test_a_gpu_that_torch_does_not_see_is_one_clear_error(
    tmp_path: Path, smoke_config: Any, few: Path
) -> None:
    with pytest.raises(TrainerError, match="CUDA_VISIBLE_DEVICES is '3', but torch .* sees no GPU"):
        launch(job(tmp_path / "gpu", smoke_config.sft, few, num_ranks=1, gpus=["3"]))


@pytest.mark.parametrize(
    ("gpus", "given", "expected"),
    [
        (["0"], {}, "expandable_segments:True"),
        (["0"], {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        (["0"], {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, None),
        ([], {}, None),
    ],
)
def test_the_allocator_of_a_gpu_grows_its_segments_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], given: dict[str, str], expected: str | None
) -> None:
    for name in (distributed.VISIBLE, *distributed.ALLOCATOR):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    distributed.limit_visible_gpus(gpus)
    assert os.environ.get("PYTORCH_ALLOC_CONF") == expected
