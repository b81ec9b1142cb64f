"""The scorecard's numbers against values derived by hand (see the tables in conftest)."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.run.claims import answer_of, status_of
from trimtab.models.reporting.run.labels import (
    label_noise,
    most_doubted,
    relabelling,
    strength_groups,
    voting_mode,
)
from trimtab.models.reporting.run.policies import final_policy
from trimtab.models.reporting.run.scorecard import assemble, scorer_warnings, summary_of
from trimtab.models.reporting.run.scorers import (
    CategoryScores,
    LengthBaseline,
    Scorer,
    length_baseline,
    measure,
    overconfidence,
)
from trimtab.models.statistics.calibration import auroc
from trimtab.models.statistics.estimates import (
    auroc_estimate,
    biased_estimate,
    cluster_ids,
    fraction_estimate,
    mean_estimate,
    net_estimate,
    redraw,
    share_estimate,
    spearman_estimate,
)
from trimtab.models.statistics.measured import Estimate

Inputs = dict[str, Path]


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    assert estimate.low <= estimate.value <= estimate.high
    return estimate.value


def test_planted_noise_by_hand(label_inputs: Inputs) -> None:
    noise = label_noise(Artifacts(label_inputs), "strength", "in_sample", 0)
    # Minus the strength: flips 2 and -0.5; others -1, 1, 0.2, -3. Flip 2 beats 4, -0.5 beats 2.
    assert value(noise.auroc_flipped) == pytest.approx(6 / 8)
    # Without the near-tie (0.2): 3 and 2 of 3 each.
    assert value(noise.auroc_flipped_clear) == pytest.approx(5 / 6)
    # Wrong: 2, -0.5, 0.2; right: -1, 1, -3. They beat 3, 2 and 2 of 3.
    assert value(noise.auroc_wrong) == pytest.approx(7 / 9)
    # Below 0 are t0, t3, t4; wrong among them t0, t4; wrong in all t0, t1, t4.
    assert value(noise.negative_precision) == pytest.approx(2 / 3)
    assert value(noise.negative_recall) == pytest.approx(2 / 3)
    assert value(noise.share_negative) == pytest.approx(3 / 6)
    assert noise.mean_strength == pytest.approx(1.3 / 6)


def test_length_is_a_baseline_of_the_audit(label_inputs: Inputs) -> None:
    """Of the first flip alone the answer labelled better is the shorter one."""
    path = label_inputs["preferences"] / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {"chosen": "three words here", "rejected": "two words"}
    flips = [row for row in map(json.loads, open_truth(label_inputs)) if row["kind"] == "flipped"]
    first = next(row for row in rows if row["id"] == flips[0]["id"])
    first |= {"chosen": "one", "rejected": "three words here"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    noise = label_noise(Artifacts(label_inputs), "length", "length", 0)
    # One flip beats the four others, the second ties with them.
    assert value(noise.auroc_flipped) == pytest.approx((4 + 4 / 2) / 8)
    assert value(noise.share_negative) == pytest.approx(1 / 6)
    assert (noise.num_members, noise.mean_std) == (1, 0.0)


def open_truth(inputs: Inputs) -> list[str]:
    return (inputs["preferences"] / "truth.jsonl").read_text().splitlines()


def test_relabelling_by_hand(label_inputs: Inputs) -> None:
    found = relabelling(Artifacts(label_inputs))
    assert found is not None
    assert (found.num_flipped, found.num_unsupported_flips) == (3, 0)
    assert value(found.flip_precision) == pytest.approx(2 / 3)
    assert value(found.flip_recall) == pytest.approx(2 / 3)
    # Right before: t2, t3, t5. After flipping t0, t3, t4: t0, t2, t4, t5.
    assert value(found.right_before) == pytest.approx(3 / 6)
    assert value(found.right_after) == pytest.approx(4 / 6)


def test_flips_that_no_member_supports_are_counted_and_a_warning(label_inputs: Inputs) -> None:
    """t1, t2 and t5 are flipped as well: both members score their chosen answers higher."""
    path = label_inputs["relabelled"] / "train.jsonl"
    rows = [{**json.loads(line), "is_flipped": True} for line in path.read_text().splitlines()]
    rows[2]["review"] = "flip"  # t2: a person did
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    card, _ = assemble(Artifacts(label_inputs), ReportConfig())
    assert card.relabelling is not None
    assert (card.relabelling.num_flipped, card.relabelling.num_unsupported_flips) == (6, 2)
    (warning,) = card.warnings
    assert "No ensemble member supports 2 of 6 flips" in warning
    assert summary_of(card)["num_unsupported_flips"] == 2
    without = {role: path for role, path in label_inputs.items() if not role.startswith("member")}
    unknown = relabelling(Artifacts(without))
    assert unknown is not None and unknown.num_unsupported_flips is None


def test_labels_that_came_soft_were_not_smoothed(label_inputs: Inputs) -> None:
    """t1 and t2 come with .8; relabelling leaves t1 and smooths t2 and t3."""
    given, treated = {"t1": 0.8, "t2": 0.8}, {"t1": 0.8, "t2": 0.74, "t3": 0.9}
    for role, labels in (("preferences", given), ("relabelled", treated)):
        path = label_inputs[role] / "train.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | ({"label": labels[row["id"]]} if row["id"] in labels else {}) for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = relabelling(Artifacts(label_inputs))
    assert found is not None
    assert found.share_smoothed == pytest.approx(2 / 6)


def _scorer(accuracy: float, **by_category: float) -> Scorer:
    """Of accuracy with an interval of two points each way, in all pairs and in categories."""

    def share(value: float) -> Estimate:
        return Estimate(value, value - 0.02, value + 0.02, 1000)

    measures = {field.name: None for field in dataclasses.fields(Scorer)}
    categories = {
        name: CategoryScores(0.0, 1.0, 500, share(value)) for name, value in by_category.items()
    }
    given = {"role": "r", "num_trained_pairs": 9, "label_accuracy": share(accuracy)}
    return Scorer(**measures | given | {"categories": categories})


def test_a_reward_model_that_is_no_match_for_what_costs_nothing_is_warned_of() -> None:
    of_one_kind = _scorer(0.53, helpful=0.67, harmless=0.38)
    linear, nearest = _scorer(0.66), _scorer(0.60)
    scorers = {"baseline": of_one_kind, "states_linear": linear, "embedding_nearest": nearest}
    worse, wrong = scorer_warnings(scorers, None)
    assert "agrees with 53.0 % of the test labels" in worse
    assert "(linear on hidden states) with 66.0 %" in worse
    assert "In pairs of harmless the reward model prefers the answer labelled worse" in wrong
    # Where intervals meet, nothing is said; the relabelled model is the one that is asked about.
    assert scorer_warnings({"baseline": _scorer(0.63), "states_linear": linear}, None) == []
    assert scorer_warnings(scorers | {"relabelled": _scorer(0.64, harmless=0.49)}, None) == []
    length = LengthBaseline(Estimate(0.7, 0.69, 0.71, 1000), None, {})
    (longer,) = scorer_warnings({"baseline": linear}, length)
    assert "(difference in words) with 70.0 %" in longer
    assert scorer_warnings({}, length) == []


def test_scorer_by_hand(label_inputs: Inputs) -> None:
    scorer = measure(Artifacts(label_inputs), "member_0", 0)
    # Gaps 2, 0, 2, 0: ties are not right.
    assert value(scorer.label_accuracy) == 0.5
    # Near-tie e1 left out, e2 turned round: gaps 2, -2, 0.
    assert value(scorer.clean_accuracy) == pytest.approx(1 / 3)
    # Half the pairs at confidence 0.5, never right; half at sigmoid(2), always right.
    sure = 1 / (1 + math.exp(-2))
    expected = 0.5 * 0.5 + 0.5 * (1 - sure)
    assert value(scorer.label_ece_width) == pytest.approx(expected)
    too_sure = overconfidence(Artifacts(label_inputs), "member_0", 0)
    assert value(too_sure) == pytest.approx((sure + 0.5) / 2 - 0.5)
    # Clean: sigmoid(2) twice, right once; 0.5 once, wrong.
    expected = 2 / 3 * abs(sure - 0.5) + 1 / 3 * 0.5
    assert value(scorer.clean_ece_width) == pytest.approx(expected)
    # Category a: 2, 0, 1, 1, mean 1; b: 5, 3, 4, 4, mean 4; both deviate by sqrt(2/4).
    assert scorer.categories["a"].mean == pytest.approx(1.0)
    assert scorer.categories["b"].std == pytest.approx(math.sqrt(0.5))
    assert value(scorer.category_mean_spread) == pytest.approx(1.5)
    assert value(scorer.spread_ratio) == pytest.approx(1.5 / math.sqrt(0.5))
    assert scorer.num_trained_pairs == 6
    # Rejected is longer in all; ahead in none, and equal scores are no preference.
    assert value(scorer.longer_preferred) == 0.0
    # The answer twice: 3 - 2, 4 - 5, 8 - 4. None: -2, -5, -4.
    assert list(scorer.probes) == ["empty", "repeated"]
    assert value(scorer.probes["repeated"].shift) == pytest.approx(4 / 3)
    assert value(scorer.probes["repeated"].preferred) == pytest.approx(2 / 3)
    assert value(scorer.probes["empty"].shift) == pytest.approx(-11 / 3)
    assert value(scorer.probes["empty"].preferred) == 0.0


def test_length_baseline_by_hand(label_inputs: Inputs) -> None:
    found = length_baseline(Artifacts(label_inputs))
    assert found is not None
    # The rejected answer is the longer one throughout: right only where the label is wrong (e2).
    assert value(found.label_accuracy) == 0.0
    assert value(found.clean_accuracy) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_policies_by_hand(full_inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = {"right words": 0.7, "stupid": 0.0}
    monkeypatch.setattr(
        "trimtab.models.reporting.run.policies.quality", lambda _, response: judged[response]
    )
    config = ReportConfig(arms=("vanilla", "full"), rounds=(1, 2), has_gold=True)
    card, curves = assemble(Artifacts(full_inputs), config)
    by_name = {policy.name: policy for policy in card.policies}
    assert list(by_name) == ["sft", "full", "round_2"]  # vanilla was not run
    full = by_name["full"]
    assert list(full.sets) == ["main", "forget"]
    assert value(full.sets["main"].gold) == pytest.approx(0.6)
    # Log-probability -2 over 2 tokens, both answers: one nat a token.
    assert full.sets["main"].perplexity == pytest.approx(math.e)
    outcome = full.against_sft["main"]["gold"]
    assert value(outcome.win) == 0.5
    assert outcome.net == Estimate(0.5, 0.25, 0.75, 2)
    # Score 1 to 3 in units of the spread 2 at the start.
    assert full.drift is not None
    assert value(full.drift.score) == pytest.approx(1.0)
    # Gold: 0.7 in the first step, 0 in the last.
    assert value(full.drift.gold) == pytest.approx(-0.7)
    assert curves["full"].gold == pytest.approx([0.7, 0.7, 0.0])
    assert full.is_promoted is True
    assert by_name["round_2"].is_promoted is False
    for champion, expected in ((None, "full"), ("full", "full"), ("round_2", "round_2")):
        chosen = final_policy(card.policies, champion)
        assert chosen is not None
        assert chosen.name == expected
    assert card.verdict.answer == "better"
    assert card.verdict.sentence.startswith("Better: the final policy beats SFT on the main")
    statuses = {claim.name: claim.status for claim in card.claims}
    assert statuses["beats_sft"] == "fails"  # it wins, but the collapse guard spoke up
    assert statuses["second_round_not_worse"] == "unclear"
    assert statuses["advantage_model_comparable"] == "holds"
    assert summary_of(card)["full_main_gold_net"] == 0.5


def test_cross_fitted_votes_are_told_apart(label_inputs: Inputs) -> None:
    artifacts = Artifacts(label_inputs)
    assert voting_mode(artifacts, "strength") == "in_sample"
    worst = most_doubted(artifacts, 2)
    assert [row["id"] for row in worst] == ["t0", "t3"]
    assert worst[0]["votes"] == [-2.0, -2.0]
    assert worst[0]["num_against"] == 2
    abstains = {"chosen_score": None, "rejected_score": None}
    artifacts.rows("member_1", "scores.jsonl")[0].update(abstains)
    assert most_doubted(artifacts, 1)[0]["votes"] == [-2.0]
    artifacts.rows("strength", "strength.jsonl")[0]["num_members"] = 1
    assert voting_mode(artifacts, "strength") == "cross_fitted"
    assert most_doubted(artifacts, 1)[0]["votes"] == []  # both members were trained on it


def test_groups_hold_every_pair_once() -> None:
    rows = [
        {"strength_mean": float(i), "strength_std": 1.0, "truth": {"is_wrong": i < 3}}
        for i in range(7)
    ]
    groups = strength_groups(rows[::-1], 3)
    # Cuts at 0, 2, 5, 7 (7/3 and 14/3 rounded): means 0.5, 3, 5.5; wrong 0, 1 | 2 | none.
    assert [group["mean"] for group in groups] == pytest.approx([0.5, 3.0, 5.5])
    assert [group["share_wrong"] for group in groups] == pytest.approx([1.0, 1 / 3, 0.0])
    assert sum(group["count"] for group in groups) == 7
    assert len(strength_groups(rows[:2], 20)) == 2


@pytest.mark.parametrize(
    ("low", "high", "wanted", "or_equal", "status"),
    [
        (0.1, 0.2, "above", False, "holds"),
        (0.0, 0.2, "above", False, "unclear"),
        (0.0, 0.2, "above", True, "holds"),
        (-0.2, -0.1, "above", False, "fails"),
        (-0.2, -0.1, "below", False, "holds"),
        (-0.1, 0.1, "below", False, "unclear"),
        (0.1, 0.2, "below", False, "fails"),
    ],
)
def test_claims_follow_intervals(
    low: float, high: float, wanted: str, or_equal: bool, status: str
) -> None:
    estimate = Estimate((low + high) / 2, low, high, 10)
    assert status_of(estimate, 0.0, wanted, or_equal=or_equal) == status  # type: ignore[arg-type]


def test_verdict_needs_the_whole_interval() -> None:
    assert answer_of(Estimate(0.2, 0.01, 0.4, 10)) == "better"
    assert answer_of(Estimate(0.2, 0.0, 0.4, 10)) == "not shown to be better"
    assert answer_of(Estimate(-0.2, -0.4, -0.01, 10)) == "worse"


def test_intervals_against_the_binomial() -> None:
    values = (torch.arange(1000) < 300).double()
    found = share_estimate(values, None)
    assert found is not None
    # Standard error sqrt(0.3 * 0.7 / 1000) = 0.01449; 1.96 of it is 0.0284.
    assert found.low == pytest.approx(0.3 - 0.0284, abs=0.003)
    assert found.high == pytest.approx(0.3 + 0.0284, abs=0.003)
    other = biased_estimate(lambda index: float(values[index].mean()), 1000, 0)
    assert other.low == pytest.approx(0.3 - 0.0284, abs=0.005)
    assert mean_estimate(values, 0).value == found.value
    assert share_estimate([], None) is None
    assert auroc_estimate(values, torch.zeros(1000, dtype=torch.bool), 0) is None


def test_shares_of_all_or_nothing_are_not_certain() -> None:
    """All of 14, 14 / (14 + 1.96^2); of three prompts 3 / (3 + 1.96^2); wins the same, doubled."""
    prompts = [f"\n\nHuman: {number % 3}\n\nAssistant: {number}" for number in range(14)]
    for clusters, low in ((None, 0.78469), (cluster_ids(prompts), 0.43850)):
        share = share_estimate([True] * 14, clusters)
        assert share is not None
        assert (share.value, share.high, share.count) == (1.0, 1.0, 14)
        assert share.low == pytest.approx(low, abs=1e-5)
        net = net_estimate(torch.ones(14), clusters)
        assert (net.low, net.high) == (pytest.approx(2 * low - 1, abs=1e-5), 1.0)
        alike = fraction_estimate(torch.full((14,), 0.6), clusters, 0)
        assert alike.low < 0.6 - 1e-3 and alike.high > 0.6 + 1e-3
    # Fourteen above six others, in every resample: as sure as six of six, 6 / (6 + 1.96^2).
    scores = torch.arange(20.0)
    perfect = auroc_estimate(scores, scores > 5, 0)
    assert perfect is not None
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(0.60967, abs=1e-5)


SHARES = (
    *("label_accuracy", "clean_accuracy", "share_negative", "negative_precision"),
    *("negative_recall", "flip_precision", "flip_recall", "right_before", "right_after"),
    *("win", "tie", "lose", "auroc_flipped", "auroc_flipped_clear", "auroc_wrong"),
    *("accuracy_gain", "accuracy_change"),
)


@pytest.mark.slow
def test_no_share_of_a_scorecard_is_certain(full_inputs: Inputs) -> None:
    """Some of these are of one to six pairs, and 0 or 1."""
    config = ReportConfig(arms=("full",), rounds=(1, 2), has_gold=True)
    card, _ = assemble(Artifacts(full_inputs), config)
    found: list[str] = []

    def look(value: object, name: str) -> None:
        if isinstance(value, dict) and value.keys() == {"value", "low", "high", "count"}:
            if name in SHARES:
                assert value["low"] < value["high"], name
                assert value["low"] <= value["value"] <= value["high"], name
                found.append(name)
        elif isinstance(value, dict):
            for key, child in value.items():
                look(child, key)
        elif isinstance(value, list):
            for child in value:
                look(child, name)

    look(card.to_json(), "")
    assert set(found) == set(SHARES)


def test_interval_of_the_auroc_is_that_of_resampled_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    is_positive = torch.rand(200, generator=generator) < 0.3
    scores = (torch.randn(200, generator=generator) + is_positive).mul(4).round()  # with ties
    found = auroc_estimate(scores, is_positive, 5)
    assert found is not None

    generator = torch.Generator().manual_seed(5)
    areas = []
    for _ in range(1000):
        parts = [redraw(scores[where], generator) for where in (is_positive, ~is_positive)]
        label = torch.arange(200) < len(parts[0])
        areas.append(float(auroc(torch.cat(parts), label)))
    low, high = torch.tensor(areas).double().quantile(torch.tensor([0.025, 0.975]).double())
    assert found.low == pytest.approx(float(low)) and found.high == pytest.approx(float(high))


def test_interval_of_the_rank_correlation() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    found = spearman_estimate(first, second, 0)
    assert found is not None
    # Independent values: standard error 1 / sqrt(499) = 0.0448; 1.96 of it is 0.0877.
    assert found.high - found.low == pytest.approx(2 * 0.0877, abs=0.01)
    assert found.low < found.value < found.high
    assert spearman_estimate(first, torch.ones(500), 0) is None


def test_foreign_scores_are_refused(label_inputs: Inputs) -> None:
    scores = label_inputs["member_0"] / "scores.jsonl"
    kept = [line for line in scores.read_text().splitlines() if '"e2"' not in line]
    scores.write_text("".join(f"{line}\n" for line in kept))
    with pytest.raises(ReportInputError, match="1 test pairs have no score, the first 'e2'"):
        measure(Artifacts(label_inputs), "member_0", 0)
    with pytest.raises(ReportInputError, match="'preferences'"):
        Artifacts({"strength": label_inputs["strength"]})
