"""Stages that share the lower layers' output end where they would without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from trimtab.models.config.reward import ContrastiveConfig, EmbeddingsConfig, TrunkCacheConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.loading import load_policy, load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.training.data import read_pairs, write_rows
from trimtab.models.training.scoring import distinct_rows, trunk_activations
from trimtab.models.training.stage import Stage

# Of the smoke model's two layers.
UPPER = 1


def _frozen(config: Any, dropout: float = 0.0) -> Any:
    train = {"trainable_layers": UPPER, "dropout": dropout}
    return config.model_copy(update={"train": config.train.model_copy(update=train)})


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory, policy: Path, comparisons: Path) -> Path:
    return run_stage(
        "trunk_cache",
        TrunkCacheConfig(trainable_layers=UPPER),
        tmp_path_factory.mktemp("states"),
        policy=policy,
        preferences=comparisons,
    )


@pytest.fixture(scope="module")
def relabelled(tmp_path_factory: pytest.TempPathFactory, comparisons: Path) -> Path:
    """Every third pair flipped."""
    folder = tmp_path_factory.mktemp("relabelled")
    rows = read_rows(comparisons / "train.jsonl")
    write_rows(
        folder / "train.jsonl",
        ({**row, "is_flipped": index % 3 == 0} for index, row in enumerate(rows)),
    )
    return folder


@pytest.fixture(scope="module")
def frozen_scorer(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, comparisons: Path
) -> Path:
    """An Advantage Model with the policy's lower layers."""
    return run_stage(
        "advantage_model",
        _frozen(smoke_config.advantage_model),
        tmp_path_factory.mktemp("frozen_scorer"),
        policy=policy,
        preferences=comparisons,
    )


def _same(ours: Path, theirs: Path) -> None:
    """Equal weights and scores, but for rounding."""
    model, other = (load_file(path / "model" / "model.safetensors") for path in (ours, theirs))
    assert model.keys() == other.keys()
    for name, value in model.items():
        torch.testing.assert_close(value, other[name], atol=2e-5, rtol=1e-4)
    for row, same in zip(
        read_rows(ours / "scores.jsonl"), read_rows(theirs / "scores.jsonl"), strict=True
    ):
        assert row["id"] == same["id"]
        assert row["chosen_score"] == pytest.approx(same["chosen_score"], abs=1e-3)


@pytest.mark.parametrize(
    ("stage", "dropout"), [("reward_model", 0.0), ("reward_model", 0.2), ("advantage_model", 0.0)]
)
def test_scorers_train_and_score_alike_on_stored_states(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    comparisons: Path,
    relabelled: Path,
    states: Path,
    stage: str,
    dropout: float,
) -> None:
    config = _frozen(getattr(smoke_config, stage), dropout)
    inputs = {"policy": policy, "preferences": comparisons, "pairs": relabelled}
    plain = run_stage(stage, config, tmp_path / "plain", **inputs)
    fast = run_stage(stage, config, tmp_path / "fast", **inputs, trunk=states)
    _same(fast, plain)


@pytest.mark.slow
def test_rankings_train_alike_on_the_states_of_their_pairs(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path
) -> None:
    """With all terms: two passes over the upper layers, and the likelihood that reads them too."""
    comparisons = smoke_config.comparisons.model_copy(update={"pairs_per_prompt": 4})
    inputs = {"data": world, "policy": policy}
    rankings = run_stage("comparisons", comparisons, tmp_path / "rankings", **inputs)
    inputs = {"policy": policy, "preferences": rankings}
    kept = TrunkCacheConfig(trainable_layers=UPPER)
    states = run_stage("trunk_cache", kept, tmp_path / "states", **inputs)
    terms = {"ranking": "k_wise", "imitation_coef": 1.0, "contrastive": ContrastiveConfig()}
    config = _frozen(smoke_config.reward_model, 0.2).model_copy(update=terms)
    plain = run_stage("reward_model", config, tmp_path / "plain", **inputs)
    fast = run_stage("reward_model", config, tmp_path / "fast", **inputs, trunk=states)
    _same(fast, plain)


def test_meta_rm_trains_alike_on_stored_states(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    frozen_scorer: Path,
    states: Path,
) -> None:
    config = _frozen(smoke_config.rounds.meta_rm)
    inputs = {"scorer": frozen_scorer, "policy": policy, "data": world, "preferences": comparisons}
    plain = run_stage("meta_rm", config, tmp_path / "plain", **inputs)
    fast = run_stage("meta_rm", config, tmp_path / "fast", **inputs, trunk=states)
    _same(fast, plain)


def test_a_response_of_several_pairs_is_passed_once(tmp_path: Path, policy: Path) -> None:
    """Three answers to one prompt in three pairs, as in a ranking, and one of them to another."""
    texts = [("a question", "yes", "no"), ("a question", "no", "maybe not"), ("what", "yes", "no")]
    texts.append(("a question", "yes", "maybe not"))
    rows = [
        {"id": str(n), "prompt": prompt, "chosen": good, "rejected": bad}
        for n, (prompt, good, bad) in enumerate(texts)
    ]
    pairs = tmp_path / "pairs"
    for split in ("train", "validation", "test"):
        write_rows(pairs / f"{split}.jsonl", rows[: 4 if split == "train" else 1])
    inputs = {"policy": policy, "preferences": pairs}
    stored = run_stage(
        "trunk_cache", TrunkCacheConfig(trainable_layers=UPPER), tmp_path / "trunk", **inputs
    )
    tokenizer, model = load_tokenizer(policy / "model"), load_policy(policy / "model").eval()
    read = read_pairs(pairs / "train.jsonl", tokenizer).rows
    found = load_file(stored / "train.safetensors")
    assert found["lengths"].tolist() == [[len(r.prompt), *map(len, r.responses)] for r in read]
    alone = [states for _, states in sorted_states(model, read)]
    torch.testing.assert_close(found["values"], torch.cat(alone), atol=1e-5, rtol=1e-4)
    distinct = {(tuple(r.prompt), tuple(answer)) for r in read for answer in r.responses}
    passed = distinct_rows(read)
    assert sorted((tuple(r.prompt), tuple(a)) for r in passed for a in r.responses) == sorted(
        distinct
    )
    assert len(passed) == 2


def sorted_states(model: Any, rows: Any) -> list[Any]:
    """Each row's states by itself."""
    return [(n, next(iter(trunk_activations(model, [row], 1)))[1]) for n, row in enumerate(rows)]


def test_responses_beyond_one_pass_are_in_further_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.models.nets.counts.PASS_TOKENS", 8)
    prompt = [1, 2, 3]
    rows = [Candidates(prompt, ([4] * n, [5] * n)) for n in (1, 2, 9)]
    assert distinct_rows(rows) == [
        Candidates(prompt, ([4], [5], [4, 4])),
        Candidates(prompt, ([5, 5],)),
        Candidates(prompt, ([4] * 9,)),
        Candidates(prompt, ([5] * 9,)),
    ]


def test_vectors_of_answers_are_the_mean_and_the_last_of_their_states(
    tmp_path: Path, policy: Path, comparisons: Path, states: Path
) -> None:
    """Of the policy run on one answer alone, by transformers; from stored states the same."""
    inputs = {"preferences": comparisons, "policy": policy}
    config = EmbeddingsConfig(encoder="policy", layer=1)
    plain = run_stage("embeddings", config, tmp_path / "plain", **inputs)
    fast = run_stage("embeddings", config, tmp_path / "fast", **inputs, trunk=states)
    found, same = (load_file(path / "embeddings.safetensors") for path in (plain, fast))
    assert found.keys() == same.keys() == {"train", "validation", "test"}
    tokenizer, model = load_tokenizer(policy / "model"), load_policy(policy / "model").eval()
    row = read_pairs(comparisons / "train.jsonl", tokenizer, None).rows[3]
    with torch.no_grad():
        tokens = torch.tensor([[*row.prompt, *row.responses[1]]])
        own = model(tokens, output_hidden_states=True).hidden_states[1][0, len(row.prompt) :]
    vector = torch.cat([own.mean(0), own[-1]]).half()
    torch.testing.assert_close(found["train"][3, 1], vector, atol=2e-3, rtol=2e-3)
    for split, values in found.items():
        torch.testing.assert_close(same[split], values, atol=2e-3, rtol=2e-3)
    other = EmbeddingsConfig(encoder="policy", layer=3)
    with pytest.raises(ValueError, match=r"layer must be in \[1, 2\]"):
        run_stage("embeddings", other, tmp_path / "none", **inputs)


def test_states_of_other_layers_or_pairs_are_refused(
    tmp_path: Path, smoke_config: Any, policy: Path, comparisons: Path, states: Path
) -> None:
    member = _frozen(smoke_config.ensemble.member)
    other = load_policy(policy / "model")
    with torch.no_grad():
        layers_of(other)[0].mlp.up_proj.weight[0, 0] += 1e-3
    save_model(other, load_tokenizer(policy / "model"), tmp_path / "other" / "model")
    with pytest.raises(ValueError, match="other lower layers"):
        run_stage(
            "reward_model",
            member,
            tmp_path / "model",
            policy=tmp_path / "other",
            preferences=comparisons,
            trunk=states,
        )
    fewer = tmp_path / "fewer"
    for split in ("train", "validation", "test"):
        write_rows(fewer / f"{split}.jsonl", read_rows(comparisons / f"{split}.jsonl")[1:])
    with pytest.raises(ValueError, match="states of other pairs"):
        run_stage(
            "reward_model",
            member,
            tmp_path / "pairs",
            policy=policy,
            preferences=fewer,
            trunk=states,
        )
    with pytest.raises(ValueError, match="not all of them are frozen"):
        run_stage(
            "reward_model",
            smoke_config.ensemble.member,
            tmp_path / "trained",
            policy=policy,
            preferences=comparisons,
            trunk=states,
        )


def test_a_model_without_lower_layers_to_keep_is_refused(
    tmp_path: Path, policy: Path, comparisons: Path
) -> None:
    with pytest.raises(ValueError, match="leave trainable_layers out"):
        run_stage(
            "trunk_cache",
            TrunkCacheConfig(trainable_layers=2),
            tmp_path,
            policy=policy,
            preferences=comparisons,
        )


def test_ppo_shares_what_its_four_models_have_in_common(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, frozen_scorer: Path
) -> None:
    """Experience and update equal those of models that are not tied."""
    inputs = {"policy": policy, "reference": policy, "scorer": frozen_scorer, "data": world}
    config = smoke_config.ppo.model_copy(update={"trainable_layers": UPPER, "rehearsal_coef": 0.0})
    shared, alone = (PPORun(config, Stage(inputs, tmp_path / name)) for name in ("shared", "alone"))
    assert shared.depth == 1
    models = (shared.policy, shared.reference.model, shared.scorers.members[0].model, shared.critic)
    assert len({id(layers_of(model)[0]) for model in models}) == 1
    assert len({id(layers_of(model)[1]) for model in models}) == 4
    alone.depth = 0
    ours, theirs = (run._collect(list(range(16))) for run in (shared, alone))
    assert ours.rows == theirs.rows
    assert ours.rows[0].lower is not None
    assert theirs.rows[0].lower is None
    for name in ("old_logprobs", "ref_logprobs", "values", "scores", "advantages", "returns"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-4, rtol=1e-4)
    metrics, expected = shared.learner.update(ours, True), alone.learner.update(theirs, True)
    for name, value in metrics.items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3)


def test_a_fully_trained_scorer_shares_nothing(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, advantage_model: Path
) -> None:
    inputs = {"policy": policy, "reference": policy, "scorer": advantage_model, "data": world}
    config = smoke_config.ppo.model_copy(update={"trainable_layers": UPPER})
    run = PPORun(config, Stage(inputs, tmp_path))
    assert run.depth == 0
    assert run._collect(list(range(4))).rows[0].lower is None


@pytest.mark.slow
def test_evaluation_measures_alike_with_and_without_shared_layers(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    frozen_scorer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = {
        "policy": policy,
        "reference": policy,
        "data": world,
        "scorer": frozen_scorer,
        "judge_0": frozen_scorer,
    }
    fast = run_stage("evaluate", smoke_config.evaluate, tmp_path / "fast", **inputs)
    monkeypatch.setattr("trimtab.models.stages.evaluate.tie_trunk", lambda *_: 0)
    plain = run_stage("evaluate", smoke_config.evaluate, tmp_path / "plain", **inputs)
    for row, same in zip(
        read_rows(fast / "responses.jsonl"), read_rows(plain / "responses.jsonl"), strict=True
    ):
        assert row["response"] == same["response"]
        for name in ("logprob", "kl", "score", "judge_score"):
            assert row[name] == pytest.approx(same[name], abs=1e-3)
