"""MetaRM's ascent: the gradient of J over all rows, however they are cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.conftest import run_stage
from trimtab.models.config.reward import MetaRMConfig
from trimtab.models.config.training import LoraConfig, TrainConfig
from trimtab.models.functional.meta_rm import difference_objective
from trimtab.models.nets.loading import load_scorer, load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates, PackedBatch, pack
from trimtab.models.nets.scoring import response_scores
from trimtab.models.stages.meta_rm import MetaAscent, ObjectiveTerm
from trimtab.models.training.learner import Learner, TrainingRows, new_learner
from trimtab.models.training.loop import StepExtras, fit
from trimtab.models.training.progress import read_metrics


def test_micro_batches_add_up_to_one(smoke_config: Any, advantage_model: Path) -> None:
    rng = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [rng.randrange(5, 50) for _ in range(length)]

    rows = [
        Candidates(tokens(4 + number), tuple(tokens(2 + answer) for answer in range(3)))
        for number in range(7)
    ]
    moved, metrics = [], []
    for max_tokens in (10_000, 40, 1):
        train = smoke_config.rounds.meta_rm.train.model_copy(
            update={"micro_batch_tokens": max_tokens}
        )
        config = smoke_config.rounds.meta_rm.model_copy(
            update={
                "train": train,
                "meta_batch": 7,
                "ascent_length": None,
                "meta_learning_rate": 1.0,
            }
        )
        model = load_scorer(advantage_model / "model")
        before = _copied(model)
        with MetaAscent(config, model, rows)(0, _learner(model, train)) as found:
            metrics.append(found)
            moved.append(_copied(model))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, before[name])

    model = load_scorer(advantage_model / "model")
    objective, _ = difference_objective(response_scores(model, pack(rows)).view(7, 3))
    objective.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        for found in moved:
            torch.testing.assert_close(found[name], parameter + parameter.grad)
    for each in metrics:
        torch.testing.assert_close(each["meta_objective"], objective.detach())
        length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        one = train.learning_rate * sum(p.numel() for p in model.parameters()) ** 0.5
        torch.testing.assert_close(each["ascent_length"], length / one)


def test_a_length_is_kept_whatever_the_gradient(smoke_config: Any, advantage_model: Path) -> None:
    """In units of alpha times the root of n: a head that is 30 times as large changes nothing."""
    rows = [Candidates([7, 8, 9], ([10, 11], [12], [13, 14, 15])) for _ in range(4)]
    train = smoke_config.rounds.meta_rm.train.model_copy(update={"learning_rate": 2e-3})
    changes = {"train": train, "meta_batch": 4, "ascent_length": 0.25}
    config = smoke_config.rounds.meta_rm.model_copy(update=changes)
    for scale in (1.0, 30.0):
        model = load_scorer(advantage_model / "model")
        with torch.no_grad():
            model.score.weight *= scale
        before = _copied(model)
        with MetaAscent(config, model, rows)(0, _learner(model, train)) as metrics:
            moved = [value - before[name] for name, value in _copied(model).items()]
        length = float(torch.stack([value.norm() for value in moved]).norm())
        numbers = sum(value.numel() for value in moved)
        assert length == pytest.approx(0.25 * 2e-3 * numbers**0.5, rel=1e-3)
        assert float(metrics["ascent_length"]) == pytest.approx(0.25)


def test_an_ascent_that_is_rounded_to_bfloat16_is_right_in_the_mean(
    smoke_config: Any, advantage_model: Path
) -> None:
    """As under ZeRO: theta' is rounded, and theta is; between them lies what is applied.

    Where a master lies anywhere between two neighbours u apart, a movement |a| < u rounds to u with
    probability |a| / u and to 0 else: to a in the mean, with variance |a| (u - |a|). Along a, as a
    share of its length, that is 1 with variance sum a^2 |a| (u - |a|) / (sum a^2)^2. The papers'
    rate is far below u: from weights that lie on such numbers a fifth would be applied.
    """
    model = load_scorer(advantage_model / "model")
    rng = random.Random(0)
    ids = [[rng.randrange(5, 50) for _ in range(6)] for _ in range(96)]
    rows = [Candidates(ids[6 * n], tuple(ids[6 * n + 1 : 6 * n + 6])) for n in range(16)]
    objective, _ = difference_objective(response_scores(model, pack(rows)).view(16, 5))
    objective.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    theta = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    asked = gradient * (5e-6 * len(theta) ** 0.5 / gradient.norm())
    moved = (theta + asked.float()).bfloat16().double() - theta.bfloat16().double()
    exponent = theta.double().abs().log2().floor()
    between = (2.0 ** (exponent - 7)).clamp(min=asked.abs())  # 8 bits, the first of which is 1
    variance = (asked.abs() ** 3 * (between - asked.abs())).sum() / asked.square().sum() ** 2
    assert (moved == 0).double().mean() > 0.9
    share = float(moved @ asked / asked.square().sum())
    assert share == pytest.approx(1.0, abs=4 * float(variance) ** 0.5)
    assert 4 * float(variance) ** 0.5 < 0.7


def test_the_sign_turned_moves_as_far_the_other_way(
    smoke_config: Any, advantage_model: Path
) -> None:
    rows = [Candidates([7, 8, 9], ([10, 11], [12], [13, 14, 15])) for _ in range(4)]
    config = smoke_config.rounds.meta_rm.model_copy(update={"meta_batch": 4, "ascent_length": 0.25})
    moves, lengths = [], []
    for update in ("ascend", "descend"):
        model = load_scorer(advantage_model / "model")
        before = _copied(model)
        ascent = MetaAscent(config.model_copy(update={"update": update}), model, rows)
        with ascent(0, _learner(model, config.train)) as metrics:
            moves.append({name: value - before[name] for name, value in _copied(model).items()})
        assert all(torch.equal(value, before[name]) for name, value in _copied(model).items())
        lengths.append(float(metrics["ascent_length"]))
    assert lengths == pytest.approx([0.25, -0.25])
    for name, value in moves[0].items():  # a float32 of size s is rounded by at most s * 2^-24
        bound = 2.0**-23 * float(before[name].abs().max() + value.abs().max())
        torch.testing.assert_close(moves[1][name], -value, rtol=0, atol=bound)


def test_a_term_steps_along_the_gradient_of_the_loss_less_the_objective(
    tmp_path: Path, smoke_config: Any, advantage_model: Path
) -> None:
    """One step of `fit`: its gradient norm is that of L - 0.3 J."""
    row = Candidates([7, 8, 9], ([10, 11], [12], [13, 14, 15]))
    pairs = [Candidates([7, 8, 9 + n], ([10, 11], [12, 13 + n])) for n in range(4)]
    model = load_scorer(advantage_model / "model")

    def loss(batch: PackedBatch, _: Any) -> tuple[Tensor, dict[str, Tensor]]:
        gap = response_scores(model, batch).view(-1, 2).diff(dim=1)
        return torch.nn.functional.softplus(gap).mean(), {}

    total = loss(pack(pairs), None)[0]
    objective, _ = difference_objective(response_scores(model, pack([row])).view(1, 3))
    gradients = torch.autograd.grad(total - 0.3 * objective, list(model.parameters()))
    expected = torch.stack([gradient.norm() for gradient in gradients]).norm()
    train = smoke_config.rounds.meta_rm.train.model_copy(update={"batch_size": 4, "num_epochs": 1})
    data = TrainingRows(pairs, torch.ones(4), arguments=lambda indices: indices)
    term = ObjectiveTerm([row], 0.3, 4)  # drawn four times
    fit(model, data, loss, train, seed=0, workdir=tmp_path, extras=StepExtras(term=term))
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert step["grad_norm"] == pytest.approx(float(expected), rel=1e-4)
    assert step["meta_loss"] == pytest.approx(-float(objective.detach()), rel=1e-5)


def test_as_a_term_the_objective_spreads_more_the_more_it_weighs(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    advantage_model: Path,
) -> None:
    inputs = {"policy": policy, "scorer": advantage_model, "data": world}
    spreads = []
    for coef in (1e-9, 3.0, 30.0):
        changes = {"update": "term", "objective_coef": coef}
        config = smoke_config.rounds.meta_rm.model_copy(update=changes)
        folder = tmp_path / str(coef)
        output = run_stage("meta_rm", config, folder, preferences=comparisons, **inputs)
        spreads.append(json.loads((output / "summary.json").read_text())["score_spread_after"])
        assert "ascent_length" not in read_metrics(folder / "metrics.jsonl")[0]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[-1]


@pytest.mark.parametrize("update", ["descend", "term"])
def test_only_an_ascent_is_kept(update: str) -> None:
    with pytest.raises(
        ValidationError, match=f"keep_ascent must be false where update is {update}"
    ):
        MetaRMConfig(keep_ascent=True, update=update)


def test_theta_prime_is_an_ascent_on_the_whole_meta_set_from_theta(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    advantage_model: Path,
) -> None:
    config = smoke_config.rounds.meta_rm.model_copy(update={"ascent_length": 2.0})
    inputs = {"policy": policy, "scorer": advantage_model, "data": world}
    spreads, weights = {}, {}
    for keeps in (False, True):
        one = config.model_copy(update={"keep_ascent": keeps})
        folder = tmp_path / str(keeps)
        output = run_stage("meta_rm", one, folder, preferences=comparisons, **inputs)
        weights[keeps] = load_file(output / "model/model.safetensors")
        spreads[keeps] = json.loads((output / "summary.json").read_text())["score_spread_after"]
    difference = [weights[True][name] - value for name, value in weights[False].items()]
    length = float(torch.stack([value.norm() for value in difference]).norm())
    numbers = sum(value.numel() for value in difference)
    assert length == pytest.approx(2 * config.train.learning_rate * numbers**0.5, rel=1e-3)
    assert spreads[True] > spreads[False]


def test_the_expected_reward_is_that_of_the_rewards_that_meta_rm_leaves(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    advantage_model: Path,
) -> None:
    """Only where the scorer that came in had learned it [AM eq. 7]."""
    learned = load_scorer(advantage_model / "model")
    learned.config.learned_expected_reward = True
    save_model(learned, load_tokenizer(advantage_model / "model"), tmp_path / "learned/model")
    heads = {}
    for scorer in (advantage_model, tmp_path / "learned"):
        inputs = {"policy": policy, "scorer": scorer, "data": world, "preferences": comparisons}
        folder = tmp_path / f"of-{scorer.name}"
        output = run_stage("meta_rm", smoke_config.rounds.meta_rm, folder, **inputs)
        heads[scorer.name] = load_scorer(output / "model").score.weight.detach()
    plain, refitted = heads[advantage_model.name], heads["learned"]
    assert torch.equal(plain[0], refitted[0])
    assert not torch.equal(plain[1], refitted[1])


def test_adapters_have_no_theta_prime(smoke_config: Any) -> None:
    train = smoke_config.rounds.meta_rm.train.model_copy(update={"lora": LoraConfig()})
    with pytest.raises(ValidationError, match=r"keep_ascent must be false with train\.lora"):
        MetaRMConfig(train=train, keep_ascent=True)


def _learner(model: PreTrainedModel, config: TrainConfig) -> Learner[Any]:
    return new_learner(model, lambda *_: (torch.zeros(()), {}), config, state=None)


def _copied(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
