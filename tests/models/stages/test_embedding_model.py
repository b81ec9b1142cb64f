"""Preference models on sentence embeddings: the likelihood's maximum, and no pair sees itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from tests.models.conftest import run_stage
from trimtab.models.config.reward import EmbeddingModelConfig, EmbeddingsConfig
from trimtab.models.data.records import read_rows
from trimtab.models.stages.embedding_model import (
    Answers,
    LinearModel,
    _fit_unopposed,
    _stacking_weights,
    bradley_terry,
    features_of,
    folds_of,
    linear_scores,
    nearest_scores,
    places_of,
    planted_flips,
    rating_scores,
    ratings_of,
    read_answers,
    style_of,
    with_flips,
)
from trimtab.models.training.data import write_rows
from trimtab.models.training.stage import Stage

KINDS = ("linear", "nearest")


def test_weights_are_the_maximum_of_the_penalised_likelihood() -> None:
    """The weights of one category are those for all and its own: the gradient of both is 0."""
    generator = np.random.default_rng(0)
    difference = generator.normal(size=(40, 3))
    label = generator.choice([1.0, 0.7, 0.5], size=40)
    place = generator.choice([0, 1, 2], size=40)
    # Of a fourth category there is no pair.
    found = bradley_terry(difference, place, label, 0.5, np.zeros((5, 3)))
    assert not found[3:].any()
    own = np.where(place[:, None] > 0, found[place], 0)
    excess = expit((difference * (found[0] + own)).sum(1)) - label
    gradient = found / 0.5
    gradient[0] += excess @ difference
    for category in (1, 2):
        gradient[category] += excess[place == category] @ difference[place == category]
    assert np.abs(gradient).max() < 1e-3
    # From other weights, and in single precision, it comes to the same.
    again = bradley_terry(difference.astype(np.float32), place, label, 0.5, found + 1)
    np.testing.assert_allclose(again, found, atol=1e-4)
    # One certain pair is enough.
    one = bradley_terry(difference[:1], np.zeros(1, int), np.ones(1), 1.0, np.zeros((1, 3)))
    assert one[0] @ difference[0] > 0


def _answers(count: int, seed: int, wrong: int = 0) -> Answers:
    """Pairs of which the answer further along the first axis is better; the first are wrong."""
    generator = np.random.default_rng(seed)
    embedding = generator.normal(size=(count, 2, 8)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=-1, keepdims=True)
    worse = embedding[:, 0, 0] < embedding[:, 1, 0]
    worse[:wrong] = ~worse[:wrong]
    embedding[worse] = embedding[worse][:, ::-1]
    rows = [
        {"id": str(n), "prompt": f"{seed} {n // 2}", "chosen": f"a {n}", "rejected": f"b {n}"}
        for n in range(count)
    ]
    return Answers(rows, embedding, np.arange(count) // 2 + 1000 * seed, np.ones(count))


def _scores(kind: str, train: Answers, test: Answers, **settings: Any) -> dict[str, Any]:
    config = EmbeddingModelConfig(kind=kind, **settings)
    answers = {"train": train, "validation": test, "test": test}
    if kind == "nearest":
        return nearest_scores(answers, config)
    return linear_scores(answers, config)[0]


@pytest.mark.parametrize(("kind", "right"), [("linear", 0.9), ("nearest", 0.8)])
def test_it_learns_what_is_better_and_finds_the_wrong_labels(kind: str, right: float) -> None:
    found = _scores(kind, _answers(400, 1, wrong=40), _answers(200, 2))
    gap = {split: own[:, 0] - own[:, 1] for split, own in found.items()}
    assert (gap["test"] > 0).mean() > right
    assert (gap["train"][:40] < 0).mean() > right - 0.05
    assert (gap["train"][40:] > 0).mean() > right - 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_is_scored_by_a_model_of_its_own_prompt(kind: str) -> None:
    train, test = _answers(60, 1), _answers(10, 2)
    embedding, settings = train.embedding.copy(), {"num_neighbours": 5}
    before = _scores(kind, train, test, **settings)["train"]
    # Two pairs share a prompt: both swapped, both have the scores they had.
    embedding[:2] = embedding[:2, ::-1]
    swapped = Answers(train.rows, embedding, train.prompt, train.label)
    after = _scores(kind, swapped, test, **settings)["train"]
    np.testing.assert_allclose(after[:2], before[:2, ::-1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(after[2:], before[2:])


def test_a_category_of_one_prompt_alone_is_scored_by_what_is_for_all() -> None:
    """It is in no other fold: the last by name, so that weights of it are missed if any are."""
    train = _answers(60, 1)
    rows = [{**row, "category": "z" if row["prompt"] == "1 0" else "a"} for row in train.rows]
    train = Answers(rows, train.embedding, train.prompt, train.label)
    answers = {"train": train, "validation": train[np.arange(0)], "test": _answers(10, 2)}
    scores, _ = linear_scores(answers, EmbeddingModelConfig())
    assert np.isfinite(scores["train"]).all()
    assert scores["test"].shape == (10, 2)


def test_each_category_may_prefer_what_another_does_not() -> None:
    """Longer answers are better in one and worse in the other; in a third, what is for all."""
    texts = {"short": "a b", "long": "a b c d e f g h"}
    rows = [
        {"id": f"{n}", "prompt": f"{n}", "category": category}
        | {"chosen": texts[better], "rejected": texts[worse]}
        for n in range(60)
        for category, better, worse in (
            [("helpful", "long", "short"), ("harmless", "short", "long")][n % 2],
        )
    ]
    vectors = np.random.default_rng(0).normal(size=(60, 2, 4)).astype(np.float32)
    train = Answers(rows, vectors, np.arange(60), np.ones(60))
    asked = [{**rows[0], "category": name} for name in ("helpful", "harmless", "of no pair")]
    test = Answers(asked, vectors[:1].repeat(3, 0), np.arange(3), np.ones(3))
    features = features_of(train, EmbeddingModelConfig())
    assert features.shape == (60, 2, 5)
    assert np.expm1(features[0, :, 4]).round(4).tolist() == [8, 2]
    assert places_of(test, ["harmless", "helpful"]).tolist() == [2, 1, 0]
    scores, summary = linear_scores(
        {"train": train, "validation": train[np.arange(0)], "test": test}, EmbeddingModelConfig()
    )
    gap = scores["test"][:, 0] - scores["test"][:, 1]
    assert gap[0] > 0 > gap[1]
    assert abs(gap[2]) < min(gap[0], -gap[1])
    assert scores["validation"].shape == (0, 2)
    assert summary["cross_fitted_loss"] < np.log(2)


def _linear_model(answers: Answers) -> LinearModel:
    """Of the vectors alone, learned from all pairs."""
    count = len(answers.rows)
    everyone = np.ones(count, bool)
    return LinearModel(answers.embedding, np.zeros(count, int), answers.label, everyone)


def test_what_other_folds_contradict_is_left_out_by_hand() -> None:
    """Of answers on a line four pairs prefer the right one, and the fifth, alone in its fold, the
    left one. A sixth is not asked about."""
    vectors = np.array([[[1.0], [0.0]]] * 4 + [[[0.0], [1.0]], [[0.0], [5.0]]])
    model = LinearModel(vectors, np.zeros(6, int), np.ones(6), np.ones(6, bool))
    used, folds = np.array([True] * 5 + [False]), np.array([0, 0, 1, 1, 2, 3])
    kept = model.unopposed(used, folds, 1.0, model.zeros)
    assert kept.tolist() == [True] * 4 + [False, False]


def test_a_second_fit_finds_more_of_many_wrong_labels_and_no_pair_sees_itself() -> None:
    answers = _answers(600, 1, wrong=180)
    folds = np.arange(600) % 5
    model = _linear_model(answers)
    starts: dict[int | None, Any] = {
        fold: model.fit(folds != fold, 0.1, model.zeros) for fold in range(5)
    }
    starts[None] = model.fit(np.ones(600, bool), 0.1, model.zeros)
    again, weights = _fit_unopposed(model, folds, 0.1, starts)
    is_wrong = np.arange(600) < 180
    once = np.zeros((600, 2))
    for fold in range(5):
        once[folds == fold] = model.scores(folds == fold, starts[fold])

    def auroc(scores: Any) -> float:
        return float(roc_auc_score(is_wrong, scores[:, 1] - scores[:, 0]))

    assert auroc(again) > auroc(once) + 0.005
    assert weights[0].argmax() == np.abs(weights[0]).argmax() == 0
    # Swapped, a pair has the scores it had.
    embedding = answers.embedding.copy()
    embedding[0] = embedding[0, ::-1]
    swapped = _linear_model(replace(answers, embedding=embedding))
    np.testing.assert_allclose(
        _fit_unopposed(swapped, folds, 0.1, starts)[0][0], again[0, ::-1], rtol=1e-3, atol=1e-4
    )


def test_fits_are_added_up_as_far_as_they_tell_the_labels() -> None:
    """The first is right as often as not: alone it stays as it is."""
    gap = np.array([[0.0, 1.0], [1.0, 0.0]] * 4)
    label = np.ones(8)
    assert _stacking_weights(gap, -gap, label) == (1.0, 0.0)
    right = np.array([[1.0, 0.0]] * 8)
    first, second = _stacking_weights(gap, right, label)
    assert second > 1 > first
    # Of labels of .7 the log-odds are log(7 / 3), whatever is said of ties.
    soft = np.full(8, 0.7)
    assert _stacking_weights(gap, right, soft) == pytest.approx((0.0, np.log(7 / 3)), abs=2e-3)


def test_ratings_are_the_maximum_of_the_penalised_likelihood() -> None:
    generator = np.random.default_rng(0)
    players = np.array([generator.choice(6, 2, replace=False) for _ in range(30)])
    label = generator.choice([1.0, 0.7], size=30)
    found = ratings_of(players, label, 8, 0.5)
    assert found[6:].tolist() == [0, 0]
    gradient = found / 0.5
    for (better, worse), given in zip(players, label, strict=True):
        excess = expit(found[better] - found[worse]) - given
        gradient[better] += excess
        gradient[worse] -= excess
    assert np.abs(gradient).max() < 1e-3


def test_an_answer_is_rated_by_its_other_pairs() -> None:
    """`a` wins against each of 30 others, but for one label; b and c stand in one pair alone."""
    rows = [{"id": f"{n}", "prompt": "q", "chosen": "a", "rejected": f"r{n}"} for n in range(30)]
    rows[7] = {**rows[7], "chosen": "r7", "rejected": "a"}
    rows.append({"id": "alone", "prompt": "q", "chosen": "b", "rejected": "c"})
    train = Answers(rows, np.zeros((31, 2, 1), np.float32), np.zeros(31, int), np.ones(31))
    config = EmbeddingModelConfig(kind="ratings", fold_by="pair")
    scores, summary = rating_scores({"train": train, "test": train[np.array([0, 30])]}, config)
    gap = scores["train"][:, 0] - scores["train"][:, 1]
    assert gap.argmin() == 7 and gap[7] < -0.3
    assert (np.delete(gap, [7, 30]) > 0.3).all()
    assert gap[30] == 0  # nothing is known of either from other pairs
    assert scores["test"][0, 0] > 0 > scores["test"][0, 1]
    assert summary["cross_fitted_loss"] < np.log(2)


def test_ratings_know_other_pairs_only() -> None:
    with pytest.raises(ValidationError, match="kind=ratings needs fold_by=pair, found prompt"):
        EmbeddingModelConfig(kind="ratings")
    with pytest.raises(ValidationError, match="kind=ratings reads no vector"):
        EmbeddingModelConfig(kind="ratings", encoder="policy", fold_by="pair")


def test_turns_of_one_dialogue_are_one_prompt(tmp_path: Path) -> None:
    first = "\n\nHuman: hello"
    prompts = [first, f"{first}\n\nAssistant: hi\n\nHuman: what?", "\n\nHuman: bye"]
    rows = [
        {"id": str(n), "prompt": prompt, "chosen": "a", "rejected": "b"}
        for n, prompt in enumerate(prompts)
    ]
    for split in ("train", "validation", "test"):
        write_rows(tmp_path / f"{split}.jsonl", rows)
    tensors = {split: np.zeros((3, 2, 4), np.float16) for split in ("train", "validation", "test")}
    save_file(tensors, tmp_path / "embeddings.safetensors")
    stage = Stage({"preferences": tmp_path, "embeddings": tmp_path}, tmp_path)
    assert read_answers(stage)["train"].prompt.tolist() == [0, 0, 1]


def _written(count: int) -> list[dict[str, Any]]:
    """Pairs of which the longer answer is better, whatever it says."""
    return [
        {"id": f"{n}", "prompt": f"{n}", "chosen": f"Well, it is {n}. " * 3, "rejected": f"no {n}"}
        for n in range(count)
    ]


def test_style_tells_how_an_answer_is_written_and_reads_no_vector() -> None:
    short, long = style_of("No."), style_of("Yes: 3 cats!\n- One.\n- Two.")
    assert len(short) == len(long)
    np.testing.assert_allclose(np.expm1(long[:3]), [7, 26, 3])  # words, characters, sentences
    assert np.expm1(long[10:12]).round(6).tolist() == [2, 2]  # line breaks, list marks
    assert np.isfinite(style_of("")).all()
    rows = _written(40)
    noise = np.random.default_rng(0).normal(size=(40, 2, 4)).astype(np.float32)
    train = Answers(rows, noise, np.arange(40), np.ones(40))
    other = Answers(rows, noise[::-1].copy(), np.arange(40), np.ones(40))
    found = [_scores("style", each, each) for each in (train, other)]
    assert (found[0]["train"][:, 0] > found[0]["train"][:, 1]).all()
    np.testing.assert_array_equal(found[0]["train"], found[1]["train"])
    beside = features_of(train, EmbeddingModelConfig(with_style=True))
    assert beside.shape == (40, 2, 4 + len(short))


def test_style_counts_letters_of_scripts_without_blanks_as_words() -> None:
    """Eight letters, two sentences, of two different letters twice each."""
    style = style_of("很好很好。再来再来！")
    np.testing.assert_allclose(np.expm1(style[:4]), [8, 10, 2, 4])
    assert (style[4], style[5], style[12]) == (0.5, 1.0, 1.0)


def test_folds_by_pair_part_a_prompt_but_not_the_same_two_answers() -> None:
    rows = [
        {"id": f"{n}", "prompt": "the same", "chosen": f"good {n}", "rejected": f"bad {n}"}
        for n in range(10)
    ]
    swapped = {"chosen": "bad 0", "rejected": "good 0", "prompt": "another"}
    rows.append({**rows[0], "id": "swapped", **swapped})
    folds = folds_of(rows, 5, "pair")
    assert sorted(folds[:10].tolist()) == sorted(list(range(5)) * 2)
    assert folds[10] == folds[0]
    assert planted_flips(rows, 0.3)[0] == planted_flips(rows, 0.3)[10]
    with pytest.raises(ValueError, match="num_folds"):  # two prompts are two parts
        folds_of(rows, 5, "prompt")


def test_a_copy_under_another_prompt_does_not_tell_the_nearest_its_label() -> None:
    """Labels drawn at random, each pair twice: nothing can be known of them."""
    own = _answers(200, 1, wrong=0)
    is_flipped = np.random.default_rng(5).random(200) < 0.5
    embedding = np.where(is_flipped[:, None, None], own.embedding[:, ::-1], own.embedding)
    rows = [{**row, "chosen": f"a{n}", "rejected": f"b{n}"} for n, row in enumerate(own.rows)]
    twice = Answers(
        rows + [{**row, "id": f"copy {row['id']}"} for row in rows],
        np.concatenate([embedding, embedding]),
        np.arange(400),
        np.ones(400),
    )
    config = EmbeddingModelConfig(kind="nearest", num_neighbours=3)
    found = nearest_scores({"train": twice, "test": twice[np.arange(0)]}, config)["train"]
    assert 0.3 < (found[:, 0] > found[:, 1]).mean() < 0.7


def test_planted_flips_are_the_same_for_all_voters_and_are_found(tmp_path: Path) -> None:
    """Turned round before anything is learned: what is written is of the copy."""
    rows = _written(400)
    is_flipped = planted_flips(rows, 0.1)
    assert is_flipped.sum() == 40
    assert planted_flips(rows[:60], 0.05).sum() == 10
    assert planted_flips(rows[:20], 0.05).sum() == 4
    assert np.array_equal(is_flipped[::-1], planted_flips(rows[::-1], 0.1))
    assert not planted_flips(rows, 0.0).any()
    assert (planted_flips(rows, 0.2) | ~is_flipped).all()  # more are these and others
    answers = Answers(rows, np.zeros((400, 2, 2), np.float32), np.arange(400), np.ones(400))
    answers.embedding[:, 0] = 1
    copy = with_flips(answers, is_flipped)
    assert copy.rows[int(is_flipped.argmax())]["chosen"].startswith("no ")
    assert np.array_equal(copy.embedding[:, 1, 0] == 1, is_flipped)

    preferences, vectors = tmp_path / "preferences", tmp_path / "vectors"
    for split, own in (("train", rows), ("validation", []), ("test", [])):
        write_rows(preferences / f"{split}.jsonl", own)
    vectors.mkdir()
    tensors = {"train": answers.embedding.astype(np.float16)}
    tensors |= {split: np.zeros((0, 2, 2), np.float16) for split in ("validation", "test")}
    save_file(tensors, vectors / "embeddings.safetensors")
    inputs = {"preferences": preferences, "embeddings": vectors}
    for kind in ("style", "linear"):
        (tmp_path / kind).mkdir()
        config = EmbeddingModelConfig(kind=kind, planted_share=0.1, num_neighbours=5)
        scored = read_rows(
            run_stage("embedding_model", config, tmp_path / kind, **inputs) / "scores.jsonl"
        )
        assert [row["is_planted"] for row in scored] == is_flipped.tolist()
        contradicted = np.array([row["chosen_score"] < row["rejected_score"] for row in scored])
        assert np.array_equal(contradicted, is_flipped), kind


def _preferences(folder: Path) -> Path:
    texts = [
        ("the cake is sweet", "an engine is loud"),
        ("sugar and honey", "a loud lorry"),
        ("fresh fruit tart", "a motor saw"),
        ("the cake is sweet", "a jet engine"),
    ]
    for split in ("train", "validation", "test"):
        rows = [
            {"id": f"{split}{n}", "prompt": f"{split} {n}", "chosen": good, "rejected": bad}
            for n, (good, bad) in enumerate(texts * 3)
        ]
        write_rows(folder / "preferences" / f"{split}.jsonl", rows)
    return folder / "preferences"


def test_only_labels_that_are_surer_than_half_of_them_are_flipped() -> None:
    rows = [
        {"prompt": f"{n}", "chosen": f"c{n}", "rejected": f"r{n}", "label": 0.5 + n / 400}
        for n in range(200)
    ]
    is_flipped = planted_flips(rows, 0.1)
    assert is_flipped.sum() == 20 and not is_flipped[:100].any()
    # Where half of the labels are certain these are flipped, and of ties none ever is.
    certain = [{**row, "label": 1.0} if n % 2 else row for n, row in enumerate(rows)]
    assert planted_flips(certain, 0.1).sum() == 20 and not planted_flips(certain, 0.1)[::2].any()
    assert not planted_flips([{**row, "label": 0.5} for row in rows], 0.1).any()
    # A copy of a pair whose label is less sure keeps both from being flipped.
    copies = [*rows[100:], *({**row, "label": 0.6} for row in rows[100:])]
    assert not planted_flips(copies, 0.1).any()


def test_the_stages_write_scores_as_a_reward_model_does(tmp_path: Path) -> None:
    preferences = _preferences(tmp_path)
    (tmp_path / "e").mkdir()
    embeddings = run_stage(
        "embeddings", EmbeddingsConfig(), tmp_path / "e", preferences=preferences
    )
    found = load_file(embeddings / "embeddings.safetensors")["train"]
    assert found.shape == (12, 2, 384)
    np.testing.assert_allclose(np.linalg.norm(found.astype(float), axis=-1), 1, atol=2e-3)
    # Each text has its own place: the first answer of the first pair is the fourth's too.
    assert np.array_equal(found[0, 0], found[3, 0])
    assert not np.array_equal(found[0, 1], found[3, 1])
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        config = EmbeddingModelConfig(kind=kind, num_neighbours=4)
        inputs = {"preferences": preferences, "embeddings": embeddings}
        output = run_stage("embedding_model", config, folder, **inputs)
        rows = read_rows(output / "scores.jsonl")
        # Who reads the vectors says how much of the texts the encoder knew.
        told = json.loads((output / "summary.json").read_text())
        assert told.get("share_unknown_tokens") == (None if kind in ("style", "ratings") else 0.0)
        assert [row["id"] for row in rows[11:13]] == ["train11", "validation0"]
        assert not any(row["was_trained_on"] for row in rows)
        assert all(row["chosen_score"] > row["rejected_score"] for row in rows)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    preferences = _preferences(tmp_path)
    for name, count in (("few", 11), ("all", 12)):
        (tmp_path / name).mkdir()
        tensors = {s: np.zeros((count, 2, 4), np.float16) for s in ("train", "validation", "test")}
        save_file(tensors, tmp_path / name / "embeddings.safetensors")
    stage = Stage({"preferences": preferences, "embeddings": tmp_path / "few"}, tmp_path)
    with pytest.raises(ValueError, match="train: 11 embedded pairs, but 12 pairs"):
        read_answers(stage)
    with pytest.raises(ValueError, match=r"num_folds must be in \[2, 12\] .*, found 13"):
        run_stage(
            "embedding_model",
            EmbeddingModelConfig(num_folds=13),
            tmp_path,
            preferences=preferences,
            embeddings=tmp_path / "all",
        )
