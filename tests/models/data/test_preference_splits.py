"""Splits: nothing shared, stable under growth, right in size; leaks are named."""

from collections import Counter

import pytest

from trimtab.models.data.records import PreferencePair
from trimtab.models.data.splits import LeakageError, SplitError, check_leakage, split_pairs

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def pair(number: int, prompt: str, category: str | None = None) -> PreferencePair:
    return PreferencePair(str(number), prompt, "A", "B", category)


PAIRS = [pair(n, f"Question {n % 1000}?", f"topic {n % 10}") for n in range(3000)]


def test_by_prompt_all_pairs_once_no_prompt_twice_sizes_about_right() -> None:
    parts = split_pairs(PAIRS, FRACTIONS, seed=1)
    assert list(parts) == list(FRACTIONS)
    assert Counter(p.id for part in parts.values() for p in part) == Counter(p.id for p in PAIRS)
    prompts = [{p.prompt for p in part} for part in parts.values()]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 1000
    # 1000 prompts, binomial: 800 +- 12.6 and 100 +- 9.5; five standard deviations each
    assert abs(len(prompts[0]) - 800) < 64
    assert all(abs(len(part) - 100) < 48 for part in prompts[1:])
    assert [p.id for p in parts["test"]] == sorted((p.id for p in parts["test"]), key=int)


def test_a_prompt_stays_on_its_side_when_pairs_are_added() -> None:
    before = split_pairs(PAIRS[:500], FRACTIONS, seed=1)
    after = split_pairs(PAIRS, FRACTIONS, seed=1)
    for name, part in before.items():
        assert {p.id for p in part} <= {p.id for p in after[name]}


def test_another_seed_is_another_split_and_the_same_seed_the_same() -> None:
    first = split_pairs(PAIRS, FRACTIONS, seed=1)
    assert split_pairs(PAIRS, FRACTIONS, seed=1) == first
    assert split_pairs(PAIRS, FRACTIONS, seed=2) != first


def test_prompts_that_differ_in_case_and_space_or_continue_another_stay_together() -> None:
    pairs = []
    for n in range(200):
        first = f"\n\nHuman: Question {n}?\n\nAssistant:"
        longer = first + f" A{n}\n\nHuman: Sure?\n\nAssistant:"
        variants = (first, first.upper() + " ", longer)
        pairs += [pair(3 * n + k, prompt) for k, prompt in enumerate(variants)]
    parts = split_pairs(pairs, {"train": 0.5, "test": 0.5}, seed=0)
    for part in parts.values():
        assert set(Counter(int(p.id) // 3 for p in part).values()) == {3}


def test_by_category_whole_categories_and_sizes_as_near_as_they_allow() -> None:
    parts = split_pairs(PAIRS, FRACTIONS, seed=3, split_by="category")
    categories = {name: {p.category for p in part} for name, part in parts.items()}
    assert [len(names) for names in categories.values()] == [8, 1, 1]
    assert len(set.union(*categories.values())) == 10
    others = {
        split_pairs(PAIRS, FRACTIONS, seed=s, split_by="category")["test"][0] for s in range(9)
    }
    assert len({p.category for p in others}) > 1


@pytest.mark.parametrize(
    ("fractions", "split_by", "pairs", "named"),
    [
        ({}, "prompt", PAIRS, "sum 1"),
        ({"a": 0.5}, "prompt", PAIRS, "sum 1"),
        ({"a": 1.5, "b": -0.5}, "prompt", PAIRS, "at least 0"),
        ({"a": float("nan")}, "prompt", PAIRS, "at least 0"),
        ({"a": 1.0}, "row", PAIRS, "found 'row', allowed"),
        ({"a": 0.5, "b": 0.5}, "prompt", PAIRS[:1], "nothing falls to"),
        ({"a": 1.0}, "category", [pair(1, "Q")], "1 pairs without one"),
    ],
)
def test_what_cannot_be_split_is_an_error(
    fractions: dict[str, float], split_by: str, pairs: list[PreferencePair], named: str
) -> None:
    with pytest.raises(SplitError, match=named):
        split_pairs(pairs, fractions, seed=0, split_by=split_by)  # type: ignore[arg-type]


def test_a_prompt_in_two_splits_is_named_with_both() -> None:
    splits = {"train": [pair(1, "One?"), pair(2, "Two?")], "test": [pair(3, " ONE? ")]}
    with pytest.raises(LeakageError) as caught:
        check_leakage(splits)
    text = str(caught.value)
    assert "found 1 prompts" in text
    assert "' ONE? ' in train (pair 1) and in test (pair 3)" in text
    check_leakage({"train": splits["train"], "test": [pair(3, "Three?")]})


def test_categories_that_share_a_prompt_cannot_be_split_apart() -> None:
    pairs = [pair(1, "Same?", "a"), pair(2, "same?", "b")]
    with pytest.raises(LeakageError, match="same"):
        split_pairs(pairs, {"train": 0.5, "test": 0.5}, seed=0, split_by="category")


@pytest.mark.parametrize("split_by", ["prompt", "category"])
def test_a_part_of_fraction_0_is_empty(split_by: str) -> None:
    pairs = [pair(n, f"{n}", f"{n % 7}") for n in range(30)]
    parts = split_pairs(pairs, {"train": 1.0, "test": 0.0}, seed=0, split_by=split_by)
    assert parts["train"] == pairs
    assert parts["test"] == []
