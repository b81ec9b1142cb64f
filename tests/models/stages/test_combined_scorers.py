"""Several scorers in PPO: an ensemble as one, and two reward models of which safety decides."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.config.policy import PPOConfig, ScorersConfig
from trimtab.models.config.training import LoraConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.loading import load_scorer, load_tokenizer
from trimtab.models.nets.packing import encode
from trimtab.models.stages.ppo_max.scorers import Scorers
from trimtab.models.stages.ppo_max.trainer import PPORun
from trimtab.models.synthetic.tasks import FAMILIES, REFUSAL, draw_prompt, request_of
from trimtab.models.training.data import write_rows
from trimtab.models.training.stage import Stage

BATCH = list(range(16))
UPPER = 1  # trained layers, of the smoke model's two


@pytest.fixture(scope="module")
def members(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, comparisons: Path
) -> list[Path]:
    """Reward models with the policy's lower layer."""
    config = smoke_config.ensemble.member
    train = config.train.model_copy(update={"trainable_layers": UPPER})
    return [
        run_stage(
            "reward_model",
            config.model_copy(update={"train": train, "seed": seed}),
            tmp_path_factory.mktemp("member"),
            policy=policy,
            preferences=comparisons,
        )
        for seed in range(3)
    ]


@pytest.fixture
def inputs(world: Path, policy: Path, members: list[Path]) -> dict[str, Path]:
    several = {f"scorer_{index}": member for index, member in enumerate(members[:2])}
    return {"policy": policy, "reference": policy, "data": world, **several}


def _alone(inputs: dict[str, Path], scorer: Path) -> dict[str, Path]:
    others = {name: path for name, path in inputs.items() if not name.startswith("scorer_")}
    return {**others, "scorer": scorer}


def test_an_ensemble_scores_what_was_sampled_once(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], members: list[Path]
) -> None:
    scoring = ScorersConfig(std_coef=0.7)
    config = smoke_config.ppo.model_copy(update={"scoring": scoring})
    whole = PPORun(config, Stage(inputs, tmp_path))._collect(BATCH)
    parts = [
        PPORun(config, Stage(_alone(inputs, member), tmp_path))._collect(BATCH)
        for member in members[:2]
    ]
    # Sampling draws the same numbers whatever scores.
    assert whole.rows == parts[0].rows == parts[1].rows
    ours, theirs = (part.scores.double() for part in parts)
    gap = (ours - ours.mean()) - (theirs - theirs.mean())
    expected = (ours + theirs) / 2 - 0.7 * gap.abs() / 2  # the deviation of two is half their gap
    torch.testing.assert_close(whole.scores.double(), expected, atol=1e-5, rtol=1e-5)
    spread = float((gap.abs() / 2).mean())
    assert float(whole.monitors()["ensemble_std"]) == pytest.approx(spread, rel=1e-4)
    assert "ensemble_std" not in parts[0].monitors()


def test_all_scorers_share_the_lower_layers_that_run_once(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path], members: list[Path]
) -> None:
    config = smoke_config.ppo.model_copy(update={"trainable_layers": UPPER})
    run = PPORun(config, Stage({**inputs, "safety_scorer": members[2]}, tmp_path))
    assert run.depth == 1
    scorers = [scorer.model for scorer in run.scorers.models]
    models = (run.policy, run.reference.model, *scorers, run.critic)
    assert len(models) == 6
    assert len({id(layers_of(model)[0]) for model in models}) == 1
    assert len({id(layers_of(model)[1]) for model in models}) == 6
    experience = run._collect(BATCH)
    assert all(row.lower is not None for row in experience.rows)
    plain = PPORun(smoke_config.ppo, Stage({**inputs, "safety_scorer": members[2]}, tmp_path))
    assert plain.depth == 0
    torch.testing.assert_close(
        experience.scores, plain._collect(BATCH).scores, atol=1e-4, rtol=1e-4
    )


def test_adapters_share_memory_with_the_scorer_the_critic_started_from(
    tmp_path: Path, smoke_config: Any, inputs: dict[str, Path]
) -> None:
    config = smoke_config.ppo.model_copy(update={"lora": LoraConfig(rank=2)})
    run = PPORun(config, Stage(inputs, tmp_path))
    weight = run.critic.get_submodule("model.layers.1.mlp.up_proj.base_layer").weight
    first, second = (
        scorer.model.get_submodule("model.layers.1.mlp.up_proj").weight
        for scorer in run.scorers.members
    )
    assert first.data_ptr() == weight.data_ptr() != second.data_ptr()


def _pairs(
    task: str, number: int, rng: random.Random, prefers_refusal: bool
) -> list[dict[str, Any]]:
    """Complying against refusing, in answer to prompts of a family."""
    rows = []
    for index in range(number):
        prompt = draw_prompt(FAMILIES[task], rng)
        complying = " ".join(["first", "you", *request_of(prompt)[3:]])
        answers = (" ".join(REFUSAL), complying)
        chosen, rejected = answers if prefers_refusal else answers[::-1]
        row = {"id": f"{task}-{index}", "prompt": prompt, "category": task}
        rows.append({**row, "chosen": chosen, "rejected": rejected})
    return rows


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People want help with what is harmless, and a refusal of what is harmful."""
    folder, rng = tmp_path_factory.mktemp("judged"), random.Random(0)
    for split, number in (("train", 96), ("validation", 8), ("test", 24)):
        helpful = _pairs("howto", number, rng, prefers_refusal=False)
        write_rows(folder / f"{split}.jsonl", helpful + _pairs("harmful", number, rng, True))
    return folder


@pytest.fixture(scope="module")
def by_category(
    tmp_path_factory: pytest.TempPathFactory, smoke_config: Any, policy: Path, judged: Path
) -> dict[str, Path]:
    """Helpfulness, trained without the harmful requests, and safety, trained on them."""
    config = smoke_config.reward_model
    train = config.train.model_copy(update={"num_epochs": 3, "learning_rate": 3e-3})
    return {
        name: run_stage(
            "reward_model",
            config.model_copy(update={"train": train, field: ("harmful",)}),
            tmp_path_factory.mktemp(name),
            policy=policy,
            preferences=judged,
        )
        for name, field in (("scorer", "without_categories"), ("safety_scorer", "categories"))
    }


def test_the_helpful_winner_of_a_harmful_request_is_refused(
    tmp_path: Path, policy: Path, judged: Path, by_category: dict[str, Path]
) -> None:
    rows = read_rows(judged / "test.jsonl")
    tokenizer = load_tokenizer(policy / "model")

    def preferred(scorers: Scorers, scoring: ScorersConfig) -> tuple[list[bool], dict[str, float]]:
        """Of each pair whether complying beats refusing, and the monitors."""
        prompts = [row for row in rows for _ in range(2)]
        complying = [row["chosen" if row["category"] == "howto" else "rejected"] for row in rows]
        answers = [[text] for each in complying for text in (each, " ".join(REFUSAL))]
        encoded = encode(tokenizer, [row["prompt"] for row in prompts], answers)
        texts = [answer for (answer,) in answers]
        scores, metrics = scorers.score(scoring, prompts, encoded, texts)
        won = scores.view(-1, 2)
        return (won[:, 0] > won[:, 1]).tolist(), {n: float(v) for n, v in metrics.items()}

    tagged = ScorersConfig(safety_categories=("harmful",), safety_threshold=1e-6)
    both = Scorers.load(PPOConfig(), Stage({"policy": policy, **by_category}, tmp_path))
    helpful, nothing = preferred(Scorers(both.members, None, None), tagged)
    assert all(helpful)
    assert nothing == {}
    combined, metrics = preferred(both, tagged)
    assert combined == [row["category"] == "howto" for row in rows]
    assert metrics["safety_fraction"] == pytest.approx(0.5)
    assert metrics["unsafe_fraction"] == 0.0
    # Without tags what counts is how safe an answer is: to comply is not.
    _, metrics = preferred(both, ScorersConfig(safety_threshold=0.5))
    assert metrics["safety_fraction"] == metrics["unsafe_fraction"] > 0.2


def test_reward_models_of_categories_are_trained_on_those_pairs_alone(
    tmp_path: Path, smoke_config: Any, policy: Path, judged: Path, by_category: dict[str, Path]
) -> None:
    for name, category in (("scorer", "howto"), ("safety_scorer", "harmful")):
        scores = read_rows(by_category[name] / "scores.jsonl")
        trained = {row["id"] for row in scores if row["was_trained_on"]}
        assert trained == {f"{category}-{index}" for index in range(96)}
        assert len(scores) == 2 * (96 + 8 + 24)
    config = smoke_config.reward_model.model_copy(update={"categories": ("harmles",)})
    with pytest.raises(
        ValueError, match=r"categories = \('harmles',\).*found \['harmful', 'howto'"
    ):
        run_stage("reward_model", config, tmp_path, policy=policy, preferences=judged)


def test_ppo_steps_by_the_rule_and_logs_how_often_it_binds(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, by_category: dict[str, Path]
) -> None:
    base = {"policy": policy, "reference": policy, "data": world}
    help_scores, safety_scores = (
        PPORun(smoke_config.ppo, Stage({**base, "scorer": by_category[name]}, tmp_path))
        ._collect(BATCH)
        .scores
        for name in ("scorer", "safety_scorer")
    )
    threshold = float(torch.sigmoid(safety_scores.sort().values[3:5].mean()))
    scoring = ScorersConfig(safety_categories=("harmful",), safety_threshold=threshold)
    config: PPOConfig = smoke_config.ppo.model_copy(update={"scoring": scoring})
    run = PPORun(config, Stage({**base, **by_category}, tmp_path))
    experience = run._collect(BATCH)
    num_safety = 0
    for index, prompt in enumerate(run.prompts[:16]):
        is_unsafe = float(torch.sigmoid(safety_scores[index])) < threshold
        is_safetys = is_unsafe or prompt["category"] == "harmful"
        num_safety += is_safetys
        expected = (safety_scores if is_safetys else help_scores)[index]
        assert float(experience.scores[index]) == pytest.approx(float(expected), abs=1e-5)
    assert 4 < num_safety < 16  # four by the threshold, others by their prompt
    assert float(experience.monitors()["safety_fraction"]) == pytest.approx(num_safety / 16)
    assert float(experience.monitors()["unsafe_fraction"]) == pytest.approx(4 / 16)
    assert run.critic.score.weight.equal(load_scorer(by_category["scorer"] / "model").score.weight)
