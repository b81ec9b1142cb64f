"""Peer selection: what two reward models leave out for each other, by hand and in a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.models.conftest import run_stage
from trimtab.models.config.reward import (
    PeerSelectionConfig,
    RewardModelConfig,
    TrunkCacheConfig,
    num_dropped,
)
from trimtab.models.config.training import TrainConfig, ZeroConfig
from trimtab.models.nets.packing import Candidates
from trimtab.models.training import peer_selection
from trimtab.models.training.data import Pairs, read_rows
from trimtab.models.training.pair_batches import pair_batches_of
from trimtab.models.training.peer_selection import (
    PeerSelection,
    best_ordered,
    dropped_share,
    wrong_order,
)
from trimtab.models.training.progress import read_metrics


def test_the_share_that_is_left_out_rises_linearly_and_then_stays() -> None:
    config = PeerSelectionConfig(drop_share=0.4, ramp_share=0.5)
    shares = [dropped_share(config, progress) for progress in (0, 0.25, 0.5, 0.9)]
    assert shares == pytest.approx([0, 0.2, 0.4, 0.4])
    assert dropped_share(PeerSelectionConfig(drop_share=0.4, ramp_share=0), 0) == 0.4


@pytest.mark.parametrize(
    ("batch", "share", "dropped"),
    [(5, 0.0, 0), (5, 0.2, 1), (5, 1 - 0.8, 1), (5, 0.5, 2), (100, 0.29, 29), (5, 0.99, 4)],
)
def test_whole_pairs_are_left_out_but_never_all(batch: int, share: float, dropped: int) -> None:
    assert num_dropped(batch, share) == dropped


def test_the_best_ordered_pairs_are_kept_in_the_batch_s_order() -> None:
    disorder = torch.tensor([0.7, 0.1, 3.0, 0.7, 0.2])
    assert best_ordered(disorder, 5) == [0, 1, 2, 3, 4]
    assert best_ordered(disorder, 4) == [0, 1, 3, 4]
    assert best_ordered(disorder, 3) == [0, 1, 4], "of equal ones the first"
    assert best_ordered(disorder, 1) == [1]


def test_a_soft_label_and_a_margin_change_no_order() -> None:
    """By the loss on a label of .8, the gap of 5 would cost more (1.01) than that of -.5 (.87)."""
    losses = wrong_order(torch.tensor([5.0, -0.5, 5.0, -5.0]), torch.tensor([0.8, 0.8, 1.0, 0.2]))
    assert losses.tolist() == pytest.approx([0.006715, 0.974077, 0.006715, 0.006715], abs=1e-5)
    assert best_ordered(losses, 3) == [0, 2, 3]


def _pairs(count: int, label: list[float]) -> Pairs:
    rows = [Candidates([1], ([2], [3])) for _ in range(count)]
    names = [str(number) for number in range(count)]
    none: list[str | None] = [None] * count
    ones = torch.ones(count)
    return Pairs(names, names, none, none, rows, torch.tensor(label), 0 * ones, ones)


def test_each_model_trains_on_what_the_other_orders_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps by hand: the models disagree on pairs 1 and 2; pair 3 is labelled the other way."""
    gaps = {"first": [2.0, -3.0, 1.0, -2.0], "peer": [2.0, 1.0, -3.0, -2.0]}

    def scores(model: Any, rows: list[Candidates]) -> Tensor:
        own = torch.tensor(gaps[model])
        return torch.stack([own, torch.zeros(4)], 1)

    trained: list[Any] = []

    class PeerLearner:
        def step(self, rate: float) -> None:
            trained.append(rate)

    def accumulate(learner: Any, batch: list[int]) -> dict[str, Tensor]:
        trained.append(batch)
        return {}

    monkeypatch.setattr(peer_selection, "score_rows", scores)
    monkeypatch.setattr(peer_selection, "built_ahead", lambda _, __, batch, ___: batch)
    monkeypatch.setattr(peer_selection, "accumulate", accumulate)
    batches = pair_batches_of(_pairs(4, [1.0, 1.0, 1.0, 0.0]))
    models: Any = ("first", "peer")
    selection = PeerSelection(
        models,
        (batches, batches),
        lambda *_: (torch.zeros(()), {}),
        PeerSelectionConfig(drop_share=0.25, ramp_share=0),
        train=TrainConfig(),
        seed=0,
    )
    selection.learner = PeerLearner()  # type: ignore[assignment]
    chosen, metrics = selection.select([0, 1, 2, 3], 0.5, 0.1)
    assert chosen == [0, 1, 3], "pair 2 has the largest loss under the peer"
    assert trained == [[0, 2, 3], 0.1], "pair 1 has it under the first"
    assert float(metrics["kept_share"]) == 0.75
    assert float(metrics["peer_overlap"]) == pytest.approx(2 / 3)
    assert float(metrics["batch_accuracy"]) == 0.75, "of the whole batch, pair 1 is ordered badly"


@pytest.mark.parametrize(
    "other",
    [
        {"ranking": "k_wise"},
        {"category_heads": True},
        {"train": TrainConfig(zero=ZeroConfig(stage=2))},
    ],
)
def test_what_it_cannot_go_with_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="peer_selection chooses single pairs"):
        RewardModelConfig(peer_selection=PeerSelectionConfig(), **other)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (TrainConfig(batch_size=3), "at least 1, found 0.25 of 3"),
        (TrainConfig(batch_size=8, num_ranks=8), "num_ranks must be at most 6, found 8"),
    ],
)
def test_a_batch_must_be_large_enough(train: TrainConfig, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardModelConfig(peer_selection=PeerSelectionConfig(), train=train)


@pytest.mark.slow
def test_a_training_leaves_out_labels_that_were_turned_round(
    tmp_path: Path,
    smoke_config: Any,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cached trunk, whose output is each model's own; a quarter of the labels are wrong."""
    trunk = run_stage(
        "trunk_cache",
        TrunkCacheConfig(trainable_layers=1),
        tmp_path / "trunk",
        policy=policy,
        preferences=comparisons,
    )
    chosen: list[tuple[list[int], list[int]]] = []

    def select(own: PeerSelection, batch: list[int], *others: Any) -> Any:
        found = choose(own, batch, *others)
        chosen.append((batch, found[0]))
        return found

    choose = PeerSelection.select
    monkeypatch.setattr(PeerSelection, "select", select)
    train = smoke_config.reward_model.train.model_copy(
        update={"trainable_layers": 1, "num_epochs": 6}
    )
    config = RewardModelConfig(
        train=train,
        planted_share=0.25,
        peer_selection=PeerSelectionConfig(drop_share=0.5, ramp_share=0.5),
    )
    given = {"policy": policy, "preferences": comparisons, "trunk": trunk}
    output = run_stage("reward_model", config, tmp_path / "model", **given)
    steps = read_metrics(tmp_path / "model" / "metrics.jsonl")
    shares = [step["kept_share"] for step in steps]
    assert shares[0] == 1.0 and min(shares) == shares[-1] <= 0.5
    assert all(0 < step["peer_overlap"] <= 1 for step in steps)

    rows = [row for row in read_rows(output / "scores.jsonl") if row["split"] == "train"]
    wrong = {number for number, row in enumerate(rows) if row["is_planted"]}
    late = chosen[len(chosen) // 2 :]
    left_out = [each for batch, kept in late for each in batch if each not in kept]
    taken = [each for _, kept in late for each in kept]
    share_left, share_taken = (
        sum(each in wrong for each in some) / len(some) for some in (left_out, taken)
    )
    assert share_left > 2 * share_taken
