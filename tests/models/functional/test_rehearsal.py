"""rehearsal: the loss on rehearsed responses, and which are chosen."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.rehearsal import nll_loss, top_k_per_cluster

F64 = torch.float64


def test_nll_by_hand() -> None:
    # Counted probabilities 1/2, 1/4 and 1/8: (log 2 + log 4 + log 8) / 3 = 2 log 2, perplexity 4.
    logprobs = torch.tensor([[0.5, 0.25], [0.125, 0.9]], dtype=F64).log()
    mask = torch.tensor([[True, True], [True, False]])
    loss, metrics = nll_loss(logprobs, mask)
    assert loss.item() == pytest.approx(2 * math.log(2), abs=1e-12)
    assert metrics["nll_loss"].item() == pytest.approx(2 * math.log(2), abs=1e-12)
    assert metrics["perplexity"].item() == pytest.approx(4.0, abs=1e-12)


def test_nll_equals_loop_and_mask_equals_drop() -> None:
    logprobs = -torch.rand(3, 4, dtype=F64)
    mask = torch.rand(3, 4) < 0.5
    mask[0, 0] = True
    kept = [logprobs[i, t].item() for i in range(3) for t in range(4) if mask[i, t]]
    assert nll_loss(logprobs, mask)[0].item() == pytest.approx(-sum(kept) / len(kept), abs=1e-12)
    dirty = torch.where(mask, logprobs, -torch.inf)
    assert nll_loss(dirty, mask)[0].equal(nll_loss(logprobs, mask)[0])
    padded = torch.cat([logprobs, torch.full((3, 2), torch.nan, dtype=F64)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(nll_loss(padded, padded_mask)[0], nll_loss(logprobs, mask)[0])


def test_nll_gradient() -> None:
    logprobs = torch.randn(2, 3, dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    assert torch.autograd.gradcheck(lambda x: nll_loss(x, mask)[0], logprobs)
    assert not any(value.requires_grad for value in nll_loss(logprobs, mask)[1].values())


def test_nll_refuses_bad_arguments() -> None:
    with pytest.raises(ShapeError, match="response_mask must be"):
        nll_loss(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ShapeError, match="2 axes"):
        nll_loss(torch.zeros(3), torch.ones(3, dtype=torch.bool))


def test_top_k_by_hand() -> None:
    # Cluster 7 holds 0, 2, 4 with scores 1, 9, 5: best two 2 and 4.
    # Cluster 3 holds 1, 3 with scores 2, 2: both. Cluster 0 holds 5 alone.
    scores = torch.tensor([1.0, 2.0, 9.0, 2.0, 5.0, -3.0])
    cluster = torch.tensor([7, 3, 7, 3, 7, 0])
    assert top_k_per_cluster(scores, cluster, 2).tolist() == [1, 2, 3, 4, 5]
    # k = 1: 2 in cluster 7, and of the tie in cluster 3 the lower index, 1.
    assert top_k_per_cluster(scores, cluster, 1).tolist() == [1, 2, 5]


@pytest.mark.parametrize("k", [1, 3, 100])
def test_top_k_equals_loop(k: int) -> None:
    scores = torch.randint(0, 5, (60,)).double()  # many ties
    cluster = torch.randint(-2, 4, (60,))
    slow = []
    for c in set(cluster.tolist()):
        members = [i for i in range(60) if cluster[i] == c]
        slow += sorted(members, key=lambda i: (-scores[i].item(), i))[:k]
    assert top_k_per_cluster(scores, cluster, k).tolist() == sorted(slow)


def test_top_k_invariants() -> None:
    scores, cluster = torch.randn(50), torch.randint(0, 4, (50,))
    index = top_k_per_cluster(scores, cluster, 5)
    assert index.diff().gt(0).all()
    # Renaming clusters, or any increasing change of the scores, changes nothing.
    assert top_k_per_cluster(scores, 10 - cluster, 5).equal(index)
    assert top_k_per_cluster(3 * scores.double().exp(), cluster, 5).equal(index)
    # One cluster is torch.topk; k of the whole size is everything.
    one = top_k_per_cluster(scores, torch.zeros(50, dtype=torch.long), 5)
    assert one.equal(scores.topk(5).indices.sort().values)
    assert top_k_per_cluster(scores, cluster, 50).equal(torch.arange(50))


def test_top_k_refuses_bad_arguments() -> None:
    scores, cluster = torch.zeros(3), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="found 0"):
        top_k_per_cluster(scores, cluster, 0)
    with pytest.raises(ValueError, match="NaN"):
        top_k_per_cluster(torch.tensor([0.0, torch.nan, 1.0]), cluster, 1)
    with pytest.raises(ShapeError, match=r"torch\.long"):
        top_k_per_cluster(scores, torch.zeros(3), 1)
