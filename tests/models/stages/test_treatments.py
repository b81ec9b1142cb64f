"""What the treatments of labels do to a pair that was planted wrong, and to people's ratings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.models.conftest import run_stage
from trimtab.flows.config.recipes import RecipeName, recipe_named
from trimtab.models.config.reward import RelabelConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.relabel import Relabel
from trimtab.models.functional.reward import ranking_losses
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.stages.relabel import relabel_by_ratings
from trimtab.models.training.data import read_pairs, write_rows

# Three pairs that the ensemble agrees with, and "wrong", planted wrong, which it does not.
STRENGTH = {"strong": 2.0, "wrong": -1.5, "plain": 1.0, "weak": 0.1}
# For each label and against it, of three voters; one cannot tell the answers of two pairs apart.
VOTES = ((3, 0), (0, 2), (1, 2), (1, 1))
RATING = {"strong": 4, "wrong": 4, "plain": 2, "weak": None}
LLAMA_2 = (0.0, 1 / 3, 2 / 3, 1.0)


def _relabel(folder: Path, config: RelabelConfig, rating: dict[str, Any] = RATING) -> Path:
    rows = [
        {"id": name, "prompt": "sort the list", "chosen": "a b", "rejected": "b a"}
        | {"rating": rating[name]}
        for name in STRENGTH
    ]
    write_rows(folder / "preferences" / "train.jsonl", rows)
    strength = [
        {"id": name, "strength_mean": mean, "num_for": favour, "num_against": against}
        for (name, mean), (favour, against) in zip(STRENGTH.items(), VOTES, strict=True)
    ]
    write_rows(folder / "strength" / "strength.jsonl", strength)
    inputs = {name: folder / name for name in ("preferences", "strength")}
    return run_stage("relabel", config, folder, **inputs) / "train.jsonl"


def _pull(policy: Path, path: Path) -> dict[str, float]:
    """How hard each pair pulls the score of its answer that was labelled better up, at gap 0."""
    pairs = read_pairs(path, load_tokenizer(policy / "model"))
    gap = torch.zeros(len(pairs.rows), requires_grad=True)
    nothing = torch.zeros(len(pairs.rows))
    losses = ranking_losses(gap, nothing, label_chosen=pairs.label, margin=pairs.margin)
    losses.sum().backward()
    assert gap.grad is not None
    is_flipped = [row["is_flipped"] for row in read_rows(path)]
    pulls = torch.where(torch.tensor(is_flipped), gap.grad, -gap.grad)
    return dict(zip(pairs.identifiers, pulls.tolist(), strict=True))


@pytest.mark.parametrize(
    ("config", "of_wrong", "of_right"),
    [
        (RelabelConfig(flip_below=None), 0.5, 0.5),
        (RelabelConfig(flip_below=None, smooth="negative", smoothing=0.25), 0.25, 0.5),
        (RelabelConfig(flip_below=0.0), -0.5, 0.5),
        (RelabelConfig(flip_fraction=0.25, flip_below=None), -0.5, 0.5),
        (
            RelabelConfig(
                flip_fraction=0.25, flip_below=None, smooth="not_flipped", smoothing=0.25
            ),
            *(-0.5, 0.25),
        ),
    ],
    ids=["baseline", "soft label", "flip below 0", "flip the weakest", "by bucket"],
)
def test_a_pair_planted_wrong_pulls_less_or_the_other_way(
    tmp_path: Path, policy: Path, config: RelabelConfig, of_wrong: float, of_right: float
) -> None:
    """At gap 0 a hard label pulls by sigmoid(0) = 1/2, a label of 3/4 by 3/4 - 1/2."""
    pulls = _pull(policy, _relabel(tmp_path, config))
    assert pulls == pytest.approx(
        {"strong": of_right, "wrong": of_wrong, "plain": of_right, "weak": of_right}
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"drop_below": 0.0}, [1, 0, 1, 1]),
        ({"drop_below": 0.5, "keep_to": 0.75}, [0, 0, 1, 0]),
        ({"drop_against": "all"}, [1, 0, 1, 1]),
        ({"drop_against": "majority"}, [1, 0, 0, 1]),
    ],
)
def test_pairs_whose_label_looks_wrong_are_not_trained_on(
    tmp_path: Path, policy: Path, changes: dict[str, Any], expected: list[float]
) -> None:
    path = _relabel(tmp_path, RelabelConfig(flip_below=None, **changes))
    assert [row["weight"] for row in read_rows(path)] == expected
    left = read_pairs(path, load_tokenizer(policy / "model")).identifiers
    assert left == [name for name, weight in zip(STRENGTH, expected, strict=True) if weight]
    summary = json.loads((path.parent / "summary.json").read_text())
    assert summary["share_left_out"] == expected.count(0) / 4


def test_a_pair_counts_as_its_label_is_likely(tmp_path: Path, policy: Path) -> None:
    path = _relabel(tmp_path, RelabelConfig(flip_below=None, weights="probability"))
    pairs = read_pairs(path, load_tokenizer(policy / "model"))
    assert pairs.weight.tolist() == pytest.approx(
        [1 / (1 + math.exp(-mean)) for mean in STRENGTH.values()]
    )


@pytest.mark.parametrize("recipe", ["hh-smollm2", "ukp-smollm2", "hh-7b"])
def test_labels_of_people_that_no_model_doubts_are_not_flipped(
    tmp_path: Path, recipe: RecipeName
) -> None:
    """The weakest tenth of clean labels has a strength of 2 and above."""
    folder = tmp_path / "preferences"
    pairs = [{"id": f"p{at}", "prompt": "Q", "chosen": "A", "rejected": "B"} for at in range(20)]
    for split, rows in (("train", pairs), ("validation", []), ("test", [])):
        write_rows(folder / f"{split}.jsonl", rows)
    for name, weakest in (("clean", 2.0), ("noisy", -0.5)):
        votes = [{"id": f"p{at}", "strength_mean": weakest + at} for at in range(20)]
        write_rows(tmp_path / name / "strength.jsonl", votes)
        output = run_stage(
            "relabel",
            recipe_named(recipe).relabel,
            tmp_path / f"work-{name}",
            preferences=folder,
            strength=tmp_path / name,
        )
        flipped = [row["id"] for row in read_rows(output / "train.jsonl") if row["is_flipped"]]
        assert flipped == ([] if name == "clean" else ["p0"])


def test_margins_add_up_and_a_flipped_pair_has_none_by_rating(tmp_path: Path) -> None:
    """Strength halved and clipped at 0.9, plus Llama 2's step."""
    config = RelabelConfig(
        flip_below=0.0, margin_scale=0.5, margin_clip=0.9, rating_margins=LLAMA_2
    )
    margins = {row["id"]: row["margin"] for row in read_rows(_relabel(tmp_path, config))}
    expected = {"strong": 0.9 + 1, "wrong": 0.75, "plain": 0.5 + 1 / 3, "weak": 0.05}
    assert margins == pytest.approx(expected)


def test_the_worlds_annotators_rate_and_their_ratings_become_margins(
    tmp_path: Path, comparisons: Path
) -> None:
    pairs = read_rows(comparisons / "train.jsonl")
    strength = [{"id": row["id"], "strength_mean": 1.0} for row in pairs]
    write_rows(tmp_path / "strength" / "strength.jsonl", strength)
    output = run_stage(
        "relabel",
        RelabelConfig(rating_margins=LLAMA_2),
        tmp_path,
        preferences=comparisons,
        strength=tmp_path / "strength",
    )
    rows = read_rows(output / "train.jsonl")
    assert len({row["rating"] for row in rows}) > 2
    for row in rows:
        assert row["margin"] == pytest.approx(LLAMA_2[row["rating"] - 1])


def test_ratings_that_nobody_gave_are_named(tmp_path: Path) -> None:
    config = RelabelConfig(rating_margins=LLAMA_2)
    with pytest.raises(ValueError, match="none of 4 pairs has a rating"):
        _relabel(tmp_path, config, dict.fromkeys(STRENGTH))


def test_impossible_treatments_are_refused() -> None:
    for margins in ((0.0, 1.0), (0.0, 0.0, 0.0, -1.0), (0.0, 0.0, 0.0, float("inf"))):
        with pytest.raises(ValidationError, match="rating_margins"):
            RelabelConfig(rating_margins=margins)


NOISE = {"flip_below": None, "noise": "posterior"}


def _noisy(folder: Path, config: RelabelConfig, **summary: float) -> Path:
    """A hundred pairs of strength 3, of which twenty are contradicted, and the treatment."""
    rows = [{"id": f"p{n}", "prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(100)]
    write_rows(folder / "preferences" / "train.jsonl", rows)
    votes = [{"id": f"p{n}", "strength_mean": -3.0 if n < 20 else 3.0} for n in range(100)]
    write_rows(folder / "strength" / "strength.jsonl", votes)
    (folder / "strength" / "summary.json").write_text(json.dumps(summary))
    inputs = {name: folder / name for name in ("preferences", "strength")}
    return run_stage("relabel", config, folder, **inputs)


@pytest.mark.parametrize(
    ("changes", "share", "label", "against"),
    [
        # All strengths are alike: whether labels or votes are wrong cannot be told, nor the slope.
        ({"noise": "unbiased", "flip_rate": 0.2}, 0.2, 4 / 3, 4 / 3),
        ({"noise": "unbiased", "flip_rate": 0.4}, 0.4, 3 / 2, 3 / 2),
        ({"noise": "unbiased", "flip_rate": 0.4, "largest_flip_rate": 0.45}, 0.4, 3.0, 3.0),
        ({"noise": "unbiased_by_pair", "flip_rate": 0.2}, 0.2, 4 / 3, 4 / 3),
        ({"noise": "unbiased", "flip_rate_at": "low"}, 0.0, 1.0, 1.0),
        # Were none wrong, all contradictions would be the vote's errors.
        ({"noise": "posterior", "flip_rate": 0.0}, 0.0, 1.0, 1.0),
        # Were a fifth wrong, the vote would hardly err: b s is large.
        ({"noise": "posterior", "flip_rate": 0.2}, 0.2, 1.0, 1.0),
    ],
)
def test_labels_by_how_often_they_are_wrong(
    tmp_path: Path, changes: dict[str, Any], share: float, label: float, against: float
) -> None:
    output = _noisy(tmp_path, RelabelConfig(**{**NOISE, **changes}), weight_0=1.0)
    rows = read_rows(output / "train.jsonl")
    assert [row["label"] for row in rows[:20]] == pytest.approx([against] * 20, abs=1e-3)
    assert [row["label"] for row in rows[20:]] == pytest.approx([label] * 80, abs=1e-3)
    flips = changes["noise"] == "posterior" and share > 0
    assert [row["is_flipped"] for row in rows] == [flips] * 20 + [False] * 80
    summary = json.loads((output / "summary.json").read_text())
    assert summary["flip_rate"] == pytest.approx(share)
    assert summary["share_wrong_low"] <= 0.2 <= summary["share_wrong_high"]


def test_noise_needs_a_calibrated_strength(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="noise=posterior needs a calibrated strength"):
        _noisy(tmp_path, RelabelConfig(**NOISE), num_members=5)


def test_a_vote_that_tells_nothing_leaves_labels_as_they_are(tmp_path: Path) -> None:
    """Unless a rate is given, of which the posterior is then the label's own: .8."""
    _noisy(tmp_path, RelabelConfig(**NOISE), weight_0=0.0)
    votes = read_rows(tmp_path / "strength" / "strength.jsonl")
    write_rows(
        tmp_path / "strength" / "strength.jsonl", ({**row, "strength_mean": 0.0} for row in votes)
    )
    inputs = {name: tmp_path / name for name in ("preferences", "strength")}
    for number, (changes, label) in enumerate(
        (({}, 1.0), ({"flip_rate": 0.2}, 0.8), ({"noise": "unbiased", "flip_rate": 0.2}, 4 / 3))
    ):
        config = RelabelConfig(**{**NOISE, **changes})
        with pytest.warns(UserWarning, match="no voter is better than chance"):
            output = run_stage("relabel", config, tmp_path / str(number), **inputs)
        rows = read_rows(output / "train.jsonl")
        assert [row["label"] for row in rows] == pytest.approx([label] * 100)


def test_noise_stands_in_place_of_what_goes_by_the_label_seen() -> None:
    with pytest.raises(ValidationError, match="flip_below must be off where noise is posterior"):
        RelabelConfig(noise="posterior")
    for changes in (
        {"flip_fraction": 0.1},
        {"smooth": "all"},
        {"weights": "probability"},
        {"drop_against": "all"},
        {"keep_to": 0.9},
        {"response_ratings": True},
    ):
        with pytest.raises(
            ValidationError, match=f"{next(iter(changes))} must be off where noise is unb"
        ):
            RelabelConfig(**{**NOISE, "noise": "unbiased", **changes})
    RelabelConfig(**{**NOISE, "margin_scale": 0.3, "max_pairs": 10})


def test_a_person_that_read_a_pair_leaves_no_noise(tmp_path: Path) -> None:
    review = tmp_path / "review" / "review.jsonl"
    review.parent.mkdir()
    review.write_text(json.dumps({"id": "p0", "verdict": "keep"}) + "\n")
    rows = [{"id": f"p{n}", "prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(2)]
    for split, pairs in (("train", rows), ("validation", []), ("test", [])):
        write_rows(tmp_path / "preferences" / f"{split}.jsonl", pairs)
    votes = [{"id": row["id"], "strength_mean": 1.0} for row in rows]
    write_rows(tmp_path / "strength" / "strength.jsonl", votes)
    (tmp_path / "strength" / "summary.json").write_text('{"weight_0": 1.0}')
    inputs = {name: tmp_path / name for name in ("preferences", "strength", "review")}
    config = RelabelConfig(flip_below=None, noise="unbiased", flip_rate=0.2, review="review.jsonl")
    found = read_rows(run_stage("relabel", config, tmp_path, **inputs) / "train.jsonl")
    assert [row["label"] for row in found] == pytest.approx([1.0, 4 / 3])


def _by_ratings(games: list[tuple[str, str, str]], flipped: Sequence[int] = ()) -> Relabel:
    """Of pairs (prompt, chosen, rejected), of which the strength has flipped some."""
    pairs = [{"prompt": p, "chosen": better, "rejected": worse} for p, better, worse in games]
    ones = torch.ones(len(pairs), dtype=torch.float64)
    is_flipped = torch.zeros(len(pairs), dtype=torch.bool)
    is_flipped[list(flipped)] = True
    counted = torch.ones(len(pairs), dtype=torch.bool)
    return relabel_by_ratings(pairs, Relabel(is_flipped, ones, 0.5 * ones, ones), counted)


def test_labels_that_contradict_each_other_correct_each_other() -> None:
    # Of four responses a and b are better than c and d, but d is labelled better than a: a and b
    # have two of three games each, c and d one.
    right = [("p", "a", "b"), ("p", "a", "c"), ("p", "b", "c"), ("p", "b", "d"), ("p", "c", "d")]
    found = _by_ratings([*right, ("p", "d", "a")])
    assert found.is_flipped.tolist() == [False] * 5 + [True]
    alike, apart = [0, 4], [1, 2, 3, 5]
    assert found.label[alike].tolist() == pytest.approx([0.5, 0.5])
    assert found.label[apart].tolist() == pytest.approx([float(found.label[1])] * 4)
    assert 0.6 < found.label[1] < 0.9
    # A margin is for the order after the flip.
    assert found.margin.tolist() == [0.5] * 5 + [-0.5]
    assert found.weight.tolist() == [1.0] * 6
    # What the strength has flipped already stays so.
    again = _by_ratings([*right, ("p", "d", "a")], flipped=[5])
    assert again.is_flipped.tolist() == [False] * 5 + [True]
    assert again.label[5] > found.label[5] and again.margin.tolist() == [0.5] * 6


def test_ratings_are_of_one_prompts_responses() -> None:
    # A single game and a tie of a tenth: 1.05 of 1.1; the other prompt's games do not count.
    found = _by_ratings([("p", "a", "b"), ("q", "b", "a"), ("q", "b", "a")])
    assert found.label.tolist() == pytest.approx([1.05 / 1.1, 2.05 / 2.1, 2.05 / 2.1])
    assert not found.is_flipped.any()
    same = _by_ratings([("p", "a", "a")])
    assert same.label.tolist() == [1.0]


def test_response_ratings_are_a_treatment(tmp_path: Path) -> None:
    config = RelabelConfig(flip_below=None, response_ratings=True)
    rows = read_rows(_relabel(tmp_path, config))
    # The same two responses four times: 4.05 of 4.1.
    assert [row["label"] for row in rows] == pytest.approx([4.05 / 4.1] * 4)
