"""How chosen and rejected answers mix, by hand."""

from __future__ import annotations

import pytest
import torch

from trimtab.models.stages.features import mixing


def test_two_groups_apart_do_not_mix() -> None:
    features = torch.tensor([[0.0], [0.1], [9.0], [9.1]])
    assert mixing(features, torch.tensor([True, True, False, False]), 1).tolist() == [0, 0, 0, 0]


def test_neighbours_of_the_other_label_only() -> None:
    # Each one's nearest has the other label: 1 over the 2 of 3 others that have it.
    features = torch.tensor([[0.0], [0.1], [9.0], [9.1]])
    mixed = mixing(features, torch.tensor([True, False, True, False]), 1)
    assert mixed.tolist() == pytest.approx([1.5] * 4)


def test_all_neighbours_are_chance() -> None:
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    mixed = mixing(features, torch.tensor([True, False, False, True, False, True]), 5)
    assert mixed.tolist() == pytest.approx([1.0] * 6)
