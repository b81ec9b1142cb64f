"""The reward model's loss over pairs and rankings, against one pass per pair and plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from trimtab.models.config.reward import ContrastiveConfig
from trimtab.models.config.training import TrainerConfig
from trimtab.models.functional.contrastive import simcse_loss
from trimtab.models.nets.loading import Prototypes
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.training import prepare_training
from trimtab.models.training.data import Pairs
from trimtab.models.training.pair_batches import PairBatches, pair_batches_of, reward_loss

# Responses of two prompts, best first, and the pairs of them that are compared.
PROMPTS = {"a b": [5, 6], "c": [7, 11, 12], "d e": [13, 5]}
RESPONSES = {
    "a b": [[8, 9, 1], [10, 1], [12, 12, 8, 1], [9, 1]],
    "c": [[1], [9, 10, 1]],
    "d e": [[8, 1], [9, 9, 1], [10, 1]],
}
COMPARED = [
    *(("a b", one, two) for one in range(4) for two in range(one + 1, 4)),
    *(("c", 1, 0), ("d e", 0, 1), ("d e", 2, 0)),
]


def _pairs(groups: list[str | None] | None = None) -> Pairs:
    generator = torch.Generator().manual_seed(0)
    count = len(COMPARED)
    rows = [Candidates(PROMPTS[p], (RESPONSES[p][i], RESPONSES[p][j])) for p, i, j in COMPARED]
    rows[2] = rows[2].swapped()  # a flipped pair
    return Pairs(
        [
            {"id": f"pair {number}", "prompt": prompt, "group": groups and groups[number]}
            for number, (prompt, _, _) in enumerate(COMPARED)
        ],
        rows,
        torch.rand(count, generator=generator, dtype=torch.float64) / 2 + 0.5,
        torch.randn(count, generator=generator, dtype=torch.float64),
        torch.rand(count, generator=generator, dtype=torch.float64) + 0.1,
    )


@pytest.fixture
def model() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    scorer = LlamaForSequenceClassification(config)
    scorer.lm_head = LlamaForCausalLM(config).lm_head
    scorer.prototypes = Prototypes(5, 16, seed=0)
    return scorer.double()


def _packed_loss(
    model: LlamaForSequenceClassification, rankings: PairBatches, **terms: object
) -> tuple[Tensor, dict[str, Tensor]]:
    compared = rankings.compared(range(len(rankings.rows)))
    return reward_loss(model, **terms)(pack(rankings.rows), compared)


def _gradients(model: LlamaForSequenceClassification, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _alone(model: LlamaForSequenceClassification, pair: Candidates) -> tuple[Tensor, Tensor]:
    """Score gap of a pair and its preferred response's NLL a token, by transformers' own passes."""
    scores, likelihoods = [], []
    for response in pair.responses:
        hidden = model.model(torch.tensor([pair.prompt + response])).last_hidden_state[0]
        scores.append(model.score(hidden[-1])[0])
        logits = model.lm_head(hidden[len(pair.prompt) - 1 : -1])
        likelihoods.append(F.cross_entropy(logits, torch.tensor(response)))
    return scores[0] - scores[1], likelihoods[0]


def _prompt_by_prompt(model: LlamaForSequenceClassification, pairs: Pairs, coef: float) -> Tensor:
    """[InstructGPT eq. 1] with weights, as loops; every pair in passes of its own."""
    total, weights = torch.zeros((), dtype=torch.float64), 0.0
    for prompt in PROMPTS:
        own = [index for index, text in enumerate(pairs.prompts) if text == prompt]
        for index in own:
            gap, likelihood = _alone(model, pairs.rows[index])
            better = torch.sigmoid(gap - pairs.margin[index])
            label = pairs.label[index]
            loss = -(label * better.log() + (1 - label) * (1 - better).log())
            total = total + pairs.weight[index] / len(own) * (loss + coef * likelihood)
            weights += float(pairs.weight[index]) / len(own)
    return total / weights


@pytest.mark.parametrize("imitation_coef", [0.0, 0.7])
def test_shared_rankings_equal_one_pass_per_pair(
    model: LlamaForSequenceClassification, imitation_coef: float
) -> None:
    """Loss and all gradients, with soft labels, margins, weights and a flipped pair."""
    pairs = _pairs()
    rankings = pair_batches_of(pairs, "k_wise", imitates=imitation_coef > 0)
    assert [len(row.responses) for row in rankings.rows] == [4, 2, 3]
    loss, metrics = _packed_loss(model, rankings, imitation_coef=imitation_coef)
    expected = _prompt_by_prompt(model, pairs, imitation_coef)
    torch.testing.assert_close(loss, expected)
    ours, theirs = _gradients(model, loss), _gradients(model, expected)
    used = {name for name, gradient in theirs.items() if gradient.any()}
    assert ("lm_head.weight" in used) == (imitation_coef > 0)
    assert used <= ours.keys()
    for name in used:
        torch.testing.assert_close(ours[name], theirs[name])
    if imitation_coef > 0:
        total = metrics["ranking_loss"] + imitation_coef * metrics["imitation_loss"]
        torch.testing.assert_close(total, loss.detach())


def test_parts_of_a_batch_add_up_to_it(model: LlamaForSequenceClassification) -> None:
    """As `accumulate` does it: each part's mean, by what its examples count."""
    rankings = pair_batches_of(_pairs(), "k_wise", imitates=True)
    whole, _ = _packed_loss(model, rankings, imitation_coef=0.3)
    loss_function = reward_loss(model, 0.3)
    total = torch.zeros((), dtype=torch.float64)
    for part in ([2], [1, 0]):
        loss, _ = loss_function(pack([rankings.rows[i] for i in part]), rankings.compared(part))
        total += loss * rankings.weight[part].sum() / rankings.weight.sum()
    torch.testing.assert_close(total, whole)


def test_k_wise_is_pairwise_where_every_prompt_has_one_pair(
    model: LlamaForSequenceClassification,
) -> None:
    pairs = _pairs(groups=[f"group {number}" for number in range(len(COMPARED))])
    by_pair, k_wise = pair_batches_of(pairs), pair_batches_of(pairs, "k_wise")
    assert by_pair.rows == k_wise.rows == pairs.rows
    assert torch.equal(by_pair.weight, pairs.weight)
    assert torch.equal(by_pair.weight, k_wise.weight)
    losses = [_packed_loss(model, rankings)[0] for rankings in (by_pair, k_wise)]
    one, other = (_gradients(model, loss) for loss in losses)
    assert torch.equal(*losses)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_group_is_a_ranking_of_its_own() -> None:
    groups: list[str | None] = [None] * len(COMPARED)
    groups[0], groups[1], groups[-1] = "one", "one", "one"  # the last of another prompt
    rankings = pair_batches_of(_pairs(groups), "k_wise")
    assert [[pair for pair, _, _ in places] for places in rankings.places] == [
        *([0, 1], [2, 3, 4, 5], [6], [7], [8])
    ]
    assert [len(row.responses) for row in rankings.rows] == [3, 4, 2, 2, 2]


def test_more_responses_than_a_ranking_may_have_are_refused() -> None:
    rows = [Candidates([5], ([6], [7, number])) for number in range(9)]
    numbers = torch.ones(9)
    records = [{"id": f"p{number}", "prompt": "a"} for number in range(9)]
    pairs = Pairs(records, rows, *[numbers] * 3)
    with pytest.raises(ValueError, match=r"compare 10 different responses, at most 9.*'p0'"):
        pair_batches_of(pairs, "k_wise")
    assert len(pair_batches_of(pairs).rows) == 9
    assert len(pair_batches_of(pairs.subset(range(8)), "k_wise").rows[0].responses) == 9


@pytest.mark.parametrize("ranking", ["pairs", "k_wise"])
@pytest.mark.parametrize("on", ["pairs", "differences"])
def test_the_contrastive_term_is_of_what_the_head_reads(
    model: LlamaForSequenceClassification, ranking: str, on: str
) -> None:
    """Without dropout both views are alike, and known from passes of one response each."""
    pairs = _pairs()
    rankings = pair_batches_of(pairs, ranking)
    config = ContrastiveConfig(on=on, coef=0.3, temperature=0.2)
    loss, metrics = _packed_loss(model.eval(), rankings, contrastive=config)

    def end(prompt: list[int], response: list[int]) -> Tensor:
        return model.model(torch.tensor([prompt + response])).last_hidden_state[0, -1]

    if on == "pairs":
        views = [end(row.prompt, response) for row in rankings.rows for response in row.responses]
    else:
        ends = [[end(row.prompt, each) for each in row.responses] for row in pairs.rows]
        views = [one - other for one, other in ends] + [other - one for one, other in ends]
    expected, _ = simcse_loss(torch.stack(views), torch.stack(views), 0.2)
    torch.testing.assert_close(metrics["contrastive_loss"], expected.detach())
    plain, _ = _packed_loss(model, rankings)
    torch.testing.assert_close(loss, plain + 0.3 * expected)
    gradients = _gradients(model, loss)
    for name, gradient in _gradients(model, plain + 0.3 * expected).items():
        torch.testing.assert_close(gradients[name], gradient)


def test_swav_trains_its_prototypes(model: LlamaForSequenceClassification) -> None:
    rankings = pair_batches_of(_pairs())
    loss, metrics = _packed_loss(model, rankings, contrastive=ContrastiveConfig(kind="swav"))
    gradient = _gradients(model, loss)["prototypes.weight"]
    assert gradient.abs().min() > 0
    # On the sphere: nothing is gained by a longer prototype.
    along = (gradient * model.prototypes.weight).sum(1)
    torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12)
    assert 1 <= metrics["prototypes_used"] <= 5


def test_views_are_two_dropout_masks_and_the_ranking_loss_the_mean_of_both(
    model: LlamaForSequenceClassification,
) -> None:
    prepare_training(model, TrainerConfig(), 0, dropout=0.2)
    rankings, config = pair_batches_of(_pairs()), ContrastiveConfig(coef=0.5)
    torch.manual_seed(3)
    loss, metrics = _packed_loss(model.train(), rankings, contrastive=config)
    torch.manual_seed(3)
    views = [_packed_loss(model, rankings)[0].detach() for _ in range(2)]
    assert views[0] != views[1]
    torch.testing.assert_close(metrics["ranking_loss"], (views[0] + views[1]) / 2)
    total = metrics["ranking_loss"] + 0.5 * metrics["contrastive_loss"]
    torch.testing.assert_close(loss.detach(), total)
