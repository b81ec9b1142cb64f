"""rehearsal: the loss on rehearsed responses, which are chosen, and weights by what is lost."""

import math

import pytest
import torch

from trimtab.models.functional.checks import ShapeError
from trimtab.models.functional.rehearsal import (
    best_of_clusters,
    cluster_risk,
    kept_per_cluster,
    nll_loss,
    risk_weights,
    top_k_per_cluster,
)

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


def test_risk_by_hand() -> None:
    # Cluster 0: NLL 3 + 5 against 2 + 4, over 2 + 3 tokens: .4. Cluster 1 gained; 2 has no example.
    nll, before = torch.tensor([3.0, 1.0, 5.0]), torch.tensor([2.0, 3.0, 4.0])
    tokens, cluster = torch.tensor([2, 4, 3]), torch.tensor([0, 1, 0])
    assert cluster_risk(nll, before, tokens, cluster, 3).tolist() == pytest.approx([0.4, 0, 0])
    assert cluster_risk(before, before, tokens, cluster, 3).tolist() == [0, 0, 0]


def test_risk_is_the_rise_of_the_nll_loss_of_each_cluster() -> None:
    lengths, cluster = torch.randint(1, 6, (30,)), torch.arange(30) % 4
    mask = torch.arange(6) < lengths[:, None]
    before, now = -torch.rand(2, 30, 6, dtype=F64)
    now -= 1  # of every token likelier before, so that nothing is cut off at 0
    risk = cluster_risk(-(now * mask).sum(1), -(before * mask).sum(1), lengths, cluster, 4)
    for number in range(4):
        losses = [nll_loss(x[cluster == number], mask[cluster == number])[0] for x in (now, before)]
        assert risk[number].item() == pytest.approx((losses[0] - losses[1]).item(), abs=1e-12)


def test_weights_by_hand() -> None:
    # .4 + .1 and .1; over one and three examples the mean of .5, .1, .1, .1 is .2.
    weights = risk_weights(torch.tensor([0.4, 0.0]), torch.tensor([1, 3]), 0.1)
    assert weights.tolist() == pytest.approx([2.5, 0.5])


def test_weights_have_mean_one_over_examples_and_a_floor() -> None:
    risk, sizes = torch.rand(7, dtype=F64), torch.randint(1, 9, (7,))
    mean = (risk * sizes).sum() / sizes.sum()
    for floor in (1e-3, 0.1, 10.0):
        weights = risk_weights(risk, sizes, floor)
        assert ((weights * sizes).sum() / sizes.sum()).item() == pytest.approx(1, abs=1e-12)
        assert weights.min().item() >= floor / (floor + mean.item()) > 0
        assert weights.argsort().equal(risk.argsort())
    assert risk_weights(risk, sizes, 1e6).tolist() == pytest.approx([1] * 7, abs=1e-5)
    assert risk_weights(torch.zeros(7), sizes, 0.3).tolist() == [1] * 7
    equal = risk_weights(torch.full((7,), 0.2), sizes, 0.3)
    assert equal.tolist() == pytest.approx([1] * 7, abs=1e-12)


def test_weighted_nll_descends_the_floor_times_risk_plus_half_its_square() -> None:
    floor, sizes = 0.3, torch.tensor([2, 5])
    theta = torch.tensor([0.7, 0.2], dtype=F64, requires_grad=True)
    nll = torch.stack([theta.square().sum(), theta.prod() + theta[0]])  # of two clusters
    risk = nll - torch.tensor([0.1, 0.5], dtype=F64)
    potential = (sizes * (floor * risk + risk.square() / 2)).sum()
    (expected,) = torch.autograd.grad(potential, theta, retain_graph=True)
    (found,) = torch.autograd.grad((sizes * risk_weights(risk, sizes, floor) * nll).sum(), theta)
    scale = floor + ((sizes * risk).sum() / sizes.sum()).item()
    torch.testing.assert_close(found * scale, expected)


def test_kept_by_hand() -> None:
    # Shares 2.5 and 1.5 of four: 2 and 1, and of equal remainders the first gets the fourth.
    kept = kept_per_cluster(torch.tensor([2.5, 0.5]), torch.tensor([1, 3]))
    assert kept.tolist() == [3, 1]
    # 3.99 and .01: one is the least.
    assert kept_per_cluster(torch.tensor([9.0, 0.02]), torch.tensor([2, 2])).tolist() == [3, 1]
    # Shares 1.4, 3 and 3.6 of eight: the largest remainder is the last's.
    kept = kept_per_cluster(torch.tensor([0.7, 1.5, 0.9]), torch.tensor([2, 2, 4]))
    assert kept.tolist() == [1, 3, 4]
    # A cluster without examples gets none, whatever its weight.
    sizes = torch.tensor([2, 0, 2])
    assert kept_per_cluster(torch.tensor([1.0, 5.0, 1.0]), sizes).equal(sizes)


def test_kept_is_as_many_in_all_near_the_shares_and_at_least_one() -> None:
    for _ in range(50):
        sizes = torch.randint(1, 20, (11,))
        assert kept_per_cluster(torch.full((11,), 0.3), sizes).equal(sizes)
        weights = torch.rand(11, dtype=F64) ** 4
        kept = kept_per_cluster(weights, sizes)
        assert kept.sum() == sizes.sum() and kept.min() >= 1
        shares = weights * sizes * sizes.sum() / (weights * sizes).sum()
        if shares.min() >= 1:
            assert (kept - shares).abs().max() < 1
        assert (kept[shares <= 1] == 1).all()


def test_best_of_clusters_by_hand() -> None:
    # Cluster 0 holds 0, 2, 4 with scores 1, 9, 5: of two 2 and 4. Cluster 1 holds 1 and 3, alike:
    # five are 1 three times and 3 twice.
    scores = torch.tensor([1.0, 2.0, 9.0, 2.0, 5.0])
    cluster = torch.tensor([0, 1, 0, 1, 0])
    assert best_of_clusters(scores, cluster, torch.tensor([2, 5])).tolist() == [1, 1, 1, 2, 3, 3, 4]
    assert best_of_clusters(scores, cluster, torch.tensor([0, 1])).tolist() == [1]
    # As many as there are: all, once, in their order.
    assert best_of_clusters(scores, cluster, cluster.bincount()).tolist() == [0, 1, 2, 3, 4]


def test_best_of_clusters_equals_loop() -> None:
    scores, cluster = torch.randint(0, 5, (60,)).double(), torch.arange(60) % 5
    number = torch.tensor([0, 3, 12, 13, 31])
    slow = []
    for c in range(5):
        members = sorted(range(c, 60, 5), key=lambda i: (-scores[i].item(), i))
        slow += [members[place % len(members)] for place in range(int(number[c]))]
    assert best_of_clusters(scores, cluster, number).tolist() == sorted(slow)


def test_risk_refuses_bad_arguments() -> None:
    one, none = torch.ones(2), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="NaN or infinite"):
        cluster_risk(torch.tensor([1.0, torch.nan]), one, none + 1, none, 1)
    with pytest.raises(ShapeError, match="shared shape"):
        cluster_risk(one, torch.ones(3), none, none, 1)
    with pytest.raises(ValueError, match="floor must be above 0, found 0"):
        risk_weights(one, none + 1, 0)
    for bad in (-1.0, torch.nan):
        with pytest.raises(ValueError, match="must not be negative or NaN"):
            risk_weights(torch.tensor([0.0, bad]), none + 1, 0.1)
    with pytest.raises(ValueError, match="some weight must be above 0"):
        kept_per_cluster(torch.zeros(2), none + 1)
    with pytest.raises(ValueError, match="NaN"):
        best_of_clusters(torch.tensor([0.0, torch.nan]), none, torch.tensor([1]))
