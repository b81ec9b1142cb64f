"""How chosen and rejected answers mix, by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trimtab.models.stages.features import mixing, overlap


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


def test_cosines_within_and_between_labels_are_those_of_every_two_answers() -> None:
    features = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    is_better = torch.tensor([True, False, False, True, True, False, True, False])
    found = overlap(features, is_better, mixing(features, is_better, 3))
    cosines: dict[str, list[float]] = {"pair": [], "between": [], "within": []}
    for i in range(8):
        for j in range(8):
            kind = "within" if is_better[i] == is_better[j] else "between"
            if i != j:
                cosine = float(F.cosine_similarity(features[i], features[j], dim=0))
                cosines["pair" if i // 2 == j // 2 else kind].append(cosine)
    for kind, values in cosines.items():
        assert getattr(found, kind) == pytest.approx(sum(values) / len(values), abs=1e-6)
