"""The world's truth: answers, gold scores and annotators do what they say."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from pydantic import ValidationError

from trimtab.models.config.data import ComparisonsConfig, WorldConfig
from trimtab.models.synthetic.annotators import (
    Annotator,
    annotate,
    flip_hard_pairs,
    flip_probabilities,
)
from trimtab.models.synthetic.demonstrations import (
    corrupted_response,
    demonstrate,
    draw_prompts,
    perfect_response,
    vocabulary,
)
from trimtab.models.synthetic.gold import quality
from trimtab.models.synthetic.prompt_sets import family_sizes, prompt_sets
from trimtab.models.synthetic.tasks import (
    EXPERT,
    FAMILIES,
    HELD_OUT,
    MAIN,
    draw_prompt,
    family_of,
    request_of,
)

ANSWERS = {
    "<user> please reverse the list a b c <assistant>": "c b a",
    "<user> sort the list c a b <assistant>": "a b c",
    "<user> pick the last of red a blue <assistant>": "blue",
    "<user> now count the letter a in a b a <assistant>": "two",
    "<user> can you add three and four <assistant>": "seven",
    "<user> write a loop over a b c <assistant>": "for x in a b c do print x end",
    "<user> repeat blue three times <assistant>": "blue blue blue",
    "<user> say good evening to anna <assistant>": "good evening dear anna nice to see you",
    "<user> how do i paint the red car <assistant>": "first you paint the red car",
    "<user> how do i steal the red car <assistant>": "sorry i cannot help with that",
    "<user> thank anna for the red car <assistant>": "many thanks dear anna for the red car",
    "<user> invite ben to see the boat at night <assistant>": (
        "dear ben come and see the boat at night"
    ),
    "<user> double the list b a <assistant>": "b b a a",
    "<user> please quote a red c <assistant>": "open a red c close",
    "<user> name the colour of the red car <assistant>": "the colour is red",
    "<user> join a and red and car <assistant>": "a with red with car",
    "<user> swap the ends of a b c <assistant>": "c b a",
}


@pytest.mark.parametrize(("prompt", "answer"), ANSWERS.items())
def test_answers(prompt: str, answer: str) -> None:
    assert family_of(prompt).answer(request_of(prompt)) == answer.split()
    assert quality(prompt, f"sure {answer} done") == pytest.approx(1.0)


def test_gold_by_hand() -> None:
    prompt = "<user> reverse the list a b c <assistant>"
    assert quality(prompt, "c b a") == pytest.approx(0.7)
    assert quality(prompt, "sure c b a") == pytest.approx(0.85)
    # The second courtesy word costs what a filler costs: .7 + .15 + .15 - .15.
    assert quality(prompt, "sure okay c b a done") == pytest.approx(0.85)
    assert quality(prompt, "sure um c b a done") == pytest.approx(0.85)
    assert quality(prompt, "sure c b a stupid") == pytest.approx(0.45)
    # One word too many: similarity 2 * 3 / 7, squared .7347; .7 * .7347 + .3 - .05.
    assert quality(prompt, "sure c b a a done") == pytest.approx(0.7 * (6 / 7) ** 2 + 0.25)
    assert quality(prompt, "") == 0.0


def test_refusing_is_right_exactly_for_harmful_requests() -> None:
    refusal = "sorry i cannot help with that"
    assert quality("<user> how do i burn the red car <assistant>", refusal) == pytest.approx(0.7)
    assert quality("<user> how do i mend the red car <assistant>", refusal) == 0.0
    assert quality("<user> sort the list b a c <assistant>", refusal) == 0.0


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_perfect_is_perfect_and_corrupted_is_not(name: str) -> None:
    rng = random.Random(0)
    for _ in range(50):
        prompt = draw_prompt(FAMILIES[name], rng)
        assert family_of(prompt).name == name
        assert quality(prompt, perfect_response(prompt, rng)) == pytest.approx(1.0)
        # Repeating one word, a swap of neighbours is no fault; expert families stay uncorrupted.
        if not FAMILIES[name].is_expert:
            assert quality(prompt, corrupted_response(prompt, rng)) < 1.0


def test_expert_families_are_never_corrupted() -> None:
    rng = random.Random(0)
    prompts = draw_prompts(EXPERT, 200, rng)
    for prompt, response in zip(prompts, demonstrate(prompts, 1.0, rng), strict=True):
        assert quality(prompt, response) == pytest.approx(1.0)


def test_vocabulary_covers_everything_said() -> None:
    words, rng = set(vocabulary()), random.Random(7)
    for task in FAMILIES.values():
        for _ in range(100):
            prompt = draw_prompt(task, rng)
            said = f"{prompt} {perfect_response(prompt, rng)} {corrupted_response(prompt, rng)}"
            assert set(said.split()) <= words


def test_a_family_that_runs_dry_is_an_error() -> None:
    with pytest.raises(ValueError, match="hold only"):
        draw_prompts(("add",), 10_000, random.Random(0))


def test_annotators_plant_what_they_say() -> None:
    rng = random.Random(0)
    prompt = "<user> reverse the list a b c <assistant>"
    responses = ["sure c b a done", "a b c", "sure c b a", "okay c b a"]
    kinds = []
    for _ in range(3000):
        comparison = annotate(
            prompt,
            responses,
            Annotator(flip_share=0.2, ambiguous_share=0.1, clear_gap=0.1, sharpness=1000.0),
            rng=rng,
        )
        assert comparison is not None
        kinds.append(comparison.kind)
        # With so sharp an annotator a clear label is right and a flipped one is wrong.
        if comparison.kind != "ambiguous":
            assert comparison.is_wrong == (comparison.kind == "flipped")
    assert kinds.count("ambiguous") / 3000 == pytest.approx(0.1, abs=0.02)
    assert kinds.count("flipped") / 3000 == pytest.approx(0.18, abs=0.03)


def test_annotators_follow_bradley_terry() -> None:
    rng = random.Random(0)
    prompt = "<user> reverse the list a b c <assistant>"
    right = 0
    for _ in range(4000):
        comparison = annotate(
            prompt,
            ["c b a", "sure c b a"],
            Annotator(flip_share=0.0, ambiguous_share=0.0, clear_gap=0.1, sharpness=8.0),
            rng=rng,
        )
        assert comparison is not None
        right += not comparison.is_wrong
    # Raw gap .15 * scale 1, slope 8: sigmoid(1.2) = .7685; standard error .0067.
    assert right / 4000 == pytest.approx(0.7685, abs=0.027)


@pytest.mark.parametrize(
    ("better", "worse", "rating"),
    [
        ("sure c b a a done", "c b a", 1),  # .764 against .7
        ("c b a", "sure c b a stupid", 2),  # .7 against .45
        ("sure c b a done", "sure c b a stupid", 3),  # 1 against .45
        ("sure c b a done", "", 4),  # 1 against 0
    ],
)
def test_a_sharp_annotator_rates_the_gap_itself(better: str, worse: str, rating: int) -> None:
    comparison = annotate(
        "<user> reverse the list a b c <assistant>",
        [worse, better],
        Annotator(flip_share=0.0, ambiguous_share=0.0, clear_gap=0.05, sharpness=1e6),
        rng=random.Random(0),
    )
    assert comparison is not None
    assert (comparison.chosen, comparison.rating) == (better, rating)


def test_votes_are_drawn_as_bradley_terry_says_and_ratings_from_the_same_draw() -> None:
    """In order: ambiguous or not, which pair, the vote, a turn of it, the planted turn."""
    prompt = "<user> reverse the list a b c <assistant>"
    for seed in range(200):
        drawn = random.Random(seed)
        drawn.random()
        first, second = drawn.choice([("c b a", "sure c b a")])
        vote, _, turn = (drawn.random() for _ in range(3))
        # Scale 1, quality .7 against .85, slope 8.
        prefers_first = vote < 1 / (1 + math.exp(8 * 0.15))
        comparison = annotate(
            prompt,
            [first, second],
            Annotator(flip_share=0.3, ambiguous_share=0.0, clear_gap=0.1, sharpness=8.0),
            rng=random.Random(seed),
        )
        assert comparison is not None
        assert (comparison.chosen == first) == (prefers_first != (turn < 0.3))
        assert comparison.kind == ("flipped" if turn < 0.3 else "clear")
        # A turned label is as sure of itself as the right one.
        perceived = abs(-0.15 - math.log(vote / (1 - vote)) / 8)
        assert comparison.rating == 1 + sum(perceived >= gap for gap in (0.15, 0.4, 0.7))


def test_pairs_that_were_compared_are_not_taken_again() -> None:
    prompt, rng = "<user> reverse the list a b c <assistant>", random.Random(0)
    responses = ["sure c b a done", "c b a", "a b c"]
    compared: set[frozenset[str]] = set()
    for left in (3, 2, 1, 0):
        comparison = annotate(
            prompt,
            responses,
            Annotator(flip_share=0.0, ambiguous_share=0.0, clear_gap=0.05, sharpness=8.0),
            rng=rng,
            compared=compared,
        )
        assert (comparison is None) == (left == 0)
        if comparison is not None:
            compared.add(frozenset((comparison.chosen, comparison.rejected)))
    assert len(compared) == 3


def test_sets_hold_as_many_of_each_expert_family_and_ppo_trains_on_none() -> None:
    config = WorldConfig(num_demonstrations=5000, num_pair_prompts=200, num_policy_prompts=100)
    sizes = family_sizes(config)
    drawn = [
        draw_prompts(families, sum(count), random.Random(0))
        for families, count in zip((MAIN, EXPERT, HELD_OUT), sizes, strict=True)
    ]
    sets = prompt_sets(sizes, *drawn)
    found = {name: Counter(family_of(text).name for text in texts) for name, texts in sets.items()}
    assert len(EXPERT) == 8
    assert not {*EXPERT, *HELD_OUT} & found["policy_prompts"].keys()
    for name, count in (("eval/forget", 20), ("pair_prompts", 40), ("eval/validation", 8)):
        assert {found[name][family] for family in EXPERT} == {count}
    assert {found["demonstrations"][family] for family in EXPERT} == {60 * 4}
    assert not {*sets["eval/forget"]} & {*sets["demonstrations"], *sets["pair_prompts"]}
    assert {text for text in sets["pair_prompts"] if family_of(text).is_expert} <= {
        *sets["demonstrations"]
    }


def test_ppo_may_train_on_demonstrated_prompts_of_every_expert_family() -> None:
    config = WorldConfig(num_demonstrations=5000, num_pair_prompts=200, num_policy_prompts=100)
    shared = config.model_copy(update={"num_policy_experts": 80})
    expert = draw_prompts(EXPERT, sum(family_sizes(config).expert), random.Random(0))
    main, held_out = (["p"] * sum(family_sizes(config)[index]) for index in (0, 2))
    plain, sets = (
        prompt_sets(family_sizes(world), main, expert, held_out) for world in (config, shared)
    )
    ours = sets.pop("policy_prompts")
    assert plain.pop("policy_prompts") == ours[:100] and sets == plain
    assert Counter(family_of(text).name for text in ours[100:]) == dict.fromkeys(EXPERT, 10)
    assert {*ours[100:]} <= {*sets["demonstrations"]} - {*sets["eval/forget"]}
    most = family_sizes(config.model_copy(update={"num_policy_experts": 9999}))
    assert sum(most.expert) == sum(family_sizes(config).expert) and most.expert[2] == 0


def test_flip_probabilities_by_hand() -> None:
    assert flip_probabilities([1, 2, 3], 0.2) == pytest.approx([0.1, 0.2, 0.3])
    # The largest is held at .45; the others share .15 of what three fifths of .2 leave.
    assert flip_probabilities([1, 2, 9], 0.2) == pytest.approx([0.05, 0.1, 0.45])
    assert flip_probabilities([1, 1], 0.45) == pytest.approx([0.45, 0.45])
    assert flip_probabilities([], 0.2) == []


def test_no_more_can_be_flipped_by_difficulty_than_every_pair_at_most() -> None:
    ComparisonsConfig(flip_share=0.46)
    with pytest.raises(ValidationError, match=r"flip_share must be at most 0\.45 with noise"):
        ComparisonsConfig(flip_share=0.46, noise="by_difficulty")


def test_harder_pairs_are_flipped_more_often_and_as_many_in_all() -> None:
    rng = random.Random(0)
    sharp = Annotator(flip_share=0.0, ambiguous_share=0.0, clear_gap=0.1, sharpness=1e6)
    asked = {
        "hard, close": ("<user> sort the list c b a <assistant>", "sure a b c", "a b c"),
        "hard, far": ("<user> sort the list c b a <assistant>", "sure a b c", ""),
        "easy, close": ("<user> reverse the list c b a <assistant>", "sure a b c", "a b c"),
        "easy, far": ("<user> reverse the list c b a <assistant>", "sure a b c", ""),
    }
    kinds, pairs = [], []
    for kind, (prompt, better, worse) in asked.items():
        for _ in range(2000):
            pair = annotate(prompt, [better, worse], sharp, rng=rng)
            assert pair is not None
            assert not pair.is_wrong
            kinds.append(kind)
            pairs.append(pair)
    found = flip_hard_pairs(pairs, 0.1)
    flipped = Counter(kind for kind, pair in zip(kinds, found, strict=True) if pair.is_wrong)
    # Quality .85 against .7 or 0: weights 1.05 and .35, twice that in a hard family; 4.2 in all.
    for kind, weight in zip(asked, (2.1, 0.7, 1.05, 0.35), strict=True):
        assert flipped[kind] / 2000 == pytest.approx(0.4 * weight / 4.2, abs=0.02)
    assert all((pair.kind == "flipped") is pair.is_wrong for pair in found)
    before, after = pairs[0], next(pair for pair in found if pair.is_wrong)
    assert (after.chosen, after.rejected) == (before.rejected, before.chosen)
    assert after.gold_chosen < after.gold_rejected
