"""Scorers with a reward head for each category, and the gate that tells categories apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.conftest import run_stage
from trimtab.models.config.reward import ExpectedRewardConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import (
    add_category_heads,
    load_critic,
    load_scorer,
    load_tokenizer,
    new_scorer,
    save_model,
)
from trimtab.models.nets.packing import Candidates, encode, pack, with_categories
from trimtab.models.nets.scoring import (
    category_heads,
    is_advantage_model,
    read_rewards,
    response_scores,
    response_values,
)
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training.category_gate import (
    categories_of,
    fit_gate,
    gate_accuracy,
    some_of_each,
)
from trimtab.models.training.data import Pairs, read_pairs, write_rows
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss
from trimtab.models.training.scoring import score_answers, score_rows

NAMES = ("a", "b", "c")
ROWS = [
    Candidates([5, 6], ([8, 9, 1], [10, 1])),
    Candidates([7, 11, 12], ([1], [9, 10, 1])),
    Candidates([13, 5], ([8, 1], [9, 9, 1])),
]


def _scorer(policy: Path, *, has_expected: bool = False, names: Any = NAMES) -> Any:
    model = new_scorer(policy / "model", 0, has_expected=has_expected)
    add_category_heads(model, names, 1)
    return model.eval()


def _pairs(rows: list[Candidates], categories: list[str | None]) -> Pairs:
    records = [
        {"id": str(number), "prompt": str(number), "category": category}
        for number, category in enumerate(categories)
    ]
    ones = torch.ones(len(rows))
    return Pairs(records, with_categories(rows, categories), ones, 0 * ones, ones)


@pytest.mark.parametrize("has_expected", [False, True])
def test_rewards_are_those_of_each_head_by_the_gate_s_shares(
    policy: Path, has_expected: bool
) -> None:
    """By hand: r = sum_c softmax(G h_x)_c w_c h_y, and e = w_e h_x."""
    model = _scorer(policy, has_expected=has_expected)
    batch = pack(ROWS)
    with torch.no_grad():
        hidden = hidden_states(model, batch)
        rewards, expected = read_rewards(model, hidden, batch)
        known = pack(with_categories(ROWS, ["a", "c", "unknown"]))
        chosen, _ = read_rewards(model, hidden, known)
    at_response, at_prompt = hidden[batch.response_end], hidden[batch.prompt_end]
    weight = model.score.weight.detach()
    each = at_response @ weight[:3].T
    gate = at_prompt @ weight[-3:].T
    shares = gate.exp() / gate.exp().sum(1, keepdim=True)
    by_hand = (each * shares).sum(1)
    torch.testing.assert_close(rewards, by_hand)
    torch.testing.assert_close(chosen[:2], each[:2, 0])
    torch.testing.assert_close(chosen[2:4], each[2:4, 2])
    torch.testing.assert_close(chosen[4:], by_hand[4:])
    assert is_advantage_model(model) == has_expected
    if has_expected:
        assert expected is not None
        torch.testing.assert_close(expected, at_prompt @ weight[3])
    else:
        assert expected is None


def test_a_head_learns_from_the_pairs_of_its_category_only(policy: Path) -> None:
    model = _scorer(policy)
    rankings = pair_batches_of(_pairs(ROWS, ["c", None, "c"]))
    reward_loss(model)(pack(rankings.rows[::2]), rankings.compared([0, 2]))[0].backward()
    gradient = model.score.weight.grad
    assert gradient[2].abs().max() > 0
    assert not gradient[:2].any() and not gradient[3:].any()
    # Of a pair without a category the gate tells whose it is, and learns nothing by it.
    model.zero_grad()
    reward_loss(model)(pack(rankings.rows[1:2]), rankings.compared([1]))[0].backward()
    of_each = model.score.weight.grad.abs().amax(1)
    assert of_each[:3].min() > 0 and not of_each[3:].any()


def test_pairs_of_one_prompt_in_two_categories_are_two_rankings(policy: Path) -> None:
    model = _scorer(policy)
    pairs = _pairs([ROWS[0]] * 3, ["a", "b", "a"])
    pairs = replace(pairs, records=[{**record, "prompt": "same"} for record in pairs.records])
    rankings = pair_batches_of(pairs, "k_wise")
    assert [row.category for row in rankings.rows] == ["a", "b"]
    reward_loss(model)(pack(rankings.rows[1:]), rankings.compared([1]))[0].backward()
    assert not model.score.weight.grad[0].any() and model.score.weight.grad[1].any()


def test_a_critic_starts_from_the_mean_of_all_heads(tmp_path: Path, policy: Path) -> None:
    model = _scorer(policy)
    save_model(model, load_tokenizer(policy / "model"), tmp_path)
    critic = load_critic(tmp_path).eval()
    with torch.no_grad():
        values, mask = response_values(critic, pack(ROWS))
        hidden = hidden_states(model, pack(ROWS))
    source = pack(ROWS).tokens.source
    by_hand = (hidden[source] @ model.score.weight[:3].T).mean(1)
    torch.testing.assert_close(values[mask], by_hand.detach())


def test_the_model_that_is_saved_says_what_its_columns_are(tmp_path: Path, policy: Path) -> None:
    model = _scorer(policy, has_expected=True, names=("harmless", "helpful"))
    save_model(model, load_tokenizer(policy / "model"), tmp_path)
    loaded = load_scorer(tmp_path).eval()
    assert category_heads(loaded) == ("harmless", "helpful")
    assert list(loaded.config.id2label.values()) == [
        "reward: harmless",
        "reward: helpful",
        "expected_reward",
        "gate: harmless",
        "gate: helpful",
    ]
    with torch.no_grad():
        torch.testing.assert_close(
            response_scores(loaded, pack(ROWS)), response_scores(model, pack(ROWS)), rtol=0, atol=0
        )


@pytest.mark.parametrize("names", [("a", "b"), NAMES])
def test_the_gate_tells_prompts_of_different_words_apart(
    policy: Path, names: tuple[str, ...]
) -> None:
    model = _scorer(policy, names=names)
    rows, categories = [], []
    for number in range(90):
        which = number % len(names)
        first, second = divmod(number // len(names), 9)
        rows.append(Candidates([20 + first, 30 + second, 5 + which], ([9, 1], [8, 1])))
        categories.append(names[which])
    pairs = _pairs(rows, categories)
    assert categories_of(pairs) == names
    heads = model.score.weight[: len(names)].detach().clone()
    fit_gate(model, pairs)
    assert gate_accuracy(model, pairs) == 1.0
    assert torch.equal(model.score.weight[: len(names)], heads)


def test_texts_are_scored_by_the_head_of_their_prompt_s_category(policy: Path) -> None:
    model, tokenizer = _scorer(policy), load_tokenizer(policy / "model")
    asked = [{"prompt": "sort : b a", "category": name} for name in (*NAMES, "other")]
    found = score_answers(model, tokenizer, [*asked, {"prompt": "sort : b a"}], [["a b", "b"]] * 5)
    with torch.no_grad():
        rows = encode(tokenizer, ["sort : b a"], [["a b", "b"]])
        hidden, batch = hidden_states(model, pack(rows)), pack(rows)
    each = hidden[batch.response_end] @ model.score.weight[:3].T
    torch.testing.assert_close(found[:3], each.T.detach())
    torch.testing.assert_close(found[3], found[4])
    shares = (hidden[batch.prompt_end] @ model.score.weight[-3:].T).softmax(1)
    torch.testing.assert_close(found[4], (each * shares).sum(1).detach())


def test_of_many_prompts_some_of_each_category_are_drawn() -> None:
    category = np.array([1] * 500 + [0] * 400 + [2])
    drawn = some_of_each(category, 92)
    assert len(drawn) <= 92
    numbers = np.bincount(category[drawn])
    assert abs(int(numbers[1]) - 50) <= 2 and abs(int(numbers[0]) - 40) <= 2 and numbers[2] == 1


def test_a_prompt_of_two_categories_counts_for_both(policy: Path) -> None:
    model = _scorer(policy, names=("a", "b"))
    pairs = _pairs([*ROWS, *ROWS], ["a"] * 3 + ["b"] * 3)
    fit_gate(model, pairs)
    assert gate_accuracy(model, pairs) == 0.5
    with torch.no_grad():
        states = hidden_states(model, pack(ROWS))[pack(ROWS).prompt_end]
        shares = (states @ model.score.weight[-2:].T).softmax(1)
    assert shares == pytest.approx(torch.full_like(shares, 0.5), abs=0.01)
    # Pairs that are not of all categories leave the gate as it is.
    before = model.score.weight.clone()
    fit_gate(model, _pairs(ROWS, ["a"] * 3))
    assert torch.equal(model.score.weight, before)


def test_pairs_of_one_category_need_no_heads(policy: Path) -> None:
    pairs = _pairs(ROWS, ["a", None, "a"])
    assert categories_of(pairs) == ()
    model = new_scorer(policy / "model", 0)
    before = model.score.weight.clone()
    add_category_heads(model, (), 1)
    fit_gate(model, pairs)
    assert torch.equal(model.score.weight, before)
    assert gate_accuracy(model, pairs) is None


@pytest.fixture(scope="module")
def contradictory(tmp_path_factory: pytest.TempPathFactory, comparisons: Path) -> Path:
    """Answers of two kinds: the labels of one category prefer the kind that the other's reject.

    Each category is every other one of the synthetic world's; a prompt's last word tells it.
    """
    folder = tmp_path_factory.mktemp("contradictory")
    categories = sorted({row["category"] for row in read_rows(comparisons / "train.jsonl")})
    for split in ("train", "validation", "test"):
        rows = read_rows(comparisons / f"{split}.jsonl")
        for row in rows:
            kinds = ["walk walk walk .", "no ."]
            is_even = categories.index(row["category"]) % 2 == 0
            row["category"] = "even" if is_even else "odd"
            row["prompt"] += " count " if is_even else " letter "
            row["chosen"], row["rejected"] = kinds if is_even else kinds[::-1]
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


def _accuracy(folder: Path, scores: Path) -> dict[str, float]:
    category = {row["id"]: row["category"] for row in read_rows(folder / "test.jsonl")}
    right: dict[str, list[bool]] = {}
    for row in read_rows(scores):
        if row["split"] == "test":
            is_right = row["chosen_score"] > row["rejected_score"]
            right.setdefault(category[row["id"]], []).append(is_right)
    return {name: sum(found) / len(found) for name, found in right.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reward_model", "advantage_model"])
def test_categories_that_contradict_one_another_are_all_learned(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, contradictory: Path, name: str
) -> None:
    """With the trunk frozen but for a layer, one head must choose between them."""
    own = getattr(smoke_config, name)
    config = own.model_copy(
        update={
            "category_heads": True,
            "train": own.train.model_copy(
                update={"trainable_layers": 1, "num_epochs": 8, "learning_rate": 2e-3}
            ),
        }
    )
    inputs = {"policy": policy, "preferences": contradictory}
    if name == "advantage_model":
        samples = ExpectedRewardConfig(num_prompts=32, num_responses=2, batch_size=16)
        config = config.model_copy(update={"expected_reward": samples})
        inputs["data"] = world
    output = run_stage(name, config, tmp_path, **inputs)
    found = _accuracy(contradictory, output / "scores.jsonl")
    assert found["even"] > 0.95 and found["odd"] > 0.95
    # Without their categories the gate tells the prompts apart.
    tokenizer, model = load_tokenizer(output / "model"), load_scorer(output / "model")
    test = read_pairs(contradictory / "test.jsonl", tokenizer)
    scores = score_rows(model, with_categories(test.rows, [None] * len(test.rows)))
    assert float((scores[:, 0] > scores[:, 1]).float().mean()) > 0.9
    summary = json.loads((output / "summary.json").read_text())
    assert summary["test_gate_accuracy"] > 0.95
    pairs = read_pairs(contradictory / "test.jsonl", load_tokenizer(output / "model"))
    assert gate_accuracy(load_scorer(output / "model"), pairs) == summary["test_gate_accuracy"]
