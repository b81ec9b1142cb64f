"""What finds wrong labels, and reward models on labels that were treated by it.

Material of `tests.bench.cleaning`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from tests.bench.cleaning_data import Array, Case
from trimtab.flows.config.recipes.human import audit
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.config.reward import EmbeddingModelConfig, RelabelConfig
from trimtab.models.functional.relabel import Relabel
from trimtab.models.functional.strength import calibrated_strength
from trimtab.models.judge.build import build_judge
from trimtab.models.judge.judge import Comparison
from trimtab.models.stages.embedding_model import (
    Answers,
    features_of,
    preference_scores,
)
from trimtab.models.stages.relabel import apply_treatments

# Log length beside the embedding.
PLAIN = EmbeddingModelConfig()
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
PEERS = 1e-3
NUM_PARTS = 3
AUDIT = "Trimtab's audit"
BEFORE = "the audit, neither ratings nor second fit"
LINEAR = "linear, embedding and style"
LEARNING, IN_SAMPLE = "confident learning (cleanlab)", "the same, in-sample"
# Of the voters of the recipe `audit`, by their roles.
VOTERS = {
    "style": "style alone",
    "embedding_linear": LINEAR,
    "embedding_nearest": "nearest neighbours",
    "ratings": "ratings of answers that recur",
}
# How often the judges of the synthetic world are right.
JUDGES = (0.7, 0.9)
NO_TREATMENT = RelabelConfig(flip_below=None)


@dataclass(frozen=True)
class Found:
    """strength: (N,), the lower the more a label looks wrong. flagged: (N,) bool. seconds: of one
    core. gaps: (N,) by voter, of a method that has several."""

    strength: Array
    flagged: Array
    seconds: float
    gaps: Array | None = None


def find(case: Case, seed: int) -> dict[str, Found]:
    """Every method on the pairs of a case."""
    train = case.train
    random = np.random.default_rng(seed).permutation(len(train.rows))
    methods = {"at random": Found(random, np.zeros(len(random), bool), 0.0)}
    length = difference_of(train, PLAIN)[:, -1]
    methods["length"] = Found(length, length < 0, 0.0)
    methods |= _by_learning(case)
    configs = {VOTERS[config.name]: config for config in audit().embedding_models}
    voters = {name: _timed(_gap(train, config)) for name, config in configs.items()}
    once = configs[LINEAR].model_copy(update={"second_fit": False})
    plain = _timed(_gap(train, once))
    before = {**voters, LINEAR: plain}
    del before[VOTERS["ratings"]]
    methods |= {f"{LINEAR}, fitted once": plain} | voters
    methods |= {BEFORE: _combined(before), AUDIT: _combined(voters)}
    for accuracy in JUDGES if case.has_gold else ():
        name, judged = f"a judge that is right in {accuracy:.0%}", judge(train, accuracy, seed)
        methods |= {name: judged, f"the audit and {name}": _combined({**voters, name: judged})}
    return methods


def judge(train: Answers, accuracy: float, seed: int) -> Found:
    """The synthetic world's gold scorer, whose verdict on a pair is right with this probability,
    whatever the pair and its label."""
    questions = [Comparison(row["prompt"], row["chosen"], row["rejected"]) for row in train.rows]
    start = time.process_time()
    with TemporaryDirectory() as folder:
        config = JudgeConfig(gold_accuracy=accuracy)
        verdicts = build_judge(config, Path(folder), seed).compare(questions)
    prefers = np.array([(verdict.shown_first + verdict.shown_second) / 2 for verdict in verdicts])
    return Found(logit(prefers), prefers < 0.5, time.process_time() - start)


def _combined(voters: dict[str, Found]) -> Found:
    """The calibrated vote."""
    start = time.process_time()
    gaps = np.stack([voter.strength for voter in voters.values()])
    everyone = torch.ones(gaps.shape[1], dtype=torch.bool)
    strength = calibrated_strength(torch.from_numpy(gaps), everyone)[0].numpy()
    took = time.process_time() - start + sum(voter.seconds for voter in voters.values())
    return Found(strength, strength < 0, took, gaps)


def _gap(train: Answers, config: EmbeddingModelConfig) -> Callable[[], Array]:
    nobody = train[np.arange(0)]
    answers = {"train": train, "validation": nobody, "test": nobody}

    def gap() -> Array:
        scores = preference_scores(answers, config)[0]["train"]
        difference: Array = scores[:, 0] - scores[:, 1]
        return difference

    return gap


def _timed(compute: Callable[[], Array]) -> Found:
    start = time.process_time()
    strength = compute()
    return Found(strength, strength < 0, time.process_time() - start)


def _by_learning(case: Case) -> dict[str, Found]:
    """Confident learning, of each category by itself where test pairs have the same, and its model
    in-sample."""
    category = np.array([str(row["category"]) for row in case.train.rows])
    groups = [category == name for name in np.unique(category)] if case.has_categories else []
    parts = [(is_in, _confident_learning(case.train[np.flatnonzero(is_in)])) for is_in in groups]
    parts = parts or [(np.ones(len(category), bool), _confident_learning(case.train))]
    combined = {}
    for name in (LEARNING, IN_SAMPLE):
        strength, flagged = np.zeros(len(category)), np.zeros(len(category), bool)
        for is_in, methods in parts:
            strength[is_in], flagged[is_in] = methods[name].strength, methods[name].flagged
        took = sum(methods[name].seconds for _, methods in parts)
        combined[name] = Found(strength, flagged, took)
    return combined


def _confident_learning(train: Answers) -> dict[str, Found]:
    """Logistic regression on the difference of MiniLM embeddings and of log lengths, its penalty by
    cross-validation: with cleanlab's confident learning on cross-validated probabilities, and
    in-sample. Every other pair is turned round, as a classifier needs both classes."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    start = time.process_time()
    difference = difference_of(train, PLAIN)
    label = np.arange(len(difference)) % 2
    side = 2 * label - 1
    oriented = difference * side[:, None]
    label_entries = (np.arange(len(label)), label)

    def model(penalty: float) -> LogisticRegression:
        return LogisticRegression(C=penalty, fit_intercept=False, max_iter=1000)

    shares = {
        penalty: cross_val_predict(model(penalty), oriented, label, cv=5, method="predict_proba")
        for penalty in INVERSE_PENALTIES
    }
    best = max(shares, key=lambda penalty: float(np.log(shares[penalty][label_entries]).mean()))
    quality = get_label_quality_scores(label, shares[best])
    flagged = find_label_issues(label, shares[best], n_jobs=1)
    learned = Found(quality, flagged, time.process_time() - start)
    start = time.process_time()
    gap = difference @ model(best).fit(oriented, label).coef_[0]
    return {LEARNING: learned, IN_SAMPLE: Found(gap, gap < 0, time.process_time() - start)}


def difference_of(answers: Answers, config: EmbeddingModelConfig) -> Array:
    """Differences (N, D) of the features of the two answers, of unit spread."""
    features = features_of(answers, config).astype(float)
    difference: Array = features[:, 0] - features[:, 1]
    spread = np.sqrt((difference**2).mean(0))
    difference /= np.where(spread > 0, spread, 1)
    return difference


TREATMENTS: dict[str, RelabelConfig] = {
    "as given": NO_TREATMENT,
    "flip below 0": RelabelConfig(flip_below=0.0),
    "flip the weakest tenth, if below 0": RelabelConfig(flip_below=0.0, flip_fraction=0.1),
    "leave out below 0": RelabelConfig(flip_below=None, drop_below=0.0),
    "leave out the weakest tenth": RelabelConfig(flip_below=None, keep_from=0.1),
    "leave out what most voters contradict": RelabelConfig(
        flip_below=None, drop_against="majority"
    ),
    "leave out what all voters contradict": RelabelConfig(flip_below=None, drop_against="all"),
    "weigh by probability": RelabelConfig(flip_below=None, weights="probability"),
    "flip below 0, weigh by probability": RelabelConfig(flip_below=0.0, weights="probability"),
    "smooth all": RelabelConfig(flip_below=None, smooth="all"),
    "smooth what is below 0": RelabelConfig(flip_below=None, smooth="negative"),
    "margin": RelabelConfig(flip_below=None, margin_scale=0.3, margin_clip=1.0),
}


def train_on(case: Case, methods: dict[str, Found]) -> dict[str, float]:
    """Accuracy on the test pairs of a reward model on the labels, by treatment."""
    audited = methods[AUDIT]
    assert audited.gaps is not None
    favour, against = (audited.gaps > 0).sum(0), (audited.gaps < 0).sum(0)
    votes = [
        {"strength_mean": mean, "num_for": int(num_for), "num_against": int(others)}
        for mean, num_for, others in zip(audited.strength.tolist(), favour, against, strict=True)
    ]
    rows, count = list(case.train.rows), len(case.train.rows)
    labels = {
        name: apply_treatments(config, rows, votes, [None] * count)
        for name, config in TREATMENTS.items()
    }
    as_given = labels["as given"]
    weight = torch.from_numpy(~methods[LEARNING].flagged).double()
    labels["leave out what confident learning finds"] = as_given._replace(weight=weight)
    labels["right labels"] = as_given._replace(is_flipped=torch.from_numpy(case.wrong))
    weight = torch.from_numpy(~case.wrong).double()
    labels["leave out the wrong ones"] = as_given._replace(weight=weight)
    model = RewardModels(case)
    weight = torch.from_numpy(model.kept_by_peers()).double()
    labels["peer selection"] = as_given._replace(weight=weight)
    return {name: model.accuracy(treatment) for name, treatment in labels.items()}


class RewardModels:
    """Bradley-Terry models, linear in MiniLM embedding and log length: one of each category where
    the test pairs have the same, else one of all."""

    def __init__(self, case: Case) -> None:
        train, test = (
            features_of(answers, PLAIN).astype(float) for answers in (case.train, case.test)
        )
        train, test = train[:, 0] - train[:, 1], test[:, 0] - test[:, 1]
        spread = np.sqrt((train**2).mean(0))
        spread = np.where(spread > 0, spread, 1)
        self.train, self.test = train / spread, test / spread
        prompts = int(case.train.prompt.max()) + 1
        self.fold = np.random.default_rng(0).integers(0, NUM_PARTS, prompts)[case.train.prompt]
        whose = [
            np.array([str(row["category"]) if case.has_categories else "" for row in answers.rows])
            for answers in (case.train, case.test)
        ]
        self.groups = [
            tuple(categories == name for categories in whose) for name in np.unique(whose[0])
        ]

    def accuracy(self, labels: Relabel) -> float:
        """On the test pairs, by the penalty under which the labels as treated are likeliest, each
        third of the prompts left out in turn."""
        treatment, num_right = _numbers(labels), 0
        for train, test in self.groups:
            best: tuple[float, float] | None = None
            starts = [np.zeros(self.train.shape[1])] * NUM_PARTS
            for penalty in INVERSE_PENALTIES:
                loss = 0.0
                for part, start in enumerate(starts):
                    is_in = train & (self.fold == part)
                    starts[part] = self._fit(treatment, train & ~is_in, penalty, start)
                    loss += _loss(self.train[is_in] @ starts[part], treatment[:, is_in])[0]
                if best is not None and loss > best[0]:
                    break  # the weaker the penalty, the longer it takes
                best = (loss, penalty)
            assert best is not None
            weights = self._fit(treatment, train, best[1], np.zeros(self.train.shape[1]))
            num_right += int((self.test[test] @ weights > 0).sum())
        return num_right / len(self.test)

    def kept_by_peers(self) -> Array:
        """(N,) bool: two models, each on half of the pairs. Each keeps for the other, three times,
        what it labels alike; as in collaborative reward modeling [arXiv 2505.10597], but by
        turns, and by the sign of a gap in place of a schedule of shares."""
        count = len(self.train)
        treatment = np.stack([np.ones(count), np.ones(count), np.zeros(count)])
        half = np.random.default_rng(1).integers(0, 2, count) == 0
        is_kept = np.ones(count, bool)
        start = np.zeros(self.train.shape[1])
        for _ in range(3):
            gap = np.zeros(count)
            for train, _ in self.groups:
                for is_in in (half, ~half):
                    weights = self._fit(treatment, train & is_in & is_kept, PEERS, start)
                    gap[train & ~is_in] = self.train[train & ~is_in] @ weights
            is_kept = gap > 0
        return is_kept

    def _fit(self, treatment: Array, used: Array, penalty: float, start: Array) -> Array:
        """Weights (D,) of the largest penalised likelihood of labels (3, N)."""
        used = used & (treatment[0] > 0)
        difference, treatment_used = self.train[used], treatment[:, used]
        count = max(1, len(difference))

        def loss(weights: Array) -> tuple[float, Array]:
            value, slope = _loss(difference @ weights, treatment_used)
            penalised = (value + weights @ weights / (2 * penalty)) / count
            return float(penalised), (slope @ difference + weights / penalty) / count

        options = {"maxiter": 500, "gtol": 1e-6}
        solution: Array = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
        return solution


def _numbers(labels: Relabel) -> Array:
    """(3, N): weight, probability that the answer given as the better one is, and margin of it."""
    is_flipped = labels.is_flipped.numpy()
    label, margin = labels.label.numpy(), labels.margin.numpy()
    return np.stack(
        [
            labels.weight.numpy(),
            np.where(is_flipped, 1 - label, label),
            np.where(is_flipped, -margin, margin),
        ]
    )


def _loss(gap: Array, treatment: Array) -> tuple[float, Array]:
    """The sum of the pairs' ranking losses, as `ranking_losses` has them, and its slopes (N,)."""
    weight, label, margin = treatment
    gap = gap - margin
    value = -(weight * (label * log_expit(gap) + (1 - label) * log_expit(-gap))).sum()
    slope: Array = weight * (expit(gap) - label)
    return float(value), slope
